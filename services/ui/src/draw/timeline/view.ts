import { bisectLeft, bisectRight } from 'd3-array'
import type { TimelineModel } from './model'

/** What runs along the x axis: whole steps of equal width, or seconds of job time. */
export type Axis = 'steps' | 'time'

/** The visible stretch, in axis units: step numbers (step n covers n to n + 1), or seconds from the model's origin. */
export interface Window {
  readonly from: number
  readonly to: number
}

/** Everything there is to see. */
export function extent(model: TimelineModel, axis: Axis): Window {
  const last = model.steps.length - 1
  if (last < 0) return { from: 0, to: 1 }
  return axis === 'steps'
    ? { from: model.steps[0], to: model.steps[last] + 1 }
    : { from: Math.min(...model.stepStart.subarray(0, 8)), to: Math.max(...model.stepEnd.subarray(-8)) }
}

/** Start and end of a rank's step in axis units. */
export function span(model: TimelineModel, axis: Axis, row: number, index: number): Window {
  const cell = row * model.steps.length + index
  const start = model.start[cell]
  const end = start + model.duration[cell]
  if (axis === 'time') return { from: start, to: end }
  const first = model.stepStart[index]
  const length = Math.max(model.stepEnd[index] - first, Number.MIN_VALUE)
  const step = model.steps[index]
  return { from: step + (start - first) / length, to: step + (end - first) / length }
}

/** Indices `[first, end)` of the steps that touch the window. */
export function visibleSteps(model: TimelineModel, axis: Axis, window: Window): [number, number] {
  return axis === 'steps'
    ? [bisectRight(model.steps, window.from - 1), bisectLeft(model.steps, window.to)]
    : [bisectRight(model.stepEnd, window.from), bisectLeft(model.stepStart, window.to)]
}

/** The window over the given step numbers, both included, in the units of an axis. */
export function windowOfSteps(model: TimelineModel, axis: Axis, first: number, last: number): Window {
  if (axis === 'steps' || model.steps.length === 0) return { from: first, to: last + 1 }
  const newest = model.steps.length - 1
  const from = Math.min(bisectLeft(model.steps, first), newest)
  const to = Math.max(from, Math.min(bisectRight(model.steps, last) - 1, newest))
  return { from: model.stepStart[from], to: model.stepEnd[to] }
}

export function zoom(window: Window, factor: number, around: number, limits: Window, smallest: number): Window {
  const width = Math.min(Math.max((window.to - window.from) * factor, smallest), limits.to - limits.from)
  const share = (around - window.from) / (window.to - window.from)
  return fit({ from: around - share * width, to: around + (1 - share) * width }, limits)
}

export function pan(window: Window, by: number, limits: Window): Window {
  return fit({ from: window.from + by, to: window.to + by }, limits)
}

/** Moves a window inside the limits, keeping its width where it can. */
export function fit(window: Window, limits: Window): Window {
  const width = Math.min(window.to - window.from, limits.to - limits.from)
  const from = Math.min(Math.max(window.from, limits.from), limits.to - width)
  return { from, to: from + width }
}
