import type { StepGrid } from './grid'

/** What runs along the x axis: whole steps of equal width, or seconds of job time. */
export type Axis = 'steps' | 'time'

/** The visible stretch, in axis units: step numbers (step n covers n to n + 1), or seconds from the grid's origin. */
export interface Window {
  readonly from: number
  readonly to: number
}

/** Steps, both included. */
export interface StepRange {
  readonly first: number
  readonly last: number
}

/** Everything there is to see. */
export function extent(grid: StepGrid, axis: Axis): Window {
  if (grid.end <= grid.first) return { from: 0, to: 1 }
  if (axis === 'steps') return { from: grid.oldestStep, to: grid.newestStep + 1 }
  let [first, last] = [grid.first, grid.end - 1]
  while (first < last && Number.isNaN(grid.start[grid.slot(first)])) first += 1
  while (last > first && Number.isNaN(grid.stop[grid.slot(last)])) last -= 1
  const [from, to] = [grid.start[grid.slot(first)], grid.stop[grid.slot(last)]]
  return to > from ? { from, to } : { from: 0, to: 1 }
}

/** Where a bucket begins and ends in axis units; NaN in time where nothing of it is stored. */
export function bucketSpan(grid: StepGrid, axis: Axis, bucket: number): Window {
  const slot = grid.slot(bucket)
  if (axis === 'time') return { from: grid.start[slot], to: grid.stop[slot] }
  return { from: bucket * grid.bucketSteps, to: (bucket + 1) * grid.bucketSteps }
}

/** Where a rank's part of a bucket lies: of a single step from its start to its end, of several the whole bucket. */
export function span(grid: StepGrid, axis: Axis, row: number, bucket: number): Window {
  const whole = bucketSpan(grid, axis, bucket)
  if (grid.bucketSteps > 1) return whole
  const slot = grid.slot(bucket)
  const cell = slot * grid.ranks.length + row
  const [begin, end] = [grid.offset[cell], grid.offset[cell] + grid.duration[cell]]
  if (axis === 'time') return { from: whole.from + begin, to: whole.from + end }
  const length = Math.max(grid.stop[slot] - grid.start[slot], Number.MIN_VALUE)
  return { from: bucket + begin / length, to: bucket + end / length }
}

/** Buckets `[first, end)` that touch the window. */
export function visibleBuckets(grid: StepGrid, axis: Axis, window: Window): [number, number] {
  if (axis === 'steps') {
    const first = Math.max(grid.first, Math.floor(window.from / grid.bucketSteps))
    return [first, Math.max(first, Math.min(grid.end, Math.ceil(window.to / grid.bucketSteps)))]
  }
  let [first, end] = [grid.end, grid.first]
  for (let bucket = grid.first; bucket < grid.end; bucket += 1) {
    const { from, to } = bucketSpan(grid, axis, bucket)
    if (!(to > window.from && from < window.to)) continue
    first = Math.min(first, bucket)
    end = bucket + 1
  }
  return first < end ? [first, end] : [grid.first, grid.first]
}

/** The steps in view; null: none. In time, as finely as the grid's buckets are. */
export function stepsOf(grid: StepGrid, axis: Axis, window: Window): StepRange | null {
  const [low, high] = axis === 'steps' ? [Math.floor(window.from), Math.ceil(window.to) - 1] : stepsInTime(grid, window)
  const first = Math.max(low, grid.oldestStep)
  const last = Math.min(high, grid.newestStep)
  return last >= first && grid.end > grid.first ? { first, last } : null
}

function stepsInTime(grid: StepGrid, window: Window): [number, number] {
  const [first, end] = visibleBuckets(grid, 'time', window)
  if (end <= first) return [0, -1]
  // Within a bucket, steps are taken to be of one length.
  const stepAt = (bucket: number, at: number): number => {
    const { from, to } = bucketSpan(grid, 'time', bucket)
    const share = Math.min(1 - 1e-9, Math.max(0, (at - from) / (to - from)))
    return Math.floor((bucket + share) * grid.bucketSteps)
  }
  return [stepAt(first, window.from), stepAt(end - 1, window.to)]
}

/** The window over the given steps, in the units of an axis. */
export function windowOfSteps(grid: StepGrid, axis: Axis, { first, last }: StepRange): Window {
  if (axis === 'steps') return { from: first, to: last + 1 }
  return { from: timeOf(grid, first), to: Math.max(timeOf(grid, last + 1), timeOf(grid, first) + 1e-6) }
}

/** When a step begins. */
export function timeOf(grid: StepGrid, step: number): number {
  const limits = extent(grid, 'time')
  const bucket = grid.bucketOf(step)
  if (bucket < grid.first) return limits.from
  if (bucket >= grid.end) return limits.to
  const { from, to } = bucketSpan(grid, 'time', bucket)
  return Number.isNaN(from) ? limits.from : from + ((step - bucket * grid.bucketSteps) / grid.bucketSteps) * (to - from)
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
