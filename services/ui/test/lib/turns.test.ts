import { describe, expect, it } from 'vitest'
import { inTurns } from '@/lib/turns'

const ITEMS = Array.from({ length: 10 }, (_, i) => i)

describe('work in turns', () => {
  it('is done in order, is told of after each turn, and others come between', async () => {
    const done: (number | string)[] = []
    const all = inTurns(ITEMS, (one) => done.push(one), () => done.push('turn'), { signal: new AbortController().signal, most: 4 })
    setTimeout(() => done.push('other'), 0)
    await all
    expect(done.filter((one) => one !== 'turn' && one !== 'other')).toEqual(ITEMS)
    expect(done.filter((one) => one === 'turn').length).toBeGreaterThanOrEqual(3)
    expect(done.at(-1)).toBe('turn')
  })

  it('is left where it is no longer wanted', async () => {
    const [done, stop] = [[] as number[], new AbortController()]
    await inTurns(ITEMS, (one) => done.push(one), () => stop.abort(), { signal: stop.signal, most: 3 })
    expect(done.length).toBeLessThanOrEqual(3)
  })

  it('of nothing ends at once', async () => {
    let turns = 0
    await inTurns([], () => expect.unreachable(), () => (turns += 1), { signal: new AbortController().signal })
    expect(turns).toBe(1)
  })
})
