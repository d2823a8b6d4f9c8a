import { bisectLeft } from 'd3-array'
import type { Palette } from '../palette'
import { formatSeconds } from '@/lib/format'
import { median } from '@/lib/statistics'
import type { TimelineModel } from './model'

/** Step times over all steps, `bins` columns at most: the slowest step of each, in seconds. */
export function stepBars(model: TimelineModel, bins: number): Float64Array {
  const steps = model.steps.length
  const bars = new Float64Array(Math.min(steps, Math.max(1, Math.floor(bins))))
  for (let index = 0; index < steps; index += 1) {
    const bin = Math.floor((index * bars.length) / steps)
    let longest = 0
    for (let cell = index; cell < model.duration.length; cell += steps) longest = Math.max(longest, model.duration[cell] || 0)
    bars[bin] = Math.max(bars[bin], longest)
  }
  return bars
}

export interface BrushScene {
  readonly bars: Float64Array
  readonly model: TimelineModel
  readonly first: number
  readonly last: number
  readonly since: readonly number[]
  readonly gutter: number
  readonly width: number
  readonly height: number
  readonly palette: Palette
  readonly label: string
}

/** One outlier (a checkpoint, a first step) must not flatten the rest: bars are cut at so many medians. */
const TALLEST_MEDIANS = 2.5

export function paintBrush(pen: CanvasRenderingContext2D, scene: BrushScene): void {
  const { bars, model, palette, gutter, width, height } = scene
  pen.fillStyle = palette.background
  pen.fillRect(0, 0, width, height)
  pen.textBaseline = 'middle'
  pen.font = `12px ${palette.font}`
  pen.fillStyle = palette.muted
  pen.fillText(scene.label, 12, height / 2 - 7)
  if (bars.length === 0) return
  const typical = median(bars)
  pen.fillText(formatSeconds(typical), 12, height / 2 + 9)
  const plot = width - gutter
  const column = plot / bars.length
  const tallest = Math.min(Math.max(...bars), typical * TALLEST_MEDIANS) || 1
  const xOf = (step: number): number => gutter + (bisectLeft(model.steps, step) / model.steps.length) * plot
  const [left, right] = [xOf(scene.first), xOf(scene.last + 1)]
  pen.fillStyle = palette.selected
  pen.fillRect(left, 0, right - left, height)
  for (let i = 0; i < bars.length; i += 1) {
    const x = gutter + i * column
    const tall = Math.max(1, Math.min(1, bars[i] / tallest) * (height - 10))
    pen.fillStyle = x + column > left + 0.5 && x < right - 0.5 ? palette.compute : palette.border
    pen.fillRect(x, height - 2 - tall, Math.max(1, column - (column > 4 ? 1 : 0)), tall)
  }
  pen.fillStyle = palette.accent
  for (const x of [left, right - 2]) pen.fillRect(x, 0, 2, height)
  pen.fillStyle = palette.culprit
  for (const step of scene.since) {
    const x = xOf(step)
    pen.beginPath()
    pen.moveTo(x - 5, 0)
    pen.lineTo(x + 5, 0)
    pen.lineTo(x, 8)
    pen.fill()
  }
}
