/** Events and requests of core/generation.py, as JSON has them (docs/generation.md), and what they add up to. */

export interface GenerationCandidate {
  readonly id: number
  readonly text: string
  readonly log_probability: number
}

export interface GenerationToken {
  readonly row: number
  readonly position: number
  readonly id: number
  readonly text: string
  readonly delta?: string
  /** Of a token without text: how the vocabulary spells it. */
  readonly piece?: string
  readonly origin: 'prompt' | 'forced' | 'sampled'
  /** Natural logarithm; null: nobody scored it. */
  readonly log_probability?: number | null
  readonly candidates?: readonly GenerationCandidate[]
}

export type GenerationEvent =
  | { readonly type: 'started'; readonly rows: readonly (readonly GenerationToken[])[] }
  | { readonly type: 'stepped'; readonly step: number; readonly tokens: readonly GenerationToken[] }
  | { readonly type: 'row_finished'; readonly row: number; readonly reason: string; readonly text: string; readonly beams?: readonly GenerationBeam[] }
  | { readonly type: 'state_changed'; readonly state: 'waiting' | 'running' | 'paused' }
  | { readonly type: 'finished'; readonly reason: 'done' | 'cancelled' | 'refused' | 'failed'; readonly message?: string }
  | { readonly type: 'beams_moved'; readonly row: number; readonly beams: readonly GenerationBeam[] }

/** A way on from a prompt; its score is its log-probability by its length. */
export interface GenerationBeam {
  readonly text: string
  readonly log_probability: number
  readonly score: number
  readonly finished: boolean
}

export interface GenerationRow {
  /** By position. */
  readonly tokens: readonly GenerationToken[]
  /** stop, length, cancelled; "" while it goes on. */
  readonly reason: string
  /** Of a beam search, the best first. */
  readonly beams?: readonly GenerationBeam[]
}

export interface Generation {
  readonly id: string
  readonly rows: readonly GenerationRow[]
  readonly state: 'asked' | 'waiting' | 'running' | 'paused' | 'done' | 'cancelled' | 'refused' | 'failed'
  readonly step: number
  readonly message: string
}

export const asked = (id: string): Generation => ({ id, rows: [], state: 'asked', step: 0, message: '' })

export const isUnderWay = ({ state }: Generation): boolean => state === 'asked' || state === 'waiting' || state === 'running' || state === 'paused'

/** What a text of a rank says; null: it is none that is known. */
export function readEvent(text: string): GenerationEvent | null {
  try {
    const event = JSON.parse(text) as GenerationEvent
    return typeof event === 'object' && event !== null && typeof event.type === 'string' ? event : null
  } catch {
    return null
  }
}

/** The generation after an event. What does not fit is left out. */
export function afterEvent(before: Generation, event: GenerationEvent): Generation {
  switch (event.type) {
    case 'started':
      return { ...before, rows: event.rows.map((tokens) => ({ tokens, reason: '' })), state: before.state === 'asked' ? 'running' : before.state }
    case 'stepped':
      return { ...before, step: event.step, rows: withTokens(before.rows, event.tokens) }
    case 'row_finished':
      return { ...before, rows: before.rows.map((row, index) => (index === event.row ? { ...row, reason: event.reason, ...(event.beams?.length ? { beams: event.beams } : {}) } : row)) }
    case 'beams_moved':
      return { ...before, rows: before.rows.map((row, index) => (index === event.row ? { ...row, beams: event.beams } : row)) }
    case 'state_changed':
      return { ...before, state: event.state }
    case 'finished':
      return { ...before, state: event.reason, message: event.message ?? '' }
    default:
      return before
  }
}

function withTokens(rows: readonly GenerationRow[], tokens: readonly GenerationToken[]): GenerationRow[] {
  const next = [...rows]
  for (const token of tokens) {
    const row = next[token.row]
    if (!row || !(token.position >= 0) || token.position > row.tokens.length) continue
    // A scored token of the prompt takes the place of the same one unscored.
    next[token.row] = { ...row, tokens: row.tokens.toSpliced(token.position, 1, token) }
  }
  return next
}

