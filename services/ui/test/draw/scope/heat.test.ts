import { describe, expect, it } from 'vitest'
import { lut } from '@/draw/colourMap'
import { paintPlane, pixelOf, scaleOf, united } from '@/draw/scope/heat'
import { boxOf, drawnCells, fitted, placeAt, standsFor, whole, zoomed } from '@/draw/scope/view'
import { unpack } from '@/scope/frame'
import type { Plane } from '@/scope/picture'
import { countsOf, countSpecial, pictureOf, planeOf } from '@/scope/picture'
import { packFrame } from '../../support/scopeFrames'

const SPECIAL = { nonfinite: 1, masked: 2, missing: 3 }
const colours = (low: number, high: number): Parameters<typeof paintPlane>[3] => ({ scale: scaleOf({ low, high }), lut: lut('diverging', 'light', '#123456'), special: SPECIAL })
const frame = (values: number[], dims: number[], more = {}): Promise<Awaited<ReturnType<typeof pictureOf>>> =>
  pictureOf(unpack(packFrame({ subscription: 1, sequence: 1, step: 3, dims, values: Float32Array.from(values), ...more }).buffer))

/** A pixel for every cell. */
function all(dims: number[], look: ReturnType<typeof colours>, leading?: number[]): [Plane, ReturnType<typeof colours>, ReturnType<typeof drawnCells>, ReturnType<typeof drawnCells>] {
  const plane = planeOf(dims, leading)
  return [plane, look, drawnCells(0, plane.rows, plane.rows, plane.rows), drawnCells(0, plane.columns, plane.columns, plane.columns)]
}

describe('the pixels of a plane', () => {
  it.each([[false], [true]])('are those of its values, and of what is none (as floats: %s)', async (exact) => {
    const absent = Uint8Array.from([0, 0, 0, 0, 2, 3])
    const picture = await frame([-4, 4, NaN, Infinity, 0, 0], [2, 3], { exact, absent })
    const pixels = new Uint32Array(6)
    const look = colours(-4, 4)
    paintPlane(pixels, picture, ...all([2, 3], look))
    expect([...pixels]).toEqual([look.lut[1], look.lut[255], 1, 1, 2, 3])
    expect(countSpecial(picture, planeOf([2, 3]))).toEqual({ nonfinite: 2, masked: 1, missing: 1 })
  })

  it('are those at the chosen index of the axes before the last two', async () => {
    const picture = await frame([1, 1, 1, 1, -1, -1, -1, -1], [2, 2, 2])
    const pixels = new Uint32Array(4)
    const look = colours(-1, 1)
    paintPlane(pixels, picture, ...all([2, 2, 2], look, [1]))
    expect([...pixels]).toEqual(Array(4).fill(look.lut[1]))
    expect(planeOf([2, 2, 2], [9]).offset).toBe(4)
  })

  it('of codes by their table are those of each value alone', async () => {
    const values = Array.from({ length: 500 }, (_, i) => Math.sinh((i - 250) / 40))
    const picture = await frame(values, [5, 100])
    const look = colours(-300, 300)
    const pixels = new Uint32Array(500)
    paintPlane(pixels, picture, ...all([5, 100], look))
    expect([...pixels]).toEqual([...picture.values].map((value) => pixelOf(value, 0, look)))
  })
})

describe('what is drawn of an axis', () => {
  it('are the cells in view where the screen has room for all', () => {
    const drawn = drawnCells(2.5, 3, 10, 90)
    expect([[...drawn.cells], drawn.start, drawn.length]).toEqual([[2, 3, 4, 5], 0.5, 3])
  })

  it('is a cell for each pixel where there are more cells than pixels', () => {
    const drawn = drawnCells(0, 4096, 4096, 1000)
    expect([drawn.cells.length, drawn.cells[0], drawn.cells[999], drawn.start, drawn.length]).toEqual([1000, 2, 4093, 0, 1000])
  })

  it('has a pixel for each cell in view, drawn or not', () => {
    const drawn = drawnCells(4, 8, 12, 4)
    expect([...drawn.cells]).toEqual([5, 7, 9, 11])
    expect([3, 4, 5, 6, 7, 11, 12].map((cell) => standsFor(drawn, cell))).toEqual([-1, 0, 0, 1, 1, 3, -1])
  })

  it('loses no cell that was sent exactly', async () => {
    const values = Array.from({ length: 4096 }, (_, i) => (i % 7))
    const picture = await frame(values, [1, 4096])
    const exact = new DataView(new ArrayBuffer(8))
    exact.setUint32(0, 2001, true)
    exact.setFloat32(4, 1000, true)
    ;(picture.frame.sections as Map<string, Uint8Array>).set('OUTLIERS', new Uint8Array(exact.buffer))
    const look = colours(-1000, 1000)
    const across = drawnCells(0, 4096, 4096, 64)
    const pixels = new Uint32Array(64)
    paintPlane(pixels, picture, planeOf([1, 4096]), look, drawnCells(0, 1, 1, 1), across)
    expect(across.cells).not.toContain(2001)
    expect(pixels[standsFor(across, 2001)]).toBe(pixelOf(1000, 0, look))
  })
})

