import { describe, expect, it } from 'vitest'
import type { GenerationEvent, GenerationToken } from '@/lib/generation'
import { afterEvent, asked, branchOf, DEFAULT_SETTINGS, isUnderWay, promptsOf, readEvent, requestOf, reweighted, spelled } from '@/lib/generation'
import { generationQuery, MOST_CHARACTERS, readGeneration } from '@/lib/generationAddress'
import { GrowingRows } from '@/lib/growingRows'
import { unpack } from '@/scope/frame'
import type { Picture } from '@/scope/picture'
import { pictureOf } from '@/scope/picture'
import { packFrame } from '../support/scopeFrames'

const token = (row: number, position: number, text: string, more: Partial<GenerationToken> = {}): GenerationToken => ({ row, position, id: 1, text, origin: 'sampled', ...more })
const told = (...events: GenerationEvent[]): ReturnType<typeof asked> => events.reduce(afterEvent, asked('a'))
const STARTED: GenerationEvent = { type: 'started', rows: [[token(0, 0, 'A', { origin: 'prompt' })], [token(1, 0, 'B', { origin: 'prompt' }), token(1, 1, 'C', { origin: 'prompt' })]] }

describe('a generation', () => {
  it('grows by what each step drew, in every row', () => {
    const after = told(STARTED, { type: 'stepped', step: 1, tokens: [token(0, 1, 'x'), token(1, 2, 'y')] }, { type: 'stepped', step: 2, tokens: [token(0, 2, 'z')] })
    expect(after.rows.map(({ tokens }) => tokens.map(({ text }) => text).join(''))).toEqual(['Axz', 'BCy'])
    expect([after.state, after.step]).toEqual(['running', 2])
  })

  it('takes a prompt’s scored token in place of the same one unscored', () => {
    const after = told(STARTED, { type: 'stepped', step: 1, tokens: [token(1, 1, 'C', { origin: 'prompt', log_probability: -1 })] })
    expect(after.rows[1].tokens.map(({ log_probability }) => log_probability)).toEqual([undefined, -1])
  })

  it('leaves out what fits nowhere', () => {
    const after = told(STARTED, { type: 'stepped', step: 1, tokens: [token(7, 1, 'x'), token(0, 9, 'x'), token(0, -1, 'x')] })
    expect(after.rows.map(({ tokens }) => tokens.length)).toEqual([1, 2])
    expect([readEvent('{'), readEvent('null'), readEvent('{"type": 3}')]).toEqual([null, null, null])
    expect(afterEvent(after, { type: 'newer' } as never)).toBe(after)
  })

  it('ends for a reason', () => {
    const after = told(STARTED, { type: 'row_finished', row: 0, reason: 'stop', text: '' }, { type: 'finished', reason: 'failed', message: 'out of memory' })
    expect([after.rows[0].reason, after.state, after.message, isUnderWay(after)]).toEqual(['stop', 'failed', 'out of memory', false])
    expect(isUnderWay(told({ type: 'state_changed', state: 'paused' }))).toBe(true)
  })

  it('is asked for with the fields of core/generation.py', () => {
    const settings = { ...DEFAULT_SETTINGS, prompts: ['A'], newTokens: 4, temperature: 0, topK: 2, topP: 0.9, seed: 3, candidates: 5, stepwise: true }
    expect(requestOf('a', settings)).toEqual({ type: 'request', id: 'a', prompts: ['A'], max_new_tokens: 4, seed: 3, top_candidates: 5, paused: true, prompt_log_probabilities: true, sampling: { temperature: 0, top_k: 2, top_p: 0.9 } })
    const beams = requestOf('b', { ...settings, beamWidth: 3, lengthPenalty: 0.5, stopWords: ['.'], topPDecay: 0.9, topPBound: 1 })
    expect(beams).toMatchObject({ beam_width: 3, length_penalty: 0.5, stop_words: ['.'], sampling: { top_p_decay: 0.9, top_p_bound: 0.9 } })
    expect(Object.keys(beams)).not.toContain('top_candidates')
    expect(promptsOf('one\n\ntwo\\nlines\n')).toEqual(['one', 'two\nlines'])
  })
})