/** What a token adds to its text, so that white space is seen. */
export const visible = (text: string): string => text.replaceAll('\n', '⏎').replaceAll('\t', '⇥')

/** A token by itself: spaces are seen, too. */
export const spelled = (text: string): string => visible(text).replaceAll(' ', '␣')

export interface GenerationSettings {
  readonly newTokens: number
  readonly temperature: number
  readonly topK: number
  readonly topP: number
  /** With each token of a row its top-p is multiplied by this, down to the bound. */
  readonly topPDecay: number
  readonly topPBound: number
  readonly seed: number
  readonly candidates: number
  /** Beam search in place of drawing; 0: none. */
  readonly beamWidth: number
  readonly lengthPenalty: number
  readonly stopWords: readonly string[]
  /** Wait for a step before the first token. */
  readonly stepwise: boolean
  /** Put prompts into the tokenizer's chat template. */
  readonly chat: boolean
  /** Begin each prompt with the tokenizer's first token. */
  readonly addBos: boolean
}

export const DEFAULT_SETTINGS: GenerationSettings = { newTokens: 32, temperature: 0.8, topK: 0, topP: 0.95, topPDecay: 1, topPBound: 0, seed: 1, candidates: 10, beamWidth: 0, lengthPenalty: 1, stopWords: [], stepwise: false, chat: false, addBos: false }

/** Text, or ids of tokens. */
export type Prompt = string | readonly number[]

export interface GenerationOrder extends GenerationSettings {
  readonly prompts: readonly Prompt[]
}

export function requestOf(id: string, order: GenerationOrder): Record<string, unknown> {
  const { prompts, newTokens, temperature, topK, topP, topPDecay, topPBound, seed, candidates, beamWidth, lengthPenalty, stopWords, stepwise, chat, addBos } = order
  // A beam search scores its beams alone.
  const how = beamWidth > 0 ? { beam_width: beamWidth, length_penalty: lengthPenalty } : { top_candidates: candidates, prompt_log_probabilities: true }
  return {
    type: 'request', id, prompts, max_new_tokens: newTokens, seed, paused: stepwise, ...how, ...(stopWords.length ? { stop_words: stopWords } : {}), ...(chat ? { chat } : {}), ...(addBos ? { add_bos: addBos } : {}),
    sampling: { temperature, top_k: topK, top_p: topP, ...(topPDecay < 1 ? { top_p_decay: topPDecay, top_p_bound: Math.min(topPBound, topP) } : {}) },
  }
}

/** Another way on from a row: its tokens up to a place, then another one. Later draws are the row's own. */
export function branchOf(settings: GenerationSettings, row: GenerationRow, number: number, position: number, id: number): GenerationOrder {
  return { ...settings, beamWidth: 0, chat: false, addBos: false, seed: settings.seed + number, prompts: [[...row.tokens.slice(0, position).map((token) => token.id), id]] }
}

/**
 * The shares of candidates at another temperature and top-k, among themselves: log-probabilities are those of the model,
 * at temperature 1, so that what is left over is not known to them. Temperature 0 takes the likeliest.
 */
export function reweighted(candidates: readonly GenerationCandidate[], temperature: number, topK: number): number[] {
  const among = topK > 0 ? topK : candidates.length
  const best = Math.max(...candidates.map(({ log_probability: log }) => log))
  const order = candidates.map((_, index) => index).sort((a, b) => candidates[b].log_probability - candidates[a].log_probability || a - b)
  const weights = candidates.map(() => 0)
  order.slice(0, temperature > 0 ? among : 1).forEach((index) => (weights[index] = temperature > 0 ? Math.exp((candidates[index].log_probability - best) / temperature) : 1))
  const sum = weights.reduce((a, b) => a + b, 0)
  return weights.map((weight) => (sum ? weight / sum : 0))
}

/** One prompt a line; "\n" in it is a line's end. */
export const promptsOf = (text: string): string[] => text.split('\n').filter((line) => line !== '').map((line) => line.replaceAll('\\n', '\n'))
