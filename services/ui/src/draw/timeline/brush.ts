import type { Palette } from '../palette'
import { median } from '@/lib/statistics'
import type { StepGrid } from './grid'

export interface BrushScene {
  readonly grid: StepGrid
  readonly first: number
  readonly last: number
  readonly since: readonly number[]
  readonly gutter: number
  readonly width: number
  readonly height: number
  readonly palette: Palette
  readonly label: string
  /** Beside it: how long a step takes. */
  readonly typical: (seconds: number) => string
}

/** One outlier (a checkpoint, a first step) must not flatten the rest: bars are cut at so many medians. */
const TALLEST_MEDIANS = 2.5

/** Longest step of each bucket, in seconds, oldest first. */
export function stepBars(grid: StepGrid): Float64Array {
  return Float64Array.from({ length: grid.end - grid.first }, (_, i) => grid.slowest[grid.slot(grid.first + i)])
}

/** Where a step stands on the brush, as a share of its width. */
export function shareOf(grid: StepGrid, step: number): number {
  return (step - grid.oldestStep) / Math.max(1, grid.newestStep + 1 - grid.oldestStep)
}

export function stepAtShare(grid: StepGrid, share: number): number {
  const steps = grid.newestStep + 1 - grid.oldestStep
  return grid.oldestStep + Math.floor(Math.min(0.999_999, Math.max(0, share)) * steps)
}

export function paintBrush(pen: CanvasRenderingContext2D, scene: BrushScene): void {
  const { grid, palette, gutter, width, height } = scene
  pen.fillStyle = palette.background
  pen.fillRect(0, 0, width, height)
  pen.textBaseline = 'middle'
  pen.textAlign = 'left'
  pen.font = `12px ${palette.font}`
  pen.fillStyle = palette.muted
  pen.fillText(scene.label, 12, height / 2 - 7)
  const bars = stepBars(grid)
  if (bars.length === 0) return
  const typical = median(bars)
  pen.fillText(scene.typical(typical), 12, height / 2 + 9)
  const xOf = (step: number): number => gutter + shareOf(grid, step) * (width - gutter)
  const [left, right] = [xOf(scene.first), xOf(scene.last + 1)]
  pen.fillStyle = palette.selected
  pen.fillRect(left, 0, right - left, height)
  paintBars(pen, scene, bars, Math.min(Math.max(...bars), typical * TALLEST_MEDIANS) || 1, left, right)
  pen.fillStyle = palette.accent
  for (const x of [left, right - 2]) pen.fillRect(Math.min(width - 2, Math.max(gutter, x)), 0, 2, height)
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

function paintBars(pen: CanvasRenderingContext2D, scene: BrushScene, bars: Float64Array, tallest: number, left: number, right: number): void {
  const { grid, palette, gutter, width, height } = scene
  for (let i = 0; i < bars.length; i += 1) {
    const step = (grid.first + i) * grid.bucketSteps
    const x = Math.max(gutter, gutter + shareOf(grid, step) * (width - gutter))
    const column = gutter + shareOf(grid, step + grid.bucketSteps) * (width - gutter) - x
    const tall = Math.max(1, Math.min(1, bars[i] / tallest) * (height - 10))
    pen.fillStyle = x + column > left + 0.5 && x < right - 0.5 ? palette.compute : palette.border
    pen.fillRect(x, height - 2 - tall, Math.max(1, column - (column > 4 ? 1 : 0)), tall)
  }
}
