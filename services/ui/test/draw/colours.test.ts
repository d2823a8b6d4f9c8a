import { describe, expect, it } from 'vitest'
import { fromPixel, lut, toPixel, toRgb } from '@/draw/colourMap'
import { paintColourBar } from '@/draw/colourBar'
import { asinhScale, linearScale, MISSING, quantise } from '@/draw/scale'
import { paintCells, runsOf, scaleOf, unpainted } from '@/draw/timeline/heat'
import { gridOf, columnsOf } from '../support/grids'
import { PALETTE, recordingPen } from '../support/pen'
import { World } from '../support/world'

type Rgb = readonly [number, number, number]
const linear = (channel: number): number => (channel <= 10.31 ? channel / 255 / 12.92 : ((channel / 255 + 0.055) / 1.055) ** 2.4)

/** As people see it who lack a kind of cones (Machado, Oliveira and Fernandes 2009, severity 1), in linear RGB. */
const CONES: Record<string, readonly Rgb[]> = {
  all: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  protanopia: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  deuteranopia: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  tritanopia: [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
const times = (rows: readonly Rgb[], v: Rgb): Rgb => rows.map((row) => row[0] * v[0] + row[1] * v[1] + row[2] * v[2]) as unknown as Rgb

/** CIELAB of a pixel, D65. */
function lab(pixel: number, cones: string): Rgb {
  const [x, y, z] = times([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]], times(CONES[cones], toRgb(fromPixel(pixel)).map(linear) as unknown as Rgb))
  const f = (t: number): number => (t > 0.008856 ? Math.cbrt(t) : 7.787 * t + 16 / 116)
  const [fx, fy, fz] = [f(x / 0.9505), f(y), f(z / 1.089)]
  return [116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)]
}
const distance = (a: number, b: number, cones: string): number => Math.hypot(...lab(a, cones).map((value, i) => value - lab(b, cones)[i]))

describe.each(Object.keys(CONES))('to eyes with %s', (cones) => {
  it.each(['light', 'dark'] as const)('the two halves of the diverging map are told apart (%s)', (shade) => {
    const table = lut('diverging', shade, '#808080')
    for (const half of [60, 100, 127]) expect(distance(table[128 - half], table[128 + half], cones)).toBeGreaterThan(20)
  })

  it.each(['light', 'dark'] as const)('values far from the middle differ from it (%s)', (shade) => {
    const table = lut('diverging', shade, '#808080')
    for (const code of [40, 216]) expect(distance(table[code], table[128], cones)).toBeGreaterThan(20)
  })

  it.each(['light', 'dark'] as const)('the sequential map goes one way in lightness (%s)', (shade) => {
    const light = [...lut('sequential', shade, '#808080')].slice(1).map((pixel) => lab(pixel, cones)[0])
    const steps = light.slice(16).map((value, i) => (value - light[i]) * (shade === 'dark' ? 1 : -1))
    expect(Math.min(...steps)).toBeGreaterThan(0)
  })
})

describe('colour after quantisation', () => {
  it('gives ends their colours, and what is not known one of its own', () => {
    const scale = linearScale(0, 10)
    expect([-5, 0, 5, 10, 50, NaN].map((value) => quantise(value, scale))).toEqual([1, 1, 128, 255, 255, MISSING])
    expect(lut('sequential', 'light', '#010203')[0]).toBe(toPixel('#010203'))
    expect(toRgb(fromPixel(toPixel('rgb(9, 8, 7)')))).toEqual([9, 8, 7])
  })

  it('shows small differences from the expected, and still tells large ones apart', () => {
    const scale = asinhScale(1, 0.5, 0.05, [])
    const codes = [0.5, 0.97, 1, 1.03, 1.25, 1.5].map((value) => quantise(value, scale))
    expect(codes[2]).toBe(128)
    expect(codes[3] - codes[2]).toBeGreaterThan(15)
    expect(codes[5] - codes[4]).toBeGreaterThan(20)
    expect(codes[2] - codes[1]).toBe(codes[3] - codes[2])
  })
})

describe('the cells of a grid', () => {
  const world = new World({ ranks: 3, steps: 6, faults: [{ ranks: [2], since: 1, effect: 1.4 }] })

  it('are pixels by slot and line, in the order of the rows', () => {
    const grid = gridOf(world, { bucketSteps: 1 }, 8)
    const scale = scaleOf('peers', grid)
    const codes = Uint32Array.from({ length: 256 }, (_, code) => code)
    const pixels = new Uint32Array(8 * 2)
    paintCells(pixels, grid, 'peers', [2, 0], scale, codes, 1, 7)
    expect(pixels[4]).toBe(quantise(grid.ratio[grid.cell(4, 2)], scale))
    expect(pixels[8 + 4]).toBe(quantise(grid.ratio[grid.cell(4, 0)], scale))
    expect([pixels[0], pixels[7]]).toEqual([0, 0])
  })

  it('lie in one run of columns, or in two around the end of the ring', () => {
    const run = new World({ ranks: 1, steps: 8 })
    const grid = gridOf(run, { bucketSteps: 1 }, 8)
    run.newestStep = 11
    grid.put(columnsOf(run, { from: 8, bucketSteps: 1 }))
    expect(runsOf(grid, 5, 8)).toEqual([{ slot: 5, bucket: 5, count: 3 }])
    expect(runsOf(grid, 6, 12)).toEqual([{ slot: 6, bucket: 6, count: 2 }, { slot: 0, bucket: 8, count: 4 }])
    expect(runsOf(grid, 6, 6)).toEqual([])
  })

  it('are painted when they are seen or new, and once', () => {
    const first = unpainted({ from: 0, end: 0 }, { from: 100, end: 200 })
    expect(first).toEqual({ parts: [{ from: 100, end: 200 }], painted: { from: 100, end: 200 } })
    expect(unpainted(first.painted, { from: 120, end: 180 })).toEqual({ parts: [], painted: first.painted })
    expect(unpainted(first.painted, { from: 90, end: 210 }).parts).toEqual([{ from: 90, end: 100 }, { from: 200, end: 210 }])
    expect(unpainted(first.painted, { from: 300, end: 310 })).toEqual({ parts: [{ from: 200, end: 310 }], painted: { from: 100, end: 310 } })
    const changed = 195
    expect(unpainted({ ...first.painted, end: changed }, { from: 110, end: 205 }).parts).toEqual([{ from: 195, end: 205 }])
    expect(unpainted({ from: 10, end: 5 }, { from: 7, end: 7 }).parts).toEqual([])
  })

  it('of times are coloured from nothing to twice what is usual', () => {
    const { low, high } = scaleOf('compute', gridOf(world, { bucketSteps: 1 }))
    expect(low).toBe(0)
    expect(high).toBeGreaterThan(1.2)
  })
})

describe('the colour bar', () => {
  it('shows all colours and its ticks in place', () => {
    const pen = recordingPen()
    const table = lut('diverging', 'light', '#808080')
    paintColourBar(pen, { scale: linearScale(0, 2, [0, 1, 2]), lut: table, label: String, palette: PALETTE, width: 101, height: 24 })
    expect(pen.rects.filter(({ height, width }) => height === 8 && width === 1)).toHaveLength(101)
    expect(pen.texts.map(({ text, x, align }) => [text, x, align])).toEqual([['0', 0, 'left'], ['1', 50, 'center'], ['2', 100, 'right']])
  })
})
