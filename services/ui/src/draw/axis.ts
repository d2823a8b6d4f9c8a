import { ticks } from 'd3-array'
import type { Palette } from './palette'

export interface AxisScene {
  readonly from: number
  readonly to: number
  /** Pixels of the plot: where it begins and ends, and how far down its lines go. */
  readonly left: number
  readonly right: number
  readonly bottom: number
  readonly height: number
  readonly whole: boolean
  readonly label: (mark: number) => string
  readonly palette: Palette
}

const ROOM = 110

/** Marks at round values, so many that their labels have room; only whole ones where `whole`. */
export function axisMarks({ from, to, left, right, whole }: Pick<AxisScene, 'from' | 'to' | 'left' | 'right' | 'whole'>): number[] {
  return ticks(from, to, Math.max(2, Math.floor((right - left) / ROOM))).filter((mark) => !whole || Number.isInteger(mark))
}

/** A horizontal axis on top of a plot: labels, and a line through the plot at each. */
export function paintAxis(pen: CanvasRenderingContext2D, scene: AxisScene): void {
  const { palette, from, to, left, right, bottom, height } = scene
  pen.font = `12px ${palette.font}`
  pen.textBaseline = 'middle'
  pen.textAlign = 'left'
  for (const mark of axisMarks(scene)) {
    const x = Math.round(left + ((mark - from) / (to - from)) * (right - left)) + 0.5
    if (x < left) continue
    pen.fillStyle = palette.line
    pen.fillRect(x - 0.5, height - 8, 1, bottom - height + 8)
    pen.fillStyle = palette.muted
    const label = scene.label(mark)
    if (x + 4 + pen.measureText(label).width < right) pen.fillText(label, x + 4, height / 2 - 3)
  }
  pen.fillStyle = palette.line
  pen.fillRect(0, height - 1, right, 1)
}
