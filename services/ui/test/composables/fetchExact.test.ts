import { describe, expect, it, vi } from 'vitest'
import { fetchExact, placeOf } from '@/composables/fetchExact'
import type { Sink } from '@/composables/useScope'
import type { Subscribe } from '@/scope/messages'
import type { Picture } from '@/scope/picture'

const picture = (layer: number, step: number, request = '', missingShards = 0): Picture => ({ frame: { layer, step, missingShards }, request }) as unknown as Picture

/** What the gateway does with each subscription, and which were ended. */
function gateway(...answers: ((sink: Sink) => void)[]): { subscribe: (asked: Omit<Subscribe, 'id'>, sink: Sink) => { painted: () => void; end: () => void }; asked: Omit<Subscribe, 'id'>[]; ended: () => number } {
  const asked: Omit<Subscribe, 'id'>[] = []
  let ended = 0
  return {
    asked,
    ended: () => ended,
    subscribe: (wanted, sink) => {
      const answer = answers[asked.push(wanted) - 1]
      queueMicrotask(() => answer(sink))
      return { painted: () => undefined, end: () => (ended += 1) }
    },
  }
}
const refuse = (sink: Sink): void => sink.refused({ id: 1, code: 'too_large' })
const SHOWN = { expression: 'layers[*].resid_post', width: 64 }

describe('exact values', () => {
  it('are asked for as floats, and end when all places are there', async () => {
    const scope = gateway((sink) => [picture(0, 7), picture(1, 7)].forEach(sink.picture))
    const found = await fetchExact(scope, SHOWN, new Set(['0', '1']))
    expect([...found.keys()]).toEqual(['0', '1'])
    expect(scope.asked).toEqual([{ ...SHOWN, quantizer: 'f32', credits: 4096 }])
    expect(scope.ended()).toBe(1)
  })

  it('come in half as many bytes where a frame has no room for all', async () => {
    const scope = gateway(refuse, (sink) => sink.picture(picture(0, 7)))
    expect((await fetchExact(scope, SHOWN, new Set(['0']))).size).toBe(1)
    expect(scope.asked.map(({ quantizer }) => quantizer)).toEqual(['f32', 'f16'])
  })

  it('are none where nobody has them', async () => {
    expect((await fetchExact(gateway(refuse, refuse), SHOWN, new Set(['0']))).size).toBe(0)
  })

  it('are those that came, after a while; a picture without all its shards is none', async () => {
    vi.useFakeTimers()
    const waiting = fetchExact(gateway((sink) => [picture(0, 7), picture(1, 7, '', 1)].forEach(sink.picture)), SHOWN, new Set(['0', '1']))
    await vi.runAllTimersAsync()
    expect([...(await waiting).keys()]).toEqual(['0'])
    vi.useRealTimers()
  })

  it('of a generation are of each step', () => {
    expect([placeOf(picture(2, 9, 'r')), placeOf(picture(2, 9))]).toEqual(['2 9', '2'])
  })
})
