import type { Perturbation, Site } from '@/scope/messages'

/** What docs/scope.md lists: places, kinds, and what of each a person says. */
export const PLACES = ['storage', 'calculation', 'system'] as const
export type Place = (typeof PLACES)[number]

export const DEFAULT_SITE: Readonly<Record<Place, string>> = { storage: '*.linear_*.weight', calculation: 'mlp.out', system: 'resid_post' }

interface KindForm {
  /** Whether it has a coefficient, and a first one. */
  readonly coefficient?: number
  readonly bits?: boolean
  readonly withHeads?: boolean
  readonly redraw?: boolean
}

export const KINDS: Readonly<Record<string, KindForm>> = {
  noise1: { coefficient: 0.1, redraw: true },
  noise2: { coefficient: 0.1, redraw: true },
  constant: { coefficient: 1 },
  scale: { coefficient: 0.5 },
  zero: {},
  bit_flip: { coefficient: 1e-6, bits: true, redraw: true },
  stuck_at: { coefficient: 0, bits: true },
  swap_heads: { withHeads: true },
}

/** Weights by names that storage knows; of layers all, as these are chosen beside it. */
export function weightNames(sites: readonly Site[]): string[] {
  const parameters = sites.filter(({ name, axes }) => name.startsWith('weight.') && axes?.[0]?.name === 'out')
  return parameters.map(({ name, layers }) => (layers?.length ? 'layers.*.' : '') + name.replace('weight.', ''))
}

/** Weights have neither heads nor tokens. */
export const kindsOf = (place: Place): string[] => Object.keys(KINDS).filter((kind) => place !== 'storage' || kind !== 'swap_heads')

export const RANGES = ['layers', 'heads', 'tokens', 'channels', 'steps'] as const
export const rangesOf = (place: Place): (typeof RANGES)[number][] => RANGES.filter((range) => place !== 'storage' || (range !== 'heads' && range !== 'tokens'))

export const BITS = ['', 'sign', 'exponent', 'mantissa'] as const

const RANGE = /^\s*(\d+|\d*:\d*(:\d+)?)(\s*,\s*(\d+|\d*:\d*(:\d+)?))*\s*$/

/** "0,3,8:16", counted from 0; empty: all. */
export const isRange = (text: string): boolean => text.trim() === '' || RANGE.test(text)

/** Zeroed heads, as MegaScope's users ask for them most; and what its three cards offer. */
export const PRESETS: Readonly<Record<string, Perturbation>> = {
  storage_noise: { place: 'storage', kind: 'noise1', coefficient: 0.01 },
  calculation_noise: { place: 'calculation', kind: 'noise2', coefficient: 0.1 },
  system_noise: { place: 'system', kind: 'noise1', coefficient: 0.1 },
  zero_heads: { place: 'calculation', kind: 'zero', site: 'attn.context', layers: '0', heads: '0' },
  bit_flips: { place: 'storage', kind: 'bit_flip', coefficient: 1e-6, bits: 'exponent' },
}

/** One line: "layers[3].mlp.out · noise1 0.1 · steps 100:200". */
export function describePerturbation(one: Perturbation): string {
  const site = one.site ?? DEFAULT_SITE[one.place]
  const parts = [
    one.layers ? `layers[${one.layers}].${site}` : site,
    [one.kind, one.coefficient === undefined ? '' : String(one.coefficient), one.bits].filter(Boolean).join(' '),
    ...(['heads', 'tokens', 'channels', 'steps'] as const).flatMap((range) => (one[range] ? [`${range} ${one[range]}`] : [])),
    one.withHeads ? `↔ ${one.withHeads}` : '',
    one.redraw ? 'redraw' : '',
    one.off ? 'off' : '',
  ]
  return parts.filter(Boolean).join(' · ')
}

/** As it is sent: what is empty is left out. */
export function trimmed(one: Perturbation): Perturbation {
  return Object.fromEntries(Object.entries(one).filter(([, value]) => value !== '' && value !== undefined && value !== false)) as unknown as Perturbation
}
