import { parseRanks } from '@/draw/timeline/rows'
import type { World } from './world'

const MICROBATCHES = 4

/** The spans of a step in Chrome's format: forwards and backwards, then the wait for the others, with arrows between stages. */
export function chromeTrace(world: World, step: number, ranks: string): object {
  const chosen = ranks ? (parseRanks(ranks) ?? []).flatMap(([low, high]) => Array.from({ length: high - low + 1 }, (_, i) => low + i)) : Array.from({ length: world.ranks }, (_, rank) => rank)
  const events: object[] = []
  let flow = 0
  for (const rank of chosen.filter((one) => one < world.ranks)) {
    const { compute, wait, duration } = world.values(rank, step)
    const us = (seconds: number): number => seconds * 1e6
    const slice = (name: string, at: number, length: number, args: object = {}): void => void events.push({ ph: 'X', name, pid: rank, tid: 1, ts: us(at), dur: us(length), args: { step, ...args } })
    events.push({ ph: 'M', name: 'thread_name', pid: rank, tid: 1, args: { name: 'compute' } })
    slice('step', 0, duration)
    const length = compute / (2 * MICROBATCHES)
    for (let i = 0; i < MICROBATCHES; i += 1) {
      slice('forward', 2 * i * length, length, { microbatch: i })
      slice('backward', (2 * i + 1) * length, length, { microbatch: i })
      const next = rank + Math.ceil(world.ranks / world.pipeline)
      if (!chosen.includes(next) || next >= world.ranks) continue
      flow += 1
      events.push({ ph: 's', name: 'match', cat: 'match', id: flow, pid: rank, tid: 1, ts: us((2 * i + 1) * length) })
      events.push({ ph: 'f', bp: 'e', name: 'match', cat: 'match', id: flow, pid: next, tid: 1, ts: us((2 * i + 1.5) * length) })
    }
    slice('all_reduce', compute, wait)
  }
  return { displayTimeUnit: 'ms', traceEvents: events }
}
