import { describe, expect, it } from 'vitest'
import { stepBars } from '@/draw/timeline/brush'
import { hit } from '@/draw/timeline/hit'
import { layoutRows } from '@/draw/timeline/layout'
import type { TimelineColumns } from '@/draw/timeline/model'
import { buildModel, EMPTY_COLUMNS, mergeColumns } from '@/draw/timeline/model'
import { computeRatios } from '@/draw/timeline/peers'
import { rowSegments } from '@/draw/timeline/segments'
import { extent, fit, pan, span, visibleSteps, windowOfSteps, zoom } from '@/draw/timeline/view'
import { formatRange, parseRange, tracedRange } from '@/lib/traced'

/** Steps of one second; rank 1 computes 0.8 s of it, the others 0.6 s; wait is the rest. */
function columns(steps: number[], ranks: number[], origin = 1000): TimelineColumns {
  const rows = steps.flatMap((step) => ranks.map((rank) => ({ step, rank })))
  const compute = rows.map(({ rank }) => (rank === 1 ? 0.8 : 0.6))
  return {
    origin_unix_seconds: origin,
    step: Float64Array.from(rows, ({ step }) => step),
    rank: Uint32Array.from(rows, ({ rank }) => rank),
    start_seconds: Float64Array.from(rows, ({ step }) => step - steps[0]),
    duration_seconds: Float64Array.from(rows, () => 1),
    compute_seconds: Float64Array.from(compute),
    wait_seconds: Float64Array.from(compute, (seconds) => 1 - seconds),
    host_seconds: Float64Array.from(rows, () => 0),
    traced: Uint8Array.from(rows, ({ step }) => Number(step % 5 === 0)),
  }
}
/** These rows of a table, in this order. */
function withRows(table: TimelineColumns, rows: number[]): TimelineColumns {
  const of = (values: Float64Array): Float64Array => Float64Array.from(rows, (row) => values[row])
  return {
    origin_unix_seconds: table.origin_unix_seconds,
    step: of(table.step),
    rank: Uint32Array.from(rows, (row) => table.rank[row]),
    start_seconds: of(table.start_seconds),
    duration_seconds: of(table.duration_seconds),
    compute_seconds: of(table.compute_seconds),
    wait_seconds: of(table.wait_seconds),
    host_seconds: of(table.host_seconds),
    traced: Uint8Array.from(rows, (row) => table.traced[row]),
  }
}

const model = (steps = 10, ranks = [0, 1]) => buildModel(columns(Array.from({ length: steps }, (_, i) => i + 1), ranks))

describe('buildModel', () => {
  it('lays the rows out as rank × step, whatever their order', () => {
    const one = columns([1, 2], [0, 1])
    const shuffled = withRows(one, Array.from(one.step.keys()).reverse())
    expect(buildModel(shuffled)).toEqual(buildModel(one))
    expect([...buildModel(one).compute]).toEqual([0.6, 0.6, 0.8, 0.8])
  })

  it('leaves NaN where a rank has not reported', () => {
    const partial = mergeColumns(columns([1], [0, 1]), { ...columns([2], [0]), origin_unix_seconds: 1001 }, 10)
    const built = buildModel(partial)
    expect(built.duration[1]).toBe(1)
    expect(built.duration[3]).toBeNaN()
  })

  it('takes an empty answer', () => {
    const empty = buildModel(EMPTY_COLUMNS)
    expect(extent(empty, 'time')).toEqual({ from: 0, to: 1 })
    expect(visibleSteps(empty, 'steps', { from: 0, to: 5 })).toEqual([0, 0])
  })
})

describe('mergeColumns', () => {
  it('replaces steps that come again, moves them to the first origin, and keeps the newest', () => {
    const merged = mergeColumns(columns([1, 2, 3], [0], 1000), columns([3, 4], [0], 1002), 3)
    expect([...merged.step]).toEqual([2, 3, 4])
    expect(merged.origin_unix_seconds).toBe(1000)
    expect([...merged.start_seconds]).toEqual([1, 2, 3])
  })

  it('keeps what it has when nothing new came', () => {
    const known = columns([1], [0])
    expect(mergeColumns(known, EMPTY_COLUMNS, 10)).toBe(known)
  })
})

