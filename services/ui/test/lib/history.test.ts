import { describe, expect, it } from 'vitest'
import type { RunHistory } from '@/api/types'
import { aligned, broken, curveOf, endOf, evaluationsOf, smoothed } from '@/lib/history'
import { toCsv } from '@/lib/export'

const attempt = (number: number, first: number, loss: (number | null)[], kept: number | null = null): RunHistory['attempts'][number] => ({
  attempt: number,
  started_unix_seconds: 1000 * number,
  ended_unix_seconds: null,
  ended_well: false,
  kept_to_step: kept,
  first_step: loss.map((_, i) => first + i),
  last_step: loss.map((_, i) => first + i),
  unix_seconds: loss.map((_, i) => 1000 * number + 10 * (i + 1)),
  series: [{ name: 'loss', mean: loss, min: null, max: null, non_finite: loss.flatMap((value, i) => (value === null ? [i] : [])) }],
  evaluations: [{ split: 'valid', step: first + 1, loss: number, microbatches: 1 }],
})
const run: RunHistory = { run: 'r', job: 'team/r', attempts: [attempt(1, 1, [5, 4, 3, 2], 2), attempt(2, 3, [2.5, null, 1])] }

describe('curveOf', () => {
  it('strings attempts together, each step once', () => {
    const { x, mean } = curveOf(run, 'loss', 'step')
    expect(x).toEqual([1, 2, 3, 4, 5])
    expect(mean).toEqual([5, 4, 2.5, null, 1])
  })
  it('counts time from the start of the run', () => expect(curveOf(run, 'loss', 'time').x).toEqual([10, 20, 1010, 1020, 1030]))
  it('knows nothing of a value that nobody told', () => expect(curveOf(run, 'grad_norm', 'step').mean).toEqual([null, null, null, null, null]))
  it('says where a value was no number', () => expect(broken(run, 'loss')).toEqual({ count: 1, step: 4 }))
})

describe('evaluationsOf', () => {
  it('stand at their steps, or when these ended', () => {
    expect(evaluationsOf(run, 'step')).toEqual([{ x: 2, y: 1 }, { x: 4, y: 2 }])
    expect(evaluationsOf(run, 'time').map(({ x }) => x)).toEqual([20, 1020])
  })
})

describe('endOf', () => {
  it('is how far a run has come, in steps or in time', () => {
    expect(endOf(run, 'step')).toBe(5)
    expect(endOf(run, 'time')).toBe(1030)
  })
  it('is not there before the first step', () => expect(endOf({ ...run, attempts: [] }, 'step')).toBeNull())
})

describe('smoothed', () => {
  it('leaves what is equal equal, from the first value on', () => expect(smoothed([3, 3, 3], 0.9).map((value) => Number(value?.toFixed(9)))).toEqual([3, 3, 3]))
  it('keeps gaps', () => expect(smoothed([1, null, 3], 0.5)[1]).toBeNull())
  it('does nothing without a weight', () => expect(smoothed([1, 9], 0)).toEqual([1, 9]))
  it('lies between the values', () => {
    const [, second] = smoothed([0, 1], 0.5)
    expect(second).toBeGreaterThan(0)
    expect(second).toBeLessThan(1)
  })
})

describe('aligned', () => {
  it('gives runs of different steps one axis', () => {
    const { x, columns } = aligned([{ x: [1, 3], columns: [[10, 30]] }, { x: [2, 3], columns: [[2, 3], [4, 5]] }])
    expect(x).toEqual([1, 2, 3])
    expect(columns).toEqual([[10, null, 30], [null, 2, 3], [null, 4, 5]])
  })
})

describe('toCsv', () => {
  it('quotes what needs it and lets no name become a formula', () => {
    expect(toCsv(['step', 'a "b", c'], [[1, null], [2, '=1+1']])).toBe('step,"a ""b"", c"\r\n1,\r\n2,\'=1+1\r\n')
  })
})
