import { describe, expect, it } from 'vitest'
import { StepGrid } from '@/draw/timeline/grid'
import { expectedOfPeers, peerGroups } from '@/draw/timeline/peers'
import { gridOf } from '../../support/grids'
import { columnsOf } from '../../support/grids'
import { World } from '../../support/world'

const world = (steps: number, ranks = 4): World => new World({ ranks, steps, pipeline: 2, faults: [{ ranks: [1], since: 1, effect: 1.5 }] })

describe('a grid of steps', () => {
  it('holds each rank and step where its bucket and row are', () => {
    const grid = gridOf(world(10), { from: 3, bucketSteps: 1 })
    expect([grid.first, grid.end, grid.oldestStep, grid.newestStep]).toEqual([3, 11, 1, 10])
    expect(grid.compute[grid.cell(7, 2)]).toBeCloseTo(world(10).values(2, 7).compute, 3)
    expect(grid.duration[grid.cell(10, 3)]).toBeCloseTo(world(10).values(3, 10).duration, 3)
  })

  it('grows by what is new, over what was known of it, and moves nothing', () => {
    const run = world(10)
    const grid = gridOf(run, { bucketSteps: 1 }, 32)
    const before = grid.cell(5, 0)
    run.newestStep = 12
    grid.takeChanged()
    grid.put(columnsOf(run, { from: 9, bucketSteps: 1 }))
    expect([grid.takeChanged(), grid.takeChanged()]).toEqual([9, Infinity])
    expect([grid.first, grid.end, grid.newestStep]).toEqual([1, 13, 12])
    expect(grid.cell(5, 0)).toBe(before)
    expect(grid.compute[grid.cell(12, 1)]).toBeCloseTo(run.values(1, 12).compute, 3)
  })

  it('is a ring: the newest bucket overwrites the oldest, and no array grows', () => {
    const run = world(8)
    const grid = gridOf(run, { bucketSteps: 1 }, 8)
    const { length } = grid.compute
    for (run.newestStep = 9; run.newestStep <= 40; run.newestStep += 1) grid.put(columnsOf(run, { from: run.newestStep - 1, bucketSteps: 1 }))
    expect([grid.first, grid.end, grid.compute.length]).toEqual([33, 41, length])
    for (let step = 33; step <= 40; step += 1) expect(grid.compute[grid.cell(step, 2)]).toBeCloseTo(run.values(2, step).compute, 3)
    expect([grid.covers(33, 40), grid.covers(32, 40)]).toEqual([true, false])
  })

  it('knows nothing of steps between what it had and what came', () => {
    const run = world(10)
    const grid = gridOf(run, { bucketSteps: 1 }, 64)
    run.newestStep = 20
    grid.put(columnsOf(run, { from: 18, bucketSteps: 1 }))
    expect(grid.duration[grid.cell(14, 0)]).toBeNaN()
    expect(grid.duration[grid.cell(18, 0)]).toBeGreaterThan(0)
  })

  it('takes times of another origin to its own', () => {
    const run = world(30)
    const grid = gridOf(run, { to: 20, bucketSteps: 1 }, 64)
    grid.put(columnsOf(run, { from: 18, bucketSteps: 1 }))
    expect(grid.start[grid.slot(30)] - grid.start[grid.slot(29)]).toBeCloseTo(1)
    expect(grid.start[grid.slot(30)] - grid.start[grid.slot(1)]).toBeCloseTo(29)
  })

  it('fits only what has the same ranks and buckets', () => {
    const grid = gridOf(world(10), { bucketSteps: 1 })
    expect(grid.fits(columnsOf(world(10), { bucketSteps: 1 }))).toBe(true)
    expect(grid.fits(columnsOf(world(10), { bucketSteps: 2 }))).toBe(false)
    expect(grid.fits(columnsOf(world(10, 5), { bucketSteps: 1 }))).toBe(false)
  })

  it('compares a rank with the others of its group, anew when the groups are others', () => {
    const run = world(10)
    const grid = gridOf(run, { bucketSteps: 1 })
    grid.setGroups((rank) => run.stageOf(rank))
    expect(grid.medianRatio(1, 1, 11)).toBeCloseTo(1.5, 1)
    expect(grid.medianRatio(2, 1, 11)).toBeCloseTo(1, 1)
    grid.setGroups((rank) => rank)
    expect(grid.medianRatio(1, 1, 11)).toBeNaN()
  })
})

describe('a grid that is made in turns', () => {
  const columns = columnsOf(world(40, 16), { bucketSteps: 1 })
  const groupOf = (rank: number): number => rank % 2

  it('is the same as one made at once', async () => {
    const [slow, fast] = [await StepGrid.inTurns(columns, 64, { groupOf }, new AbortController().signal), new StepGrid(columns, 64, { groupOf })]
    expect(slow.ratio).toEqual(fast.ratio)
    expect(slow.ratio.some((ratio) => ratio > 1)).toBe(true)
  })
})

describe('what is expected of a rank', () => {
  it('is the median of the others of its group, whoever has no number aside', () => {
    const expected = expectedOfPeers(Float32Array.of(1, 2, 3, 10, NaN, 7), peerGroups([0, 0, 0, 0, 0, 1]))
    expect([...expected]).toEqual([3, 3, 2, 2, NaN, NaN])
  })

  it('is that of sorting the others for each, for any group', () => {
    for (let size = 2; size < 12; size += 1) {
      const values = Float32Array.from({ length: size }, (_, i) => ((i * 7) % 5) + 1)
      const expected = expectedOfPeers(values, peerGroups(new Int32Array(size)))
      values.forEach((_, row) => {
        const others = [...values].filter((__, other) => other !== row).sort((a, b) => a - b)
        const middle = others.length >> 1
        expect(expected[row]).toBe(others.length % 2 ? others[middle] : (others[middle - 1] + others[middle]) / 2)
      })
    }
  })
})
