import { describe, expect, it } from 'vitest'
import { indexOf, layerOf, siteOf, withIndex, withLayer } from '@/scope/expression'
import type { Site } from '@/scope/messages'
import { entriesOf, expressionOf, grouped, sitesOf, viewsOf } from '@/scope/sites'

describe('an expression as text', () => {
  it('tells its site, its one layer and its one head', () => {
    expect(siteOf('model.layers[0:4].attn.q | head(3)')).toBe('attn.q')
    expect([layerOf('layers[7].attn.q'), layerOf('layers[*].attn.q'), layerOf('logits')]).toEqual([7, null, null])
    expect([indexOf('layers[1].attn.q | batch(0) | head( 3 )', 'head'), indexOf('layers[1].attn.q | head(0:4)', 'head')]).toEqual([3, null])
  })

  it('is changed in nothing else', () => {
    expect(withLayer('layers[1].attn.q | head(3) | token(1)', 5)).toBe('layers[5].attn.q | head(3) | token(1)')
    expect(withIndex('layers[1].attn.q | batch(0) | head(3)', 'head', 4)).toBe('layers[1].attn.q | batch(0) | head(4)')
    expect(withLayer('logits | topk(5)', 5)).toBe('logits | topk(5)')
  })
})

describe('sites', () => {
  const axes = (...names: string[]): Site['axes'] => names.map((name) => ({ name, size: 4 }))
  const query: Site = { name: 'attn.q', layers: [0, 1], axes: axes('batch', 'token', 'head', 'chan') }
  const probs: Site = { name: 'attn.probs', layers: [0, 1], axes: axes('batch', 'head', 'query', 'key') }
  const logits: Site = { name: 'logits', axes: axes('batch', 'token', 'vocab') }

  it('are asked for as a plane, by slicing the axes before the last two', () => {
    expect(expressionOf(query, 'values', 1)).toBe('layers[1].attn.q | batch(0) | head(0)')
    expect(expressionOf(probs, 'values', 0)).toBe('layers[0].attn.probs | batch(0) | head(0)')
    expect(expressionOf(logits, 'candidates', 3)).toBe('logits | batch(0) | last(4) | topk(20)')
  })

  it('of experts are asked for one by one, and not by replica, which hold others', () => {
    const experts: Site = { name: 'experts.out', layers: [0, 1], axes: axes('batch', 'token', 'expert', 'chan') }
    const logits: Site = { name: 'router.logits', layers: [0, 1], axes: axes('batch', 'token', 'expert') }
    expect(expressionOf(experts, 'values', 1)).toBe('layers[1].experts.out | batch(0) | expert(0)')
    expect(expressionOf(logits, 'values', 1)).toBe('layers[1].router.logits | batch(0)')
    expect(viewsOf(experts, 2)).toEqual(['values', 'statistics', 'histogram', 'pca'])
    expect(grouped([experts, logits]).map(({ group }) => group)).toEqual(['router'])
  })

  it('offer only what can be shown of them', () => {
    expect(viewsOf(probs)).toEqual(['values', 'statistics', 'histogram', 'entropy', 'wall'])
    expect(viewsOf(logits)).toEqual(['statistics', 'histogram', 'candidates'])
    expect(viewsOf({ name: 'grad.resid_post', layers: [0], axes: axes('batch', 'token', 'chan') })).toEqual(['values', 'statistics', 'histogram'])
  })

  it('of an SAE show its strongest features', () => {
    const sae: Site = { name: 'sae.mid', layers: [3], axes: axes('batch', 'token', 'chan') }
    expect(viewsOf(sae)).toContain('features')
    expect(expressionOf(sae, 'features', 3)).toBe('layers[3].sae.mid | batch(0) | last(8) | topk(10)')
  })

  it('say what a top-k is of', () => {
    expect(['logits | topk(5)', 'layers[*].resid_post | logitlens(5)', 'layers[3].sae.mid | topk(5)', 'layers[3].mlp.act | topk(5)', 'grad.logits | topk(5)'].map(entriesOf)).toEqual(['tokens', 'tokens', 'features', 'entries', 'entries'])
  })

  it('of parameters stand by themselves, behind what a pass shows', () => {
    const [weight, state] = ['weight.mlp.linear_fc1.weight', 'opt.exp_avg.mlp.linear_fc1.weight'].map((name): Site => ({ name, layers: [0], axes: axes('out', 'in') }))
    expect(grouped([state, weight, logits]).map(({ group }) => group)).toEqual(['ends', 'weights', 'optimizer'])
    expect(expressionOf(weight, 'values', 0)).toBe('layers[0].weight.mlp.linear_fc1.weight')
  })

  it('stand in the model’s order, with unknown ones at the end', () => {
    expect(grouped([{ name: 'new.site' }, probs, logits]).map(({ group }) => group)).toEqual(['ends', 'attention', 'other'])
  })

  it('of a generation are its own where it has some', () => {
    const own: Site = { ...query, passes: ['generate'] }
    expect(sitesOf({ sites: [query, own, logits] }, true)).toEqual([own, logits])
    expect(sitesOf({ sites: [own, query, logits] })).toEqual([query, logits])
  })
})
