import type { Lut } from '../colourMap'
import { toPixel } from '../colourMap'
import type { Scale } from '../scale'
import { asinhScale, quantise, rootScale } from '../scale'
import type { Picture, Plane } from '@/scope/picture'
import { outliersOf } from '@/scope/frame'
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
 * Colours a plane, a pixel a cell. Codes go through a table of all that there are, so that half a million cells take a
 * millisecond; the few that were sent exactly are put in afterwards.
 */
export function paintPlane(pixels: Uint32Array, picture: Picture, plane: Plane, colours: HeatColours): void {
  const { frame, cells, values, states } = picture
  const count = plane.rows * plane.columns
  const coded = frame.codec === 'TRIANGLE' ? null : valuesOfCodes(frame)
  if (!coded) {
    for (let i = 0; i < count; i += 1) pixels[i] = pixelOf(values[plane.offset + i], states[plane.offset + i], colours)
    return
  }
  const table = Uint32Array.from(coded.values, (value, code) => pixelOf(value, coded.states[code], colours))
  const Codes = table.length === 256 ? Uint8Array : Uint16Array
  const codes = new Codes(cells.buffer as ArrayBuffer, cells.byteOffset + plane.offset * Codes.BYTES_PER_ELEMENT, count)
  for (let i = 0; i < count; i += 1) pixels[i] = table[codes[i]]
  for (const { index, value } of outliersOf(frame)) {
    const at = index - plane.offset
    if (at >= 0 && at < count && states[index] === STATE.value) pixels[at] = pixelOf(value, STATE.value, colours)
  }
}

export function pixelOf(value: number, state: number, { scale, lut, special }: HeatColours): number {
  if (state === STATE.masked) return special.masked
  if (state === STATE.missing) return special.missing
  if (state === STATE.nan || !Number.isFinite(value)) return special.nonfinite
  return lut[quantise(value, scale)]
}

export interface Counts {
  readonly nonfinite: number
  readonly masked: number
  readonly missing: number
}

/** Cells of a plane that are no values. */
export function countSpecial({ values, states }: Pick<Picture, 'values' | 'states'>, plane: Plane): Counts {
  let [nonfinite, masked, missing] = [0, 0, 0]
  const end = plane.offset + plane.rows * plane.columns
  for (let i = plane.offset; i < end; i += 1) {
    const state = states[i]
    if (state === STATE.value) {
      if (values[i] - values[i] !== 0) nonfinite += 1 // of an infinity that is no number
    } else if (state === STATE.masked) masked += 1
    else if (state === STATE.missing) missing += 1
    else nonfinite += 1
  }
  return { nonfinite, masked, missing }
}
