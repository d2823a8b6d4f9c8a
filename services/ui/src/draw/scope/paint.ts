import { ticks } from 'd3-array'
import { hatch } from '../canvas'
import type { Palette } from '../palette'
import type { Box, MapWindow } from './view'

export const GUTTER = { left: 52, top: 34, right: 12, bottom: 8 } as const
/** Cells at least so large show what they are in words. */
const LEGIBLE = 16

export interface MapScene {
  readonly image: CanvasImageSource
  /** Where the window is in it. */
  readonly source: MapWindow
  readonly window: MapWindow
  readonly box: Box
  readonly width: number
  readonly height: number
  /** Names of the axes, across and down. */
  readonly axes: readonly [string, string]
  readonly columnLabel: (column: number) => string
  readonly rowLabel: (row: number) => string
  readonly palette: Palette
  readonly pointed: { readonly row: number; readonly column: number } | null
  readonly chosen: { readonly row: number; readonly column: number } | null
  /** "N" for what is no number; "" for a value. */
  readonly mark: (row: number, column: number) => string
  /** Shards are missing. */
  readonly partial: boolean
}

/** A plane's picture with its axes, the cell that is pointed at and the one that is chosen. */
export function paintMap(pen: CanvasRenderingContext2D, scene: MapScene): void {
  const { palette, box, source } = scene
  pen.fillStyle = palette.background
  pen.fillRect(0, 0, scene.width, scene.height)
  pen.imageSmoothingEnabled = false
  pen.drawImage(scene.image, source.x, source.y, source.width, source.height, box.left, box.top, box.width, box.height)
  if (scene.partial) paintPartial(pen, scene)
  paintMarks(pen, scene)
  paintAxes(pen, scene)
  for (const [cell, colour, width] of [[scene.pointed, palette.text, 1], [scene.chosen, palette.accent, 2]] as const) {
    if (cell) paintCell(pen, scene, cell, colour, width)
  }
  if (scene.pointed) paintCross(pen, scene, scene.pointed)
}

const across = ({ box, window }: MapScene, column: number): number => box.left + ((column - window.x) / window.width) * box.width
const down = ({ box, window }: MapScene, row: number): number => box.top + ((row - window.y) / window.height) * box.height

/** A border that cannot be overlooked: cells of shards that did not come have a colour of their own. */
function paintPartial(pen: CanvasRenderingContext2D, { box, palette }: MapScene): void {
  pen.fillStyle = hatch(pen, 'diagonal', palette.warn) ?? palette.warn
  pen.fillRect(box.left, box.top - 4, box.width, 4)
}

function paintMarks(pen: CanvasRenderingContext2D, scene: MapScene): void {
  const { box, window, mark, palette } = scene
  if (box.width / window.width < LEGIBLE || box.height / window.height < LEGIBLE) return
  pen.font = `600 11px ${palette.font}`
  pen.textAlign = 'center'
  pen.textBaseline = 'middle'
  pen.fillStyle = '#16181d'
  const [firstRow, lastRow] = [Math.floor(window.y), Math.ceil(window.y + window.height)]
  for (let row = firstRow; row < lastRow; row += 1) {
    for (let column = Math.floor(window.x); column < window.x + window.width; column += 1) {
      const text = mark(row, column)
      if (text) pen.fillText(text, across(scene, column + 0.5), down(scene, row + 0.5))
    }
  }
}

function paintAxes(pen: CanvasRenderingContext2D, scene: MapScene): void {
  const { box, window, palette } = scene
  pen.font = `11px ${palette.font}`
  pen.fillStyle = palette.muted
  pen.textBaseline = 'alphabetic'
  pen.textAlign = 'center'
  for (const column of marksOf(window.x, window.width, box.width / 64)) pen.fillText(scene.columnLabel(column), clamp(across(scene, column + 0.5), box.left + 8, box.left + box.width - 8), box.top - 7)
  pen.textAlign = 'right'
  pen.textBaseline = 'middle'
  for (const row of marksOf(window.y, window.height, box.height / 20)) pen.fillText(scene.rowLabel(row), box.left - 6, down(scene, row + 0.5))
  pen.textAlign = 'left'
  pen.textBaseline = 'alphabetic'
  pen.fillStyle = palette.text
  pen.fillText(`${scene.axes[1]} ↓ ${scene.axes[0]} →`, 4, 11)
}

const clamp = (value: number, low: number, high: number): number => Math.min(high, Math.max(low, value))

/** Whole numbers in view, so many at most. */
function marksOf(from: number, size: number, most: number): number[] {
  const marks = ticks(from, from + size - 1, Math.max(1, Math.floor(most)))
  return [...new Set(marks.map(Math.round))].filter((mark) => mark >= from - 0.5 && mark < from + size)
}

function paintCell(pen: CanvasRenderingContext2D, scene: MapScene, { row, column }: { row: number; column: number }, colour: string, width: number): void {
  const [left, top] = [across(scene, column), down(scene, row)]
  const [wide, high] = [Math.max(3, scene.box.width / scene.window.width), Math.max(3, scene.box.height / scene.window.height)]
  const { box } = scene
  if (left + wide < box.left - 1 || left > box.left + box.width || top + high < box.top - 1 || top > box.top + box.height) return
  pen.strokeStyle = scene.palette.background
  pen.lineWidth = width + 2
  pen.strokeRect(left, top, wide, high)
  pen.strokeStyle = colour
  pen.lineWidth = width
  pen.strokeRect(left, top, wide, high)
}

function paintCross(pen: CanvasRenderingContext2D, scene: MapScene, { row, column }: { row: number; column: number }): void {
  const { box, palette } = scene
  pen.fillStyle = palette.text
  pen.globalAlpha = 0.35
  pen.fillRect(Math.round(across(scene, column + 0.5)), box.top, 1, box.height)
  pen.fillRect(box.left, Math.round(down(scene, row + 0.5)), box.width, 1)
  pen.globalAlpha = 1
}
