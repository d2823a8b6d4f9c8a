import { describe, expect, it } from 'vitest'
import { DEFAULTS, farthest, firstDifferent, interventionOf, missing, numbersOf } from '@/lib/experiments'

describe('what is asked', () => {
  it('names the field that is missing, one at a time', () => {
    const trace = { ...DEFAULTS, kind: 'trace' } as const
    expect(missing(trace)).toBe('prompt')
    expect(missing({ ...trace, prompt: 'a' })).toBe('corrupted')
    expect(missing({ ...trace, prompt: 'a', corrupted: 'b' })).toBe('answer')
    expect(missing({ ...trace, prompt: 'a', corrupted: 'b', answer: 'c' })).toBeNull()
    expect(missing({ ...DEFAULTS, kind: 'compare', prompt: 'a', reason: ' ' })).toBe('reason')
    expect(missing({ ...DEFAULTS, kind: 'sweep', prompt: 'a', reason: 'x', coefficients: 'none' })).toBe('coefficients')
  })

  it('asks for the prompts whose values a change takes', () => {
    const steer = { ...DEFAULTS, kind: 'compare', prompt: 'a', reason: 'x', change: 'steer' } as const
    expect(missing(steer)).toBe('source')
    expect(missing({ ...steer, source: 'b' })).toBe('baseline')
    expect(missing({ ...steer, change: 'mean', source: 'b' })).toBeNull()
    expect(interventionOf({ ...steer, change: 'patch', coefficient: 3, sourceTokens: '2' })).toMatchObject({ kind: 'patch', coefficient: 0, source_tokens: '2' })
    expect(interventionOf({ ...steer, coefficient: 3 })).toMatchObject({ kind: 'steer', coefficient: 3, source_tokens: '' })
  })

  it('reads numbers however they are separated', () => expect(numbersOf('0.1, 0.3;1 x')).toEqual([0.1, 0.3, 1]))

  it('gives heads only to a site that has some, and zero no strength', () => {
    expect(interventionOf({ ...DEFAULTS, site: 'mlp.out', heads: '3', change: 'zero' })).toMatchObject({ heads: '', coefficient: 0 })
    expect(interventionOf({ ...DEFAULTS, site: 'attn.context', heads: '3', change: 'scale', coefficient: 0.5 })).toMatchObject({ heads: '3', coefficient: 0.5 })
  })
})

describe('what was found', () => {
  it('points at the farthest cell, and at none where nothing is', () => {
    expect(farthest([[0, null], [-3, 2]])).toEqual({ row: 1, column: 0 })
    expect(farthest([[0, null]])).toBeNull()
  })

  it('names the first layer that differs by more than rounding', () => {
    expect(firstDifferent([4, 5, 6], [[1e-7, null], [0, 0.02], [1, 1]])).toBe(5)
    expect(firstDifferent([0], [[1e-7]])).toBeNull()
  })
})