describe('the window', () => {
  it('gives each step one unit of the step axis, and its seconds on the time axis', () => {
    expect(span(model(), 'steps', 0, 4)).toEqual({ from: 5, to: 6 })
    expect(span(model(), 'time', 0, 4)).toEqual({ from: 4, to: 5 })
    expect(extent(model(), 'steps')).toEqual({ from: 1, to: 11 })
    expect(extent(model(), 'time')).toEqual({ from: 0, to: 10 })
  })

  it('finds the steps in view, those cut by its edges among them', () => {
    expect(visibleSteps(model(), 'steps', { from: 3.5, to: 6 })).toEqual([2, 5])
    expect(visibleSteps(model(), 'time', { from: 2.5, to: 5 })).toEqual([2, 5])
  })

  it('turns step numbers into either axis', () => {
    expect(windowOfSteps(model(), 'steps', 3, 5)).toEqual({ from: 3, to: 6 })
    expect(windowOfSteps(model(), 'time', 3, 5)).toEqual({ from: 2, to: 5 })
    expect(windowOfSteps(model(), 'time', 50, 60)).toEqual({ from: 9, to: 10 })
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

describe('rowSegments', () => {
  it('draws each step with its shares when there is room', () => {
    const segments = rowSegments(model(), 'steps', 1, { from: 1, to: 11 }, 1000)
    expect(segments.count).toBe(10)
    expect([segments.from[1], segments.to[1]]).toEqual([100, 200])
    expect(segments.compute[1]).toBeCloseTo(0.8)
    expect(segments.wait[1]).toBeCloseTo(0.2)
  })

  it('puts steps together when there is none, and loses no time', () => {
    const segments = rowSegments(model(1000), 'steps', 0, { from: 1, to: 1001 }, 100, 1)
    expect(segments.count).toBeLessThanOrEqual(100)
    expect(segments.to[segments.count - 1]).toBeCloseTo(100)
    expect(segments.compute[0]).toBeCloseTo(0.6)
  })

  it('never fills more than the bar', () => {
    const odd = columns([1], [0])
    odd.host_seconds = Float64Array.of(0.5)
    const segments = rowSegments(buildModel(odd), 'steps', 0, { from: 1, to: 2 }, 100)
    expect(segments.compute[0] + segments.wait[0] + segments.host[0]).toBeLessThanOrEqual(1)
  })

  it('leaves a gap for a step that was not reported', () => {
    const partial = columns([1, 2, 3], [0, 1])
    const kept = [...partial.step.keys()].filter((i) => !(partial.step[i] === 2 && partial.rank[i] === 1))
    const gappy = withRows(partial, kept)
    const segments = rowSegments(buildModel(gappy), 'steps', 1, { from: 1, to: 4 }, 300)
    expect([...segments.firstStep.subarray(0, segments.count)]).toEqual([1, 3])
  })
})

describe('computeRatios', () => {
  it('compares a rank with the others of its stage', () => {
    const ratios = computeRatios(model(10, [0, 1, 2]), [0, 0, 0], 0, 10)
    expect(ratios[1]).toBeCloseTo(0.8 / 0.6)
    expect(ratios[0]).toBeCloseTo(0.6 / 0.7)
  })

  it('knows nothing of a rank without peers', () => {
    expect(computeRatios(model(), [0, 1], 0, 10)[0]).toBeNaN()
  })
})

describe('layoutRows and hit', () => {
  const layout = layoutRows([0, 1, 2, 3], (rank) => rank % 2, 400)

  it('stacks ranks by stage without overlap', () => {
    expect(layout.rows.map(({ rank }) => rank)).toEqual([0, 2, 1, 3])
    for (let i = 1; i < layout.rows.length; i += 1)
      expect(layout.rows[i].y).toBeGreaterThanOrEqual(layout.rows[i - 1].y + layout.rows[i - 1].height)
    expect(layout.height).toBeLessThanOrEqual(400)
  })

  it('scrolls instead of drawing rows too small to read', () => {
    expect(layoutRows(Array.from({ length: 256 }, (_, i) => i), () => 0, 400).height).toBeGreaterThan(4000)
  })

  it('finds the step under the pointer', () => {
    const found = hit(model(10, [0, 1, 2, 3]), layout, 'steps', { from: 1, to: 11 }, 1000, 450, layout.rows[1].y + 2)
    expect(found?.row.rank).toBe(2)
    expect(found?.stepIndex).toBe(4)
    expect(hit(model(), layout, 'steps', { from: 1, to: 11 }, 1000, 450, 2)).toBeNull()
  })
})

describe('stepBars', () => {
  it('keeps the slowest step of each column', () => {
    const spiky = columns([1, 2, 3, 4], [0])
    spiky.duration_seconds = Float64Array.of(1, 5, 1, 2)
    expect([...stepBars(buildModel(spiky), 2)]).toEqual([5, 2])
    expect([...stepBars(buildModel(spiky), 100)]).toEqual([1, 5, 1, 2])
  })
})

describe('tracedRange', () => {
  it('takes the traced steps in view, or the nearest', () => {
    expect(tracedRange(model(20), 4, 11)).toEqual({ from: 5, to: 10 })
    expect(tracedRange(model(20), 11, 13)).toEqual({ from: 10, to: 10 })
  })
  it('is written into the address and read back', () => {
    expect(parseRange(formatRange({ from: 5, to: 10 }))).toEqual({ from: 5, to: 10 })
    for (const text of [undefined, '', '5', '5-x', ['1-2']]) expect(parseRange(text)).toBeNull()
  })
  it('is null when no spans are stored', () => expect(tracedRange(model(4), 1, 4)).toBeNull())
})