describe('cells that are no values', () => {
  it('have been counted with a large picture, plane by plane', async () => {
    const absent = Uint8Array.from({ length: 2 * 4096 }, (_, i) => (i < 3 ? 2 : i > 8000 ? 3 : 0))
    const picture = await frame(Array.from({ length: 2 * 4096 }, (_, i) => (i === 10 ? NaN : 1)), [2, 64, 64], { absent })
    const planes = [0, 1].map((at) => planeOf([2, 64, 64], [at]))
    expect([...picture.counts!]).toEqual([1, 3, 0, 0, 0, 191])
    expect(planes.map((plane) => countsOf(picture, plane))).toEqual(planes.map((plane) => countSpecial(picture, plane)))
  })

  it('of a small picture are counted where it is shown', async () => {
    const picture = await frame([NaN, 1], [1, 2])
    expect(picture.counts).toBeNull()
    expect(countsOf(picture, planeOf([1, 2]))).toEqual({ nonfinite: 1, masked: 0, missing: 0 })
  })
})

describe('the range of colours', () => {
  it('grows with what comes and keeps its meaning', () => {
    const first = united(null, -1, 2)!
    expect(united(first, -3, 1)).toEqual({ low: -3, high: 2 })
    expect(united(first, NaN, NaN)).toBe(first)
  })

  it('is symmetric about zero for signed values, from zero up for others', () => {
    const signed = scaleOf({ low: -1, high: 4 })
    expect([signed.toUnit(-4), signed.toUnit(0), signed.toUnit(4)]).toEqual([0, 0.5, 1])
    const shares = scaleOf({ low: 0.1, high: 0.8 })
    expect([shares.toUnit(0), shares.toUnit(0.2), shares.toUnit(0.8)]).toEqual([0, 0.5, 1])
    expect(scaleOf({ low: 0, high: 0 }).toUnit(0)).toBe(0)
  })
})

describe('what is seen of a plane', () => {
  const plane = { rows: 128, columns: 4096 }

  it('zooms around the place that is pointed at, and stays inside', () => {
    const close = zoomed(whole(plane), 0.5, { x: 1000, y: 100 }, plane)
    expect(close).toEqual({ x: 500, y: 50, width: 2048, height: 64 })
    expect(zoomed(close, 100, { x: 0, y: 0 }, plane)).toEqual(whole(plane))
    expect(zoomed(close, 1e-9, { x: 1000, y: 100 }, plane)).toMatchObject({ width: 4, height: 4 })
    expect(fitted({ x: -5, y: 1e6, width: 10, height: 10 }, plane)).toEqual({ x: 0, y: 118, width: 10, height: 10 })
  })

  it('finds the cell below a pixel, and none beside the picture', () => {
    const room = { left: 50, top: 20, width: 400, height: 200 }
    expect(placeAt(whole(plane), room, 250, 120)).toEqual({ x: 2048, y: 64 })
    expect(placeAt(whole(plane), room, 49, 120)).toBeNull()
  })

  it('keeps cells square where that uses the room', () => {
    const room = { left: 0, top: 0, width: 300, height: 200 }
    expect(boxOf(room, whole({ rows: 16, columns: 16 }))).toMatchObject({ width: 200, height: 200 })
    expect(boxOf(room, whole(plane))).toBe(room)
  })
})

