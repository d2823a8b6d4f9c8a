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
  readonly origin: 'prompt' | 'forced' | 'sampled'
  /** Natural logarithm; null: nobody scored it. */
  readonly log_probability?: number | null
  readonly candidates?: readonly GenerationCandidate[]
}

export type GenerationEvent =
  | { readonly type: 'started'; readonly rows: readonly (readonly GenerationToken[])[] }
  | { readonly type: 'stepped'; readonly step: number; readonly tokens: readonly GenerationToken[] }
  | { readonly type: 'row_finished'; readonly row: number; readonly reason: string; readonly text: string }
  | { readonly type: 'state_changed'; readonly state: 'waiting' | 'running' | 'paused' }
  | { readonly type: 'finished'; readonly reason: 'done' | 'cancelled' | 'refused' | 'failed'; readonly message?: string }
  | { readonly type: 'beams_moved' }

export interface GenerationRow {
  /** By position. */
  readonly tokens: readonly GenerationToken[]
  /** stop, length, cancelled; "" while it goes on. */
  readonly reason: string
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
      return { ...before, rows: before.rows.map((row, index) => (index === event.row ? { ...row, reason: event.reason } : row)) }
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
  readonly prompts: readonly string[]
  readonly newTokens: number
  readonly temperature: number
  readonly topK: number
  readonly topP: number
  readonly seed: number
  readonly candidates: number
  /** Wait for a step before the first token. */
  readonly stepwise: boolean
}

export function requestOf(id: string, settings: GenerationSettings): Record<string, unknown> {
  const { prompts, newTokens, temperature, topK, topP, seed, candidates, stepwise } = settings
  return {
    type: 'request', id, prompts, max_new_tokens: newTokens, seed, top_candidates: candidates, paused: stepwise, prompt_log_probabilities: true,
    sampling: { temperature, top_k: topK, top_p: topP },
  }
}

/** One prompt a line; "\n" in it is a line's end. */
export const promptsOf = (text: string): string[] => text.split('\n').filter((line) => line !== '').map((line) => line.replaceAll('\\n', '\n'))
