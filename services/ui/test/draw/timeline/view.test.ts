import { describe, expect, it } from 'vitest'
import { labelled } from '@/draw/timeline/paint'
import { paintBrush, stepAtShare, stepBars } from '@/draw/timeline/brush'
import { hit, stepWithin } from '@/draw/timeline/hit'
import type { Row } from '@/draw/timeline/layout'
import { broughtIntoView, layoutRows, rowAt, rowOfRank, rowsBetween } from '@/draw/timeline/layout'
import { groupRows } from '@/draw/timeline/rows'
import { rowSegments } from '@/draw/timeline/segments'
import { extent, fit, pan, span, stepsOf, visibleBuckets, windowOfSteps, zoom } from '@/draw/timeline/view'
import { formatRange, parseRange, tracedRange } from '@/lib/traced'
import { gridOf } from '../../support/grids'
import { PALETTE, recordingPen } from '../../support/pen'
import { World } from '../../support/world'

const world = new World({ ranks: 4, steps: 20, pipeline: 2, tracedEvery: 10 })
const fine = gridOf(world, { bucketSteps: 1 })
const coarse = gridOf(world, { bucketSteps: 4 })
const place = (rank: number) => ({ rank, node: `node-${rank >> 1}`, device: '', stage: world.stageOf(rank), replica: rank % 2, role: '' })

describe('the window', () => {
  it('gives each step one unit of the step axis, and its seconds on the time axis', () => {
    expect(extent(fine, 'steps')).toEqual({ from: 1, to: 21 })
    expect(extent(coarse, 'steps')).toEqual({ from: 1, to: 21 })
    expect(extent(fine, 'time').from).toBe(0)
    expect(extent(fine, 'time').to).toBeCloseTo(19.7, 0)
    const at = span(fine, 'steps', 0, 5)
    expect(at.from).toBe(5)
    expect(at.to).toBeCloseTo(6, 1)
    expect(span(coarse, 'steps', 0, 1)).toEqual({ from: 4, to: 8 })
  })

  it('finds the buckets in view, those cut by its edges among them', () => {
    expect(visibleBuckets(fine, 'steps', { from: 3.5, to: 6 })).toEqual([3, 6])
    expect(visibleBuckets(coarse, 'steps', { from: 3.5, to: 6 })).toEqual([0, 2])
    expect(visibleBuckets(fine, 'time', { from: 2.5, to: 4.1 })).toEqual([3, 6])
    expect(visibleBuckets(fine, 'time', { from: 500, to: 600 })).toEqual([1, 1])
  })

  it('turns steps into either axis and back', () => {
    expect(windowOfSteps(fine, 'steps', { first: 3, last: 5 })).toEqual({ from: 3, to: 6 })
    for (const grid of [fine, coarse]) {
      const window = windowOfSteps(grid, 'time', { first: 8, last: 11 })
      expect(stepsOf(grid, 'time', { from: window.from + 1e-3, to: window.to - 1e-3 })).toEqual({ first: 8, last: 11 })
    }
    expect(stepsOf(fine, 'steps', { from: -5, to: 4 })).toEqual({ first: 1, last: 3 })
    expect(stepsOf(fine, 'steps', { from: 30, to: 40 })).toBeNull()
  })

  it('zooms around a point and stays inside the limits', () => {
    const limits = { from: 0, to: 100 }
    expect(zoom({ from: 0, to: 40 }, 0.5, 10, limits, 2)).toEqual({ from: 5, to: 25 })
    expect(zoom({ from: 0, to: 40 }, 100, 10, limits, 2)).toEqual(limits)
    expect(zoom({ from: 0, to: 4 }, 0.01, 2, limits, 2)).toEqual({ from: 1, to: 3 })
    expect(pan({ from: 90, to: 100 }, 50, limits)).toEqual({ from: 90, to: 100 })
    expect(fit({ from: -5, to: 5 }, limits)).toEqual({ from: 0, to: 10 })
  })
})

describe('the bars of a row', () => {
  it('are its steps with their shares when there is room', () => {
    const segments = rowSegments(fine, 'steps', 1, { from: 1, to: 21 }, 2000)
    const { compute, duration } = world.values(1, 2)
    expect(segments.count).toBe(20)
    expect(segments.from[1]).toBeCloseTo(100)
    expect(segments.compute[1]).toBeCloseTo(compute / duration, 2)
  })

  it('are put together when there is none, and lose no time', () => {
    const segments = rowSegments(fine, 'steps', 0, { from: 1, to: 21 }, 10, 1)
    expect(segments.count).toBeLessThanOrEqual(10)
    expect(segments.to[segments.count - 1]).toBeCloseTo(10, 0)
    expect(segments.compute[0] + segments.wait[0] + segments.host[0]).toBeLessThanOrEqual(1 + 1e-6)
  })

  it('leave a gap where a rank has told nothing', () => {
    const gappy = gridOf(world, { bucketSteps: 1 })
    gappy.duration[gappy.cell(3, 1)] = NaN
    expect(rowSegments(gappy, 'steps', 1, { from: 2, to: 5 }, 300).count).toBe(2)
  })
})