describe('what is asked, in the address', () => {
  it('comes back as it was, and what is usual is left out', () => {
    const settings = { ...DEFAULT_SETTINGS, temperature: 0, topPDecay: 0.5, beamWidth: 2, stopWords: ['a,b', '\n', '\\'], stepwise: true, chat: true, addBos: true }
    const query = generationQuery({ typed: 'The king\nA river', settings })
    expect(readGeneration(JSON.parse(JSON.stringify(query)) as never)).toEqual({ typed: 'The king\nA river', settings })
    expect(Object.values(generationQuery({ typed: '', settings: DEFAULT_SETTINGS })).every((value) => value === undefined)).toBe(true)
  })

  it('is what is usual where it makes no sense, and leaves out what is too long', () => {
    expect(readGeneration({ temperature: '-1', top_k: 'NaN', seed: '9'.repeat(400), q: ['a', 'b'] as never }).settings).toEqual(DEFAULT_SETTINGS)
    expect(generationQuery({ typed: 'x'.repeat(MOST_CHARACTERS + 1), settings: DEFAULT_SETTINGS }).q).toBeUndefined()
  })
})

describe('candidates at another temperature', () => {
  const candidates = [0.5, 0.3, 0.1].map((share, id) => ({ id, text: String(id), log_probability: Math.log(share) }))
  const near = (found: number[], wanted: number[]): void => found.forEach((share, at) => expect(share).toBeCloseTo(wanted[at], 6))

  it('share what they have among them', () => {
    near(reweighted(candidates, 1, 0), [5 / 9, 3 / 9, 1 / 9])
    near(reweighted(candidates, 0.5, 2), [25 / 34, 9 / 34, 0])
    near(reweighted(candidates, 0, 0), [1, 0, 0])
    expect(reweighted([], 1, 0)).toEqual([])
  })
})

describe('a branch', () => {
  it('has the row’s ids up to the place and another one, and the row’s own draws', () => {
    const tokens = [7, 8, 9].map((id, position) => ({ row: 1, position, id, text: '', origin: 'prompt' as const }))
    expect(branchOf({ ...DEFAULT_SETTINGS, seed: 5, beamWidth: 2 }, { tokens, reason: '' }, 1, 2, 42)).toMatchObject({ prompts: [[7, 8, 42]], seed: 6, beamWidth: 0 })
  })
})

describe('rows over the steps of a generation', () => {
  const frame = (step: number, dims: [number, number], values: number[]): Promise<Picture> =>
    pictureOf(unpack(packFrame({ subscription: 1, sequence: step, step, dims, values: Float32Array.from(values), exact: true }).buffer))

  it('are put together by their positions, and what was not there is masked', async () => {
    const rows = new GrowingRows()
    rows.take(await frame(1, [2, 2], [1, 2, 3, 4]))
    const last = await frame(2, [1, 3], [5, 6, 7])
    rows.take(last)
    const picture = rows.pictureLike(last)
    expect(picture.frame.dims).toEqual([3, 3])
    expect([...picture.values]).toEqual([1, 2, NaN, 3, 4, NaN, 5, 6, 7])
    expect([...picture.states]).toEqual([0, 0, 2, 0, 0, 2, 0, 0, 0])
    expect([picture.frame.low, picture.frame.high, picture.frame.step]).toEqual([1, 7, 2])
  })

  it('keep no frame whose rows begin before the text', async () => {
    expect(new GrowingRows().take(await frame(0, [3, 1], [1, 2, 3]))).toBe(false)
  })
})

it('spells a token so that white space is seen', () => expect(spelled(' a\n')).toBe('␣a⏎'))
