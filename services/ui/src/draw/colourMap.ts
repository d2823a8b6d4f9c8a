import { interpolateLab, piecewise } from 'd3-interpolate'
import { interpolateCividis, interpolatePuOr } from 'd3-scale-chromatic'

export type ColourMap = 'sequential' | 'diverging' | 'share'
export type Shade = 'light' | 'dark'

/** PuOr with a dark middle, for dark themes: what is as usual recedes there too. */
const PU_OR_DARK = piecewise(interpolateLab, ['#e0c8ff', '#a884e0', '#6a4aa0', '#20242b', '#a65a10', '#f08a2c', '#ffd7a0'])

/** Shares and probabilities: nothing is the page's own ground, so that a few large ones stand out. */
const SHARE = {
  light: piecewise(interpolateLab, ['#f8fafc', '#a6cfe8', '#0072b2', '#0a2a52']),
  dark: piecewise(interpolateLab, ['#12161c', '#1c4a6e', '#4aa3dc', '#eaf5fc']),
}

/** Each from low to high: 0 to 1. Orange is high: above what is expected. */
const MAPS: Record<ColourMap, Record<Shade, (unit: number) => string>> = {
  diverging: { light: interpolatePuOr, dark: PU_OR_DARK },
  share: SHARE,
  sequential: { light: (unit) => interpolateCividis(1 - unit), dark: interpolateCividis },
}

/** 256 pixels as ImageData holds them on little-endian machines (ABGR); the first is of what is not known. */
export type Lut = Uint32Array

const known = new Map<string, Lut>()

export function lut(map: ColourMap, shade: Shade, missing: string): Lut {
  const key = `${map} ${shade} ${missing}`
  let table = known.get(key)
  if (!table) {
    table = Uint32Array.from({ length: 256 }, (_, code) => toPixel(code === 0 ? missing : MAPS[map][shade]((code - 1) / 254)))
    known.set(key, table)
  }
  return table
}

/** "#rrggbb" or "rgb(r, g, b)" as a pixel. */
export function toPixel(colour: string): number {
  const [red, green, blue] = toRgb(colour)
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0
}

export function toRgb(colour: string): [number, number, number] {
  const hex = /^#([\da-f]{2})([\da-f]{2})([\da-f]{2})$/i.exec(colour)
  if (hex) return [parseInt(hex[1], 16), parseInt(hex[2], 16), parseInt(hex[3], 16)]
  const [red = 0, green = 0, blue = 0] = (colour.match(/[\d.]+/g) ?? []).map(Number)
  return [Math.round(red), Math.round(green), Math.round(blue)]
}

export function fromPixel(pixel: number): string {
  return `rgb(${pixel & 255}, ${(pixel >> 8) & 255}, ${(pixel >> 16) & 255})`
}

/** Black or white, whichever is read better: by the relative luminance of WCAG 2.2. Its contrast is 4.58 at least. */
export function inkOn(colour: string): '#000' | '#fff' {
  const [red, green, blue] = toRgb(colour).map((code) => (code / 255 <= 0.04045 ? code / 255 / 12.92 : ((code / 255 + 0.055) / 1.055) ** 2.4))
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? '#000' : '#fff'
}
