import { describe, expect, it } from 'vitest'
import { groupRows, parseRanks, peersOf, rankFilter, slownessOf } from '@/draw/timeline/rows'
import { pipelineOf } from '@/lib/neighbours'
import { gridOf } from '../../support/grids'
import { World } from '../../support/world'

const world = new World({ ranks: 64, steps: 8, pipeline: 4, faults: [{ ranks: [37], since: 1, effect: 1.2 }] })
const grid = gridOf(world, { bucketSteps: 1 })
grid.setGroups((rank) => world.stageOf(rank))
const all = Array.from({ length: 64 }, (_, rank) => world.rank(rank))
const place = (rank: number) => ({ rank, node: all[rank].node, device: all[rank].gpu_uuid, stage: all[rank].placement.pipeline, replica: all[rank].placement.data, role: '' })

describe('rows', () => {
  it('are grouped by stage, replica or node, in the order of their numbers', () => {
    expect(groupRows(grid, place, 'stage', () => true).map(({ key, rows }) => [key, rows.length])).toEqual([['0', 16], ['1', 16], ['2', 16], ['3', 16]])
    expect(groupRows(grid, place, 'node', () => true).map(({ key }) => key)).toEqual(Array.from({ length: 8 }, (_, i) => `node-${i}`))
    expect(groupRows(grid, place, 'replica', () => true)).toHaveLength(16)
    expect(groupRows(grid, place, 'none', () => true)).toHaveLength(1)
  })

  it('of forward ranks stand above those of the backward ranks with the same layers', () => {
    const roles = ['forward', 'backward', 'forward', 'forward', 'backward', 'forward']
    const stages = [0, 0, 1, 2, 1, 3]
    const split = (rank: number) => ({ ...place(rank), role: roles[rank % 6], stage: stages[rank % 6] })
    const keys = ['0 forward', '0 backward', '1 forward', '2 forward', '1 backward', '3 forward']
    expect(groupRows(grid, split, 'stage', () => true).map(({ key }) => key)).toEqual(keys)
    expect(new Set([0, 1, 2, 3, 4, 5].map((rank) => peersOf(split(rank)))).size).toBe(6)
  })

  it('of forward ranks stand there also where these are numbered after all backward ranks', () => {
    const apart = (rank: number) => ({ ...place(rank), role: rank < 32 ? 'backward' : 'forward', stage: rank % 2 })
    expect(groupRows(grid, apart, 'stage', () => true).map(({ key }) => key)).toEqual(['0 forward', '0 backward', '1 forward', '1 backward'])
  })

  it('come slowest first when asked to', () => {
    const [only] = groupRows(grid, place, 'none', () => true, slownessOf(grid, 1, 9))
    expect(only.rows[0]).toBe(37)
  })

  it('that can not be compared come last', () => {
    const slowness = Float32Array.from({ length: 64 }, (_, row) => (row === 5 ? NaN : 1))
    const [only] = groupRows(grid, place, 'none', () => true, slowness)
    expect(only.rows.at(-1)).toBe(5)
  })

  it('are filtered by ranks, or by parts of names', () => {
    const kept = (text: string): number[] => groupRows(grid, place, 'none', rankFilter(text)).flatMap(({ rows }) => [...rows])
    expect(kept('3, 8-10')).toEqual([3, 8, 9, 10])
    expect(kept('NODE-7')).toEqual([56, 57, 58, 59, 60, 61, 62, 63])
    expect(kept('gpu-0000000a')).toEqual([10])
    expect(kept('  ')).toHaveLength(64)
    expect(kept('nowhere')).toEqual([])
    expect([parseRanks('1,x'), parseRanks('-3'), parseRanks('')]).toEqual([null, null, null])
  })
})

describe('whose spans are asked for', () => {
  it('are everybody’s in a small job, and in a large one those around the rank', () => {
    expect(pipelineOf(all[3], all.slice(0, 8))).toEqual([])
    const chosen = pipelineOf(all[37], all, 8)
    expect(chosen).toHaveLength(8)
    for (const rank of [37, 5, 21, 53, 36, 38]) expect(chosen).toContain(rank)
  })
})
