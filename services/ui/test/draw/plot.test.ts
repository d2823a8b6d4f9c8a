import { describe, expect, it } from 'vitest'
import { paddedRange, withoutTrailingZeros } from '@/draw/plot'
import { sparkline } from '@/draw/sparkline'

describe('paddedRange', () => {
  it('leaves air, but no negative numbers under positive ones', () => {
    expect(paddedRange(null, 0.1, 10)[0]).toBe(0)
    expect(paddedRange(null, 5, 5)).toEqual([4.5, 5.5])
    expect(paddedRange(null, NaN, NaN)).toEqual([0, 1])
  })
})

describe('withoutTrailingZeros', () => {
  it.each([
    ['2.000', '2'],
    ['1.20×', '1.2×'],
    ['600 ms', '600 ms'],
    ['3.00e-4', '3e-4'],
  ])('%s becomes %s', (text, short) => expect(withoutTrailingZeros(text)).toBe(short))
})

describe('sparkline', () => {
  it('spans the box', () => expect(sparkline([0, 1], 100, 20)).toBe('M1.0 18.0L99.0 2.0'))
  it('passes over values that are not told', () => expect(sparkline([0, null, 1], 100, 20)).toBe('M1.0 18.0L99.0 2.0'))
  it('draws nothing from one value', () => expect(sparkline([1], 100, 20)).toBe(''))
})
