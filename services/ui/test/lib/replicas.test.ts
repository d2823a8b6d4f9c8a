import { describe, expect, it } from 'vitest'
import { apartIn, farthest, mustAgree, showsReplicas } from '@/lib/replicas'
import { pictureOfTable } from '@/lib/layerStatistics'
import type { Picture } from '@/scope/picture'

/** Replicas × statistics; NaN: it did not come. */
const layers = (...all: readonly (readonly number[])[][]): Map<number, Picture> =>
  new Map(all.map((rows, layer) => [layer, pictureOfTable(Float32Array.from(rows.flat()), rows.length, rows[0].length)]))

describe('replicas of a run', () => {
  it('is looked at where statistics are asked for apart', () => {
    expect(showsReplicas('layers[*].resid_post | stats(mean,std) | replicas')).toBe(true)
    expect(showsReplicas('layers[*].resid_post | stats(mean,std)')).toBe(false)
  })

  it('must hold the same weights, and may compute other values', () => {
    expect(mustAgree('layers[*].weight.mlp.linear_fc1.weight | stats(l2) | replicas')).toBe(true)
    expect(mustAgree('layers[*].resid_post | stats(l2) | replicas')).toBe(false)
  })

  it('agrees where values are the same', () => {
    const all = apartIn(layers([[1, 2], [1, 2]]), 1)
    expect(all).toEqual([{ layer: 0, least: 2, most: 2, share: 0, replica: null }])
    expect(farthest(all)).toBeUndefined()
  })

  it('names the layer and the replica that are farthest from the others', () => {
    const all = apartIn(layers([[1], [1], [1]], [[1], [4], [1]]), 0)
    expect(farthest(all)).toEqual({ layer: 1, least: 1, most: 4, share: 0.75, replica: 1 })
  })

  it('names none of two', () => {
    expect(apartIn(layers([[1], [2]]), 0)[0].replica).toBeNull()
  })

  it('names the one without a number, and counts none that did not come', () => {
    expect(apartIn(layers([[1], [Infinity]]), 0)[0]).toMatchObject({ share: Infinity, replica: 1 })
    expect(apartIn(layers([[1], [NaN], [1]]), 0)[0].share).toBe(0)
  })
})
