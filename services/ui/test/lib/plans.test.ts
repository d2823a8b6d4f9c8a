import { describe, expect, it } from 'vitest'
import type { AuditRecord } from '@/api/scope'
import { describePerturbation, isRange, trimmed } from '@/lib/perturbations'
import { plansInForce } from '@/lib/plans'

const entry = (action: string, outcome: string, detail: object | string = '', by = 'ann'): AuditRecord => ({
  unix_seconds: 5, by, action, outcome, reason: outcome ? '' : 'why', detail: typeof detail === 'string' ? detail : JSON.stringify(detail),
})

describe('plans in force', () => {
  it('are those that were done and not cleared', () => {
    const audit = [
      entry('perturb', '', { plan: 'a', perturbations: [] }), entry('perturb', 'done'),
      entry('perturb', '', { plan: 'b' }), entry('perturb', 'refused', 'no such site'),
      entry('perturb', '', { plan: 'c' }), entry('train', ''), entry('perturb', 'done'),
      entry('perturb_clear', '', { plan: 'a' }), entry('perturb_clear', 'done'),
    ]
    expect(plansInForce(audit, null).map(({ name, by, reason }) => [name, by, reason])).toEqual([['c', 'ann', 'why']])
    expect(plansInForce([...audit, entry('perturb_clear', '', {}), entry('perturb_clear', 'done')], null)).toEqual([])
  })

  it('answer whom they belong to, when two ask at once', () => {
    const audit = [entry('perturb', '', { plan: 'a' }, 'ann'), entry('perturb', '', { plan: 'b' }, 'bob'), entry('perturb', 'done', '', 'bob'), entry('perturb', 'refused', '', 'ann')]
    expect(plansInForce(audit, null).map(({ name, by }) => [name, by])).toEqual([['b', 'bob']])
  })

  it('that only the ranks know of are shown too, and a detail that was cut off keeps its name', () => {
    expect(plansInForce([], ['old'])).toEqual([{ name: 'old', by: null, since: null, reason: '', plan: null }])
    const audit = [entry('perturb', '', '{"plan": "long", "perturbations": [{"pla'), entry('perturb', 'done')]
    expect(plansInForce(audit, ['long']).map(({ name }) => name)).toEqual(['long'])
  })
})

describe('a perturbation', () => {
  it('is one line', () => {
    expect(describePerturbation({ place: 'storage', kind: 'bit_flip', coefficient: 1e-6, bits: 'sign', layers: '3' })).toBe('layers[3].*.linear_*.weight · bit_flip 0.000001 sign')
    expect(describePerturbation({ place: 'calculation', kind: 'swap_heads', site: 'attn.context', heads: '0,1', withHeads: '4,5' })).toBe('attn.context · swap_heads · heads 0,1 · ↔ 4,5')
  })

  it('is sent without what is empty', () => {
    expect(trimmed({ place: 'system', kind: 'zero', layers: '', off: false, coefficient: 0 })).toEqual({ place: 'system', kind: 'zero', coefficient: 0 })
  })

  it.each([['', true], ['0,3,8:16', true], ['::2', true], ['10:', true], ['-1', false], ['3-5', false], ['a', false], ['1,', false]])('range %j: %s', (text, good) => expect(isRange(text)).toBe(good))
})
