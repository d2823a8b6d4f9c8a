import { describe, expect, it } from 'vitest'
import type { AuditRecord } from '@/api/scope'
import { describePerturbation, isRange, trimmed } from '@/lib/perturbations'
import { plansInForce, withOutcomes } from '@/lib/plans'

const entry = (action: string, outcome: string, detail: object | string = '', command = 'ann:1', by = 'ann'): AuditRecord => ({
  unix_seconds: 5, by, action, outcome, command, reason: outcome ? '' : 'why', detail: typeof detail === 'string' ? detail : JSON.stringify(detail),
})

describe('plans in force', () => {
  it('are those that were done and not cleared', () => {
    const audit = [
      entry('perturb', '', { plan: 'a', perturbations: [] }), entry('perturb', 'done'),
      entry('perturb', '', { plan: 'b' }, 'ann:2'), entry('perturb', '', { plan: 'c' }, 'ann:3'), entry('train', '', {}, 'ann:4'),
      entry('perturb', 'done', '', 'ann:3'), entry('perturb', 'refused', 'no such site', 'ann:2'),
      entry('perturb_clear', '', { plan: 'a' }, 'ann:5'), entry('perturb_clear', 'done', '', 'ann:5'),
    ]
    expect(plansInForce(audit, null).map(({ name, by, reason }) => [name, by, reason])).toEqual([['c', 'ann', 'why']])
    expect(plansInForce([...audit, entry('perturb_clear', '', {}, 'ann:6'), entry('perturb_clear', 'done', '', 'ann:6')], null)).toEqual([])
  })

  it('are told apart by their commands, also of two who bear one name', () => {
    const audit = [entry('perturb', '', { plan: 'a' }, 'x:1'), entry('perturb', '', { plan: 'b' }, 'y:1'), entry('perturb', 'done', '', 'y:1'), entry('perturb', 'refused', '', 'x:1')]
    expect(plansInForce(audit, null).map(({ name }) => name)).toEqual(['b'])
  })

  it('that only the ranks know of are shown too, and a detail that was cut off keeps its name', () => {
    expect(plansInForce([], ['old'])).toEqual([{ name: 'old', by: null, since: null, reason: '', plan: null }])
    const audit = [entry('perturb', '', '{"plan": "long", "perturbations": [{"pla'), entry('perturb', 'done')]
    expect(plansInForce(audit, ['long']).map(({ name }) => name)).toEqual(['long'])
  })
})

describe('who did what', () => {
  it('tells of a plan in words, with a refusal’s, and of anything else as it was sent', () => {
    const plan = { plan: 'hot', seed: 7, perturbations: [{ place: 'calculation', kind: 'noise2', coefficient: 0.1, layers: '2' }, { place: 'system', kind: 'zero' }] }
    const audit = [entry('perturb', 'refused', 'no such site'), entry('perturb', '', plan), entry('train', '', { do: 'pause' }, 'ann:2')]
    expect(withOutcomes(audit).map(({ outcome, detail }) => [outcome, detail])).toEqual([
      ['refused', 'hot: layers[2].mlp.out · noise2 0.1; resid_post · zero – no such site'],
      ['', '{"do":"pause"}'],
    ])
  })

  it('leaves a plan that was cut off as it is', () => {
    const cut = '{"plan": "long", "perturbations": [{"pla'
    expect(withOutcomes([entry('perturb', '', cut)])[0]?.detail).toBe(cut)
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
