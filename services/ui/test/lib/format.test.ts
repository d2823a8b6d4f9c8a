import { describe, expect, it } from 'vitest'
import * as format from '@/lib/format'

describe('formatSeconds', () => {
  it.each([
    [0, '0 s'],
    [8.5e-7, '850 ns'],
    [1.24e-5, '12.4 µs'],
    [0.318, '318 ms'],
    [1.42, '1.42 s'],
    [7800, '2 h 10 min'],
    [null, '–'],
    [NaN, '–'],
  ])('writes %s as %s', (seconds, text) => expect(format.formatSeconds(seconds)).toBe(text))
})

describe('formatExcess', () => {
  it.each([
    [1.2, '+20 %'],
    [0.951, '−4.9 %'],
    [1.0001, '±0 %'],
    [2.5, '+150 %'],
    [63.01, '63×'],
    [undefined, '–'],
  ])('writes the ratio %s as %s', (ratio, text) => expect(format.formatExcess(ratio)).toBe(text))
})

describe('formatShare', () => {
  it.each([
    [0.0062, '0.6 %'],
    [0.099, '9.9 %'],
    [0.0999, '10 %'],
    [0.23, '23 %'],
    [null, '–'],
  ])('writes %s as %s', (share, text) => expect(format.formatShare(share)).toBe(text))
})

describe('formatPercent', () => {
  it('never calls certain what is not', () => {
    expect(format.formatPercent(0.998)).toBe('> 99 %')
    expect(format.formatPercent(1)).toBe('100 %')
    expect(format.formatPercent(0.973)).toBe('97 %')
  })
})

describe('formatRanks', () => {
  it('joins neighbours', () => {
    expect(format.formatRanks([5, 2, 1, 0])).toBe('0–2, 5')
    expect(format.formatRanks([4, 5])).toBe('4, 5')
    expect(format.formatRanks([])).toBe('')
  })
})

describe('formatNumber', () => {
  it.each([
    [2.16649, 4, '2.166'],
    [1234567, 3, '1,234,567'],
    [0.0003, 3, '3.00e-4'],
    [0, 3, '0'],
    [-0.25, 3, '-0.250'],
  ])('writes %s with %s digits as %s', (value, digits, text) => expect(format.formatNumber(value, digits)).toBe(text))
})

describe('formatBytes and formatCount', () => {
  it('scale by thousands', () => {
    expect(format.formatBytes(1_234_567)).toBe('1.23 MB')
    expect(format.formatBytes(12)).toBe('12.0 B')
    expect(format.formatCount(26_800)).toBe('26.8 k')
  })
})

describe('formatIso', () => {
  it('is in UTC, and says nothing of a time that is not set', () => {
    expect(format.formatIso(1_700_000_000)).toBe('2023-11-14T22:13:20.000Z')
    expect(format.formatIso(0)).toBe('–')
  })
})

describe('formatMoment', () => {
  const now = new Date(2026, 10, 23, 15, 0)
  const at = (day: number): number => new Date(2026, 10, day, 14, 3).getTime() / 1000

  it('names the day of another day', () => {
    expect(format.formatMoment(at(23), 'en-GB', 'local', now)).toBe('14:03')
    expect(format.formatMoment(at(22), 'en-GB', 'local', now)).toBe('22 Nov, 14:03')
    expect(format.formatMoment(null, 'en-GB', 'local', now)).toBe('–')
  })

  it('in UTC says so, and counts days there', () => {
    const late = Date.UTC(2026, 10, 22, 23, 30) / 1000
    expect(format.formatMoment(late, 'en-GB', 'utc', new Date(Date.UTC(2026, 10, 22, 1)))).toBe('23:30 UTC')
    expect(format.formatMoment(late, 'en-GB', 'utc', new Date(Date.UTC(2026, 10, 23, 0, 10)))).toBe('22 Nov, 23:30 UTC')
    expect(format.formatClock(late, 'en-GB', 'utc')).toBe('23:30:00 UTC')
  })
})
