import { describe, expect, it } from 'vitest'
import type { HeadMap } from '@/lib/headScores'
import { differenceOfHeads, scoreOf, sortedHeads } from '@/lib/headScores'
import { npy, npz } from '@/lib/npz'

const map = (head: number, rows: readonly (readonly number[])[]): HeadMap => ({
  layer: 0, head, rows: rows.length, columns: rows[0].length, values: Float32Array.from(rows.flat()),
  states: Uint8Array.from(rows.flatMap((row, query) => row.map((_, key) => (key > query ? 2 : 0)))),
})
const previous = map(0, [[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]])
const sink = map(1, [[1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]])
const even = map(2, [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0], [0.25, 0.25, 0.25, 0.25]])
/** Of the tokens a b a b: the second a looks at the first b, the second b at the second a. */
const induction = map(3, [[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]])

describe('heads', () => {
  it('are told apart by what they do', () => {
    expect(scoreOf(previous, 'previous')).toBe(1)
    expect(scoreOf(sink, 'sink')).toBe(1)
    expect(scoreOf(sink, 'entropy')).toBe(0)
    expect(scoreOf(even, 'entropy')).toBeCloseTo((Math.log(2) + Math.log(3) + Math.log(4)) / 4, 5)
    expect(scoreOf(induction, 'induction', [5, 6, 5, 6])).toBe(1)
    expect(scoreOf(sink, 'induction', [5, 6, 5, 6])).toBe(0)
  })

  it('say nothing where it can’t be said: pooled, or without tokens', () => {
    expect(scoreOf({ ...even, rows: 2 }, 'entropy')).toBeNaN()
    expect(scoreOf(induction, 'induction', [1, 2, 3, 4])).toBeNaN()
    expect(sortedHeads([even, { ...sink, rows: 2 }, previous], 'previous', []).map(({ map: { head } }) => head)).toEqual([0, 2, 1])
    expect(sortedHeads([even, sink], 'layer', []).map(({ map: { head } }) => head)).toEqual([1, 2])
  })

  it('are compared cell by cell', () => {
    const found = differenceOfHeads(sink, previous)!
    expect([...found.values.slice(8, 11)]).toEqual([1, -1, 0])
    expect([found.limit, found.states[1]]).toEqual([1, 2])
    expect(differenceOfHeads(sink, { ...previous, rows: 2 })).toBeNull()
  })
})

describe('a file for NumPy', () => {
  it('is laid out as numpy.lib.format says', () => {
    const file = npy({ name: 'a', dims: [2, 2], values: Float32Array.of(1, 2, NaN, -1) })
    expect(new TextDecoder('latin1').decode(file.slice(1, 6))).toBe('NUMPY')
    const size = file[8] + 256 * file[9]
    expect((10 + size) % 64).toBe(0)
    expect(new TextDecoder().decode(file.slice(10, 10 + size))).toMatch(/^\{'descr': '<f4', 'fortran_order': False, 'shape': \(2, 2\), \} *\n$/)
    expect([...new Float32Array(file.slice(10 + size).buffer)]).toEqual([1, 2, NaN, -1])
  })

  it('holds texts as numbers of their letters, filled up to the longest', () => {
    const file = npy({ name: 'texts', texts: [' a', '😀', ''] })
    const size = file[8] + 256 * file[9]
    expect(new TextDecoder().decode(file.slice(10, 10 + size))).toContain("{'descr': '<U2', 'fortran_order': False, 'shape': (3,), }")
    expect([...new Uint32Array(file.slice(10 + size).buffer)]).toEqual([32, 97, 0x1f600, 0, 0, 0])
  })

  it('holds every array under its name', async () => {
    const bytes = new Uint8Array(await npz([{ name: 'layer0', dims: [1], values: Float32Array.of(1) }, { name: 'layer12', dims: [1], values: Float32Array.of(2) }]).arrayBuffer())
    const text = new TextDecoder('latin1').decode(bytes)
    expect([text.split('layer0.npy').length, text.split('layer12.npy').length, text.slice(0, 4)]).toEqual([3, 3, 'PK\u0003\u0004'])
  })
})
