import { describe, expect, it } from 'vitest'
import type { LocationQuery } from 'vue-router'
import { readSelection, selectionQuery, writeRanks } from '@/lib/selection'

describe('the selection in the address', () => {
  it('is read as it is written', () => {
    const selection = { attempt: 2, steps: { first: 50, last: 90 }, step: 60, ranks: [1, 2, 3, 9], finding: 'f', time: 1_790_000_000 }
    const written = Object.fromEntries(Object.entries(selectionQuery(selection)).map(([key, value]) => [key, String(value)]))
    expect(written).toEqual({ attempt: '2', from: '50', to: '90', step: '60', rank: '1-3,9', finding: 'f', time: '1790000000' })
    expect(readSelection(written)).toEqual(selection)
  })

  it('leaves out what is not selected, and takes out what no longer is', () => {
    expect(selectionQuery({ step: null, ranks: [] })).toEqual({ step: undefined, rank: undefined })
    expect(readSelection({})).toEqual({ attempt: null, steps: null, step: null, ranks: [], finding: null, time: null })
  })

  it.each([['x'], ['-1'], ['1e9'], ['9'.repeat(30)], [''], [['3', '4']]])('passes over what is no number: %s', (text) => {
    const query = { from: text, to: text, step: text, attempt: text, rank: text } as LocationQuery
    expect(readSelection(query)).toMatchObject({ steps: null, step: null, attempt: null, ranks: [] })
  })

  it('is never of more ranks than there can be', () => {
    expect(readSelection({ rank: '0-9999999' }).ranks).toHaveLength(4096)
    expect(readSelection({ rank: '5-2' }).ranks).toEqual([])
    expect(writeRanks([7, 5, 6, 5, 1])).toBe('1,5-7')
  })
})