describe('rows and what is under the pointer', () => {
  const groups = groupRows(fine, place, 'replica', () => true)
  const layout = layoutRows(fine.ranks, groups, [], 400)

  it('are stacked by group without overlap', () => {
    expect(layout.rows.map(({ rank }) => rank)).toEqual([0, 2, 1, 3])
    for (let i = 1; i < layout.rows.length; i += 1) expect(layout.rows[i].y).toBeGreaterThanOrEqual(layout.rows[i - 1].y + layout.rows[i - 1].height)
    expect([layout.dense, layout.height <= 400]).toEqual([false, true])
  })

  it('are found by place', () => {
    const found = hit(fine, layout, 'steps', { from: 1, to: 21 }, 2000, 450, layout.rows[1].y + 2)
    expect([found?.row.rank, found?.bucket]).toEqual([2, 5])
    expect(hit(fine, layout, 'steps', { from: 1, to: 21 }, 2000, 450, 2)).toBeNull()
    expect([stepWithin(coarse, 'steps', 1, 6.5), stepWithin(coarse, 'steps', 5, 24)]).toEqual([6, 20])
    for (const row of layout.rows) expect(rowAt(layout, row.y)).toBe(row)
  })

  it('become lines of colours when there are many, with those on top that are pinned', () => {
    const many = Array.from({ length: 512 }, (_, i) => i)
    const all = [{ key: '', grouping: 'none' as const, rows: many }]
    const dense = layoutRows(many, all, [300], 700)
    expect([dense.dense, dense.rows[0].rank, dense.rows[0].place, dense.rows[1].place]).toEqual([true, 300, -1, 0])
    expect(dense.rows[1].height).toBeGreaterThanOrEqual(1)
    expect(rowOfRank(dense, 300)?.place).toBe(300)
    expect(rowsBetween(dense.groups[1], dense.groups[1].rows[10].y, dense.groups[1].rows[20].y).map(({ rank }) => rank)).toEqual(many.slice(10, 20))
    expect(layoutRows(many, all, [300], 700, true).dense).toBe(false)
  })

  it('are named at even distances where they are too low for a label each, and who is slow always', () => {
    const rows = Array.from({ length: 64 }, (_, i): Row => ({ rank: i, index: i, place: i, y: 22 + i, height: 1 }))
    expect(labelled(rows, [rows[30]]).map(({ rank }) => rank)).toEqual([30, 0, 56])
    expect(labelled(rows, []).map(({ rank }) => rank)).toEqual([0, 28, 56])
  })
})

describe('a row that is brought into view', () => {
  const row = (y: number): Row => ({ rank: 3, index: 3, place: 3, y, height: 1 })
  const early = { row: row(334), room: 200 }
  const late = { row: row(460), room: 200 }

  it('stands where its last place and room say, whatever came before', () => {
    const once = broughtIntoView({ ...late, scroll: 0, kept: true })
    const first = broughtIntoView({ ...early, scroll: 0, kept: false })
    expect(first).toBe(234)
    // In view already, and by chance: at its lower edge.
    expect(broughtIntoView({ row: row(430), room: 200, scroll: 234, kept: true })).toBe(330)
    expect(broughtIntoView({ ...late, scroll: 234, kept: true })).toBe(once)
    expect(broughtIntoView({ row: row(150), room: 200, scroll: 234, kept: true })).toBe(0)
  })

  it('that is seen stays where a hand has scrolled it to, and comes back when it is not', () => {
    expect(broughtIntoView({ ...late, scroll: 300, kept: false })).toBeNull()
    expect(broughtIntoView({ ...late, scroll: 600, kept: false })).toBe(360)
  })
})

describe('the brush', () => {
  it('has a bar for each bucket: its longest step', () => {
    expect(stepBars(coarse)).toHaveLength(6)
    const longest = Math.max(...[4, 5, 6, 7].flatMap((step) => [0, 1, 2, 3].map((rank) => world.values(rank, step).duration)))
    expect(stepBars(coarse)[1]).toBeCloseTo(longest, 2)
    expect([stepAtShare(fine, 0), stepAtShare(fine, 1), stepAtShare(fine, 0.5)]).toEqual([1, 20, 11])
  })

  it('marks the window and since when somebody is slow', () => {
    const pen = recordingPen()
    paintBrush(pen, { grid: coarse, first: 5, last: 8, since: [7], gutter: 100, width: 300, height: 44, palette: PALETTE, label: 'Step time', typical: String })
    const edges = pen.rects.filter(({ style }) => style === PALETTE.accent)
    expect(edges.map(({ x }) => x)).toEqual([140, 178])
    expect(pen.moves).toContainEqual([155, 0])
  })
})

describe('tracedRange', () => {
  it('takes the traced steps in view, or the nearest', () => {
    expect(tracedRange(fine, 9, 12)).toEqual({ from: 10, to: 11 })
    expect(tracedRange(fine, 14, 16)).toEqual({ from: 11, to: 11 })
    expect(tracedRange(coarse, 1, 20)).toEqual({ from: 1, to: 20 })
  })
  it('is written into the address and read back', () => {
    expect(parseRange(formatRange({ from: 5, to: 10 }))).toEqual({ from: 5, to: 10 })
    for (const text of [undefined, '', '5', '5-x', ['1-2']]) expect(parseRange(text)).toBeNull()
  })
  it('is null when no spans are stored', () => expect(tracedRange(gridOf(new World({ ranks: 1, steps: 9, tracedEvery: 1000, oldestStep: 3 }), {}), 3, 9)).toBeNull())
})
