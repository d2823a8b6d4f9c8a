import { describe, expect, it } from 'vitest'
import { spanAt, stackLanes } from '@/draw/inside/paint'
import { partOf, readTrace } from '@/draw/inside/spans'
import { chromeTrace } from '../support/spans'
import { World } from '../support/world'

const world = new World({ ranks: 4, steps: 20, pipeline: 2 })
const spans = readTrace(JSON.stringify(chromeTrace(world, 10, '')))

describe('the spans of a step', () => {
  it('are lanes of ranks, nested by time', () => {
    expect(spans.lanes.map(({ rank, label, depths }) => [rank, label, depths])).toEqual([0, 1, 2, 3].map((rank) => [rank, 'compute', 2]))
    const [step, forward] = spans.lanes[0].spans
    expect([step.name, step.depth, forward.name, forward.depth, forward.microbatch]).toEqual(['step', 0, 'forward', 1, 0])
    expect(spans.end).toBeCloseTo(Math.max(...[0, 1, 2, 3].map((rank) => world.values(rank, 10).duration)))
  })

  it('are joined from stage to stage', () => {
    expect(spans.arrows).toHaveLength(2 * 4)
    expect(spans.arrows[0].from.lane).toBe(0)
    expect(spans.arrows[0].to.lane).toBe(2)
    expect(spans.arrows[0].to.at).toBeGreaterThan(spans.arrows[0].from.at)
  })

  it('are found under the pointer, the innermost first', () => {
    const { boxes } = stackLanes(spans.lanes)
    expect(spanAt(boxes, 0.01, boxes[0].y + 2)?.name).toBe('step')
    expect(spanAt(boxes, 0.01, boxes[0].y + 20)?.name).toBe('forward')
    expect(spanAt(boxes, 0.01, boxes[3].y + 500)).toBeNull()
  })

  it('grow where there is room, within what reads well', () => {
    const lines = [0, 300, 10_000].map((room) => stackLanes(spans.lanes, room))
    expect(lines.map(({ boxes: [{ line }] }) => line)).toEqual([18, 33, 34])
    expect(lines[1].height).toBeLessThanOrEqual(300)
    expect(spanAt(lines[1].boxes, 0.01, lines[1].boxes[0].y + 20)?.name).toBe('step')
  })

  it('are told apart by what they are', () => {
    expect(['forward', 'backward', 'all_reduce', 'forward_send', 'data', 'step', 'mlp_fc1'].map(partOf)).toEqual(['compute', 'backward', 'wait', 'wait', 'host', 'frame', 'compute'])
  })

  it('of a backward rank have a line of the slots that it holds', () => {
    const take = (at: number, args: object) => ({ ph: 'X', name: 'wait_input', pid: 1, tid: 1, ts: at, dur: 1, args })
    const traceEvents = [take(20, { microbatch: 1, tokens: 3 }), take(10, { microbatch: 0 }), { ph: 'X', name: 'forward', pid: 0, tid: 1, ts: 0, dur: 5 }]
    const { lanes } = readTrace(JSON.stringify({ traceEvents }))
    expect(lanes.map(({ lines }) => lines)).toEqual([[], [{ of: 'slots', held: [{ at: 10e-6, count: 0 }, { at: 20e-6, count: 3 }], cap: null }]])
    const [without, held] = stackLanes(lanes).boxes
    expect(held.height).toBeGreaterThan(without.height)
    expect(partOf('wait_weights')).toBe('wait')
  })

  it('of a stage that chooses have a line of the activations that it holds, and their cap', () => {
    const decide = (pid: number, at: number, args: object) => ({ ph: 'X', name: 'decide', pid, tid: 1, ts: at, dur: 1, args })
    const traceEvents = [decide(0, 10, { length_squares: 5 }), decide(0, 20, { tokens: 3, length_squares: 5 }), decide(1, 10, { tokens: 2 })]
    const { lanes } = readTrace(JSON.stringify({ traceEvents }))
    expect(lanes[0].lines).toEqual([{ of: 'activations', held: [{ at: 10e-6, count: 0 }, { at: 20e-6, count: 3 }], cap: 5 }])
    expect(lanes[1].lines.map(({ cap }) => cap)).toEqual([null])
  })

  it('of a stage that limits what is under way have a line of it below, and its cap', () => {
    const tell = (name: string, at: number, args: object) => ({ ph: 'X', name, pid: 0, tid: 1, ts: at, dur: 1, args })
    const told = [tell('in_flight', 11, { tokens: 4096, length_squares: 8192 }), tell('decide', 10, { length_squares: 5 })]
    const [both] = readTrace(JSON.stringify({ traceEvents: told })).lanes
    const [alone] = readTrace(JSON.stringify({ traceEvents: told.slice(1) })).lanes
    expect(both.lines.map(({ of, cap }) => [of, cap])).toEqual([['activations', 5], ['bytes', 8192]])
    expect(both.lines[1].held).toEqual([{ at: 11e-6, count: 4096 }])
    const [high, low] = [both, alone].map((lane) => stackLanes([lane]).boxes[0].height)
    expect(high).toBeGreaterThan(low)
  })

  it('can only be read from a trace', () => {
    expect(() => readTrace('{}')).toThrow(SyntaxError)
    expect(() => readTrace('no')).toThrow(SyntaxError)
    expect(readTrace('{"traceEvents":[]}')).toEqual({ lanes: [], arrows: [], end: 0 })
  })
})
