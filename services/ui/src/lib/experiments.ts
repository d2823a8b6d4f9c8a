import type { Attribution, Comparison, InputAttribution, Surprisal, SweptPoint, Trace } from '@/api/experiments'
import type { components } from '@/api/schema'

export const CHANGES = ['zero', 'scale', 'noise1', 'noise2', 'constant', 'patch', 'mean', 'steer'] as const
export type Change = (typeof CHANGES)[number]
/** Changes with values of another prompt: for a comparison alone. */
export const FROM_PROMPT: ReadonlySet<Change> = new Set<Change>(['patch', 'mean', 'steer'])
/** Changes that have no strength. */
export const WITHOUT_STRENGTH: ReadonlySet<Change> = new Set<Change>(['zero', 'patch', 'mean'])
export const KINDS = ['surprisal', 'trace', 'compare', 'sweep', 'attribution', 'gradients'] as const
export type Kind = (typeof KINDS)[number]

/** What is typed; each kind of experiment takes the fields that it needs. */
export interface Asked {
  readonly kind: Kind
  readonly prompt: string
  readonly corrupted: string
  readonly answer: string
  readonly against: string
  readonly site: string
  readonly byHead: boolean
  readonly change: Change
  /** Prompts whose values a change takes. */
  readonly source: string
  readonly baseline: string
  readonly sourceTokens: string
  readonly layers: string
  readonly heads: string
  readonly tokens: string
  readonly coefficient: number
  readonly coefficients: string
  readonly seeds: number
  readonly newTokens: number
  readonly free: boolean
  readonly reason: string
}

export const DEFAULTS: Asked = { kind: 'surprisal', prompt: '', corrupted: '', answer: '', against: '', site: 'resid_post', byHead: false, change: 'zero', source: '', baseline: '', sourceTokens: '', layers: '', heads: '', tokens: '', coefficient: 1, coefficients: '0.1, 0.3, 1', seeds: 3, newTokens: 16, free: false, reason: '' }
export const SITES = ['resid_post', 'resid_mid', 'resid_pre', 'attn.out', 'mlp.out', 'attn.context', 'attn.q', 'attn.k', 'attn.v', 'attn.probs', 'mlp.act'] as const
/** Experiments on what follows the prompt. */
export const HAS_ANSWER: ReadonlySet<Kind> = new Set<Kind>(['trace', 'attribution', 'gradients'])
/** Sites whose values belong to heads. */
export const HAS_HEADS = new Set(['attn.context', 'attn.q', 'attn.probs'])

export type Found =
  | { readonly kind: 'surprisal'; readonly prompts: readonly Surprisal[] }
  | { readonly kind: 'trace'; readonly trace: Trace; readonly byHead: boolean }
  | { readonly kind: 'compare'; readonly comparison: Comparison; readonly free: boolean }
  | { readonly kind: 'sweep'; readonly points: readonly SweptPoint[] }
  | { readonly kind: 'gradients'; readonly input: InputAttribution }
  | { readonly kind: 'attribution'; readonly attribution: Attribution }

/** Which field is missing; null: none. */
export function missing(asked: Asked): 'prompt' | 'corrupted' | 'answer' | 'coefficients' | 'reason' | 'source' | 'baseline' | null {
  if (!asked.prompt) return 'prompt'
  if (asked.kind === 'trace' && !asked.corrupted) return 'corrupted'
  if (HAS_ANSWER.has(asked.kind) && !asked.answer) return 'answer'
  if (asked.kind === 'sweep' && !numbersOf(asked.coefficients).length) return 'coefficients'
  if (asked.kind === 'compare' && FROM_PROMPT.has(asked.change) && !asked.source) return 'source'
  if (asked.kind === 'compare' && asked.change === 'steer' && !asked.baseline) return 'baseline'
  if ((asked.kind === 'compare' || asked.kind === 'sweep') && !asked.reason.trim()) return 'reason'
  return null
}

export const numbersOf = (text: string): number[] => text.split(/[\s,;]+/).filter(Boolean).map(Number).filter(Number.isFinite)

export function interventionOf(asked: Asked): components['schemas']['ScopeIntervention'] {
  const { change, site, layers, heads, tokens, coefficient, sourceTokens } = asked
  return { place: 'calculation', kind: change, site, layers, heads: HAS_HEADS.has(site) ? heads : '', tokens, coefficient: WITHOUT_STRENGTH.has(change) ? 0 : coefficient, channels: '', steps: '', rows: '', bits: '', with_heads: '', redraw: false, off: false, source: '', source_tokens: change === 'patch' ? sourceTokens : '', baseline: '', vector: [] }
}

/** The cell that is farthest from nothing: where a change shows first. */
export function farthest(cells: readonly (readonly (number | null)[])[]): { row: number; column: number } | null {
  let found: { row: number; column: number } | null = null
  let most = 0
  cells.forEach((line, row) => line.forEach((value, column) => {
    if (value === null || Math.abs(value) <= most) return
    most = Math.abs(value)
    found = { row, column }
  }))
  return found
}

/** The first layer in which anything differs by more than rounding does; null: none. */
export function firstDifferent(layers: readonly number[], relative: readonly (readonly (number | null)[])[], above = 1e-4): number | null {
  const index = relative.findIndex((line) => line.some((value) => value !== null && value > above))
  return index < 0 ? null : layers[index]
}
