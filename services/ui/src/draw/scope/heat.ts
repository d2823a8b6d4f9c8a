import type { Lut } from '../colourMap'
import { toPixel } from '../colourMap'
import type { Scale } from '../scale'
import { asinhScale, quantise, rootScale } from '../scale'
import type { Picture, Plane } from '@/scope/picture'
import { outliersOf } from '@/scope/frame'
import type { Drawn } from './view'
import { standsFor } from './view'
import { STATE, valuesOfCodes } from '@/scope/values'

/** Pixels of cells that are no values. */
export interface SpecialInks {
  readonly nonfinite: number
  readonly masked: number
  readonly missing: number
}

export interface HeatColours {
  readonly scale: Scale
  readonly lut: Lut
  readonly special: SpecialInks
}

export interface Range {
  readonly low: number
  readonly high: number
}

/** As large as both. */
export function united(range: Range | null, low: number, high: number): Range | null {
  if (!Number.isFinite(low) || !Number.isFinite(high)) return range
  return range ? { low: Math.min(range.low, low), high: Math.max(range.high, high) } : { low, high }
}

export const isSigned = (range: Range): boolean => range.low < 0

const KNEE = 1 / 12

/**
 * Signed values about 0, small ones told apart from each other and large ones too; shares and other positive values from
 * 0 up. The same range gives the same colours, in every frame and layer.
 */
export function scaleOf(range: Range): Scale {
  if (!isSigned(range)) return rootScale(range.high > 0 ? range.high : 1)
  const limit = Math.max(-range.low, range.high) || 1
  const inner = limit * KNEE * 2
  return asinhScale(0, limit, limit * KNEE, [-limit, -inner, 0, inner, limit])
}

export function inksOf(palette: { readonly line: string; readonly border: string }): SpecialInks {
  return { nonfinite: toPixel('#ff00c8'), masked: toPixel(palette.line), missing: toPixel(palette.border) }
}

/**
 * Colours what is drawn of a plane, a pixel a cell: never more cells than the screen has pixels for. Codes go through a
 * table of all that there are; the few that were sent exactly are put in afterwards, and none of them is lost between pixels.
 */
export function paintPlane(pixels: Uint32Array, picture: Picture, plane: Plane, colours: HeatColours, down: Drawn, across: Drawn): void {
  const { values, states } = picture
  const coded = tableOf(picture, colours)
  const columns = across.cells
  for (let row = 0; row < down.cells.length; row += 1) {
    const [from, to] = [plane.offset + down.cells[row] * plane.columns, row * columns.length]
    for (let column = 0; column < columns.length; column += 1) {
      const at = from + columns[column]
      pixels[to + column] = coded ? coded.table[coded.codes[at]] : pixelOf(values[at], states[at], colours)
    }
  }
  if (coded) paintOutliers(pixels, picture, plane, colours, down, across)
}

/** The pixel of every code that there is; null: cells are no codes. */
function tableOf({ frame, cells }: Picture, colours: HeatColours): { table: Uint32Array; codes: Uint8Array | Uint16Array } | null {
  const coded = frame.codec === 'TRIANGLE' ? null : valuesOfCodes(frame)
  if (!coded) return null
  const table = Uint32Array.from(coded.values, (value, code) => pixelOf(value, coded.states[code], colours))
  const Codes = table.length === 256 ? Uint8Array : Uint16Array
  return { table, codes: new Codes(cells.buffer as ArrayBuffer, cells.byteOffset, cells.length) }
}

function paintOutliers(pixels: Uint32Array, { frame, states }: Picture, plane: Plane, colours: HeatColours, down: Drawn, across: Drawn): void {
  for (const { index, value } of outliersOf(frame)) {
    const at = index - plane.offset
    if (at < 0 || at >= plane.rows * plane.columns || states[index] !== STATE.value) continue
    const [row, column] = [standsFor(down, Math.floor(at / plane.columns)), standsFor(across, at % plane.columns)]
    if (row >= 0 && column >= 0) pixels[row * across.cells.length + column] = pixelOf(value, STATE.value, colours)
  }
}

export function pixelOf(value: number, state: number, { scale, lut, special }: HeatColours): number {
  if (state === STATE.masked) return special.masked
  if (state === STATE.missing) return special.missing
  if (state === STATE.nan || !Number.isFinite(value)) return special.nonfinite
  return lut[quantise(value, scale)]
}
