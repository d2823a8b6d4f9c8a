import { STATE } from '@/scope/values'

/** One head's attention, a row a query. */
export interface HeadMap {
  readonly layer: number
  readonly head: number
  readonly rows: number
  readonly columns: number
  readonly values: Float32Array
  readonly states: Uint8Array
}

/**
 * What a head does, as means over its queries: how spread its attention is (nats); how much of it goes to the token before,
 * to the first token, and to the token behind an earlier one like this (induction heads: Olsson et al. 2022).
 */
export const HEAD_SCORES = ['entropy', 'previous', 'sink', 'induction'] as const
export type HeadScore = (typeof HEAD_SCORES)[number]

/** NaN: it can't be said, as of a map that is pooled, or of tokens that are not known (`ids`, by position). */
export function scoreOf(map: HeadMap, score: HeadScore, ids: readonly number[] = []): number {
  if (map.rows !== map.columns) return NaN
  const at = (query: number, key: number): number => {
    const index = query * map.columns + key
    return map.states[index] === STATE.value ? map.values[index] : 0
  }
  let [sum, count] = [0, 0]
  const add = (value: number): void => void ([sum, count] = [sum + value, count + 1])
  for (let query = 0; query < map.rows; query += 1) {
    if (score === 'entropy') add(entropyOf(query, at))
    else if (score === 'previous' && query > 0) add(at(query, query - 1))
    else if (score === 'sink' && query > 0) add(at(query, 0))
    else if (score === 'induction') {
      const behind = Array.from({ length: query }, (_, key) => key).filter((key) => key > 0 && ids[key - 1] !== undefined && ids[key - 1] === ids[query])
      if (behind.length) add(behind.reduce((share, key) => share + at(query, key), 0))
    }
  }
  return count ? sum / count : NaN
}

function entropyOf(query: number, at: (query: number, key: number) => number): number {
  let entropy = 0
  for (let key = 0; key <= query; key += 1) {
    const share = at(query, key)
    if (share > 0) entropy -= share * Math.log(share)
  }
  return entropy
}

/** By score, those that are most like it first: the sharpest of entropy, the largest of all others. What is not known stands last. */
export function sortedHeads<T extends HeadMap>(maps: readonly T[], score: HeadScore | 'layer', ids: readonly number[]): { readonly map: T; readonly score: number }[] {
  const scored = maps.map((map) => ({ map, score: score === 'layer' ? NaN : scoreOf(map, score, ids) }))
  const order = (a: HeadMap, b: HeadMap): number => a.layer - b.layer || a.head - b.head
  const sign = score === 'entropy' ? 1 : -1
  const rank = (value: number): number => (Number.isNaN(value) ? Infinity : sign * value)
  return scored.sort((a, b) => (rank(a.score) === rank(b.score) ? 0 : rank(a.score) - rank(b.score)) || order(a.map, b.map))
}

/** A − B, cell by cell; masked where either is. */
export function differenceOfHeads(a: HeadMap, b: HeadMap): { readonly values: Float32Array<ArrayBuffer>; readonly states: Uint8Array<ArrayBuffer>; readonly limit: number } | null {
  if (a.rows !== b.rows || a.columns !== b.columns) return null
  const values = new Float32Array(a.values.length)
  const states = new Uint8Array(values.length)
  let limit = 0
  for (let i = 0; i < values.length; i += 1) {
    states[i] = a.states[i] || b.states[i]
    values[i] = states[i] ? NaN : a.values[i] - b.values[i]
    if (Math.abs(values[i]) > limit) limit = Math.abs(values[i])
  }
  return { values, states, limit }
}
