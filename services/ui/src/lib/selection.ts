import type { LocationQuery, LocationQueryRaw } from 'vue-router'
import type { StepRange } from '@/draw/timeline/view'

/**
 * What a person looks at, on every page: it is in the address, so that a link shows the same to somebody else. A rank
 * of a step that a finding names is the same selection in the finding, the timeline and the trace.
 */
export interface Selection {
  /** Of the job; null: the newest. */
  readonly attempt: number | null
  /** Steps in view. */
  readonly steps: StepRange | null
  /** The one step that is selected. */
  readonly step: number | null
  /** Ascending. */
  readonly ranks: readonly number[]
  readonly finding: string | null
  /** Seconds since 1970: where to look when no step is known. */
  readonly time: number | null
}

const MAX_RANKS = 4096

export function readSelection(query: LocationQuery): Selection {
  const [from, to] = [whole(query.from), whole(query.to)]
  return {
    attempt: whole(query.attempt),
    steps: from === null ? null : { first: from, last: Math.max(from, to ?? from) },
    step: whole(query.step),
    ranks: readRanks(query.rank),
    finding: typeof query.finding === 'string' && query.finding ? query.finding : null,
    time: whole(query.time),
  }
}

/** As `readSelection` reads it; what is not in `patch` stays out. */
export function selectionQuery(patch: Partial<Selection>): LocationQueryRaw {
  const query: LocationQueryRaw = {}
  if ('attempt' in patch) query.attempt = patch.attempt ?? undefined
  if ('steps' in patch) [query.from, query.to] = [patch.steps?.first, patch.steps?.last]
  if ('ranks' in patch) query.rank = patch.ranks?.length ? writeRanks(patch.ranks) : undefined
  if ('step' in patch) query.step = patch.step ?? undefined
  if ('finding' in patch) query.finding = patch.finding ?? undefined
  if ('time' in patch) query.time = patch.time ?? undefined
  return query
}

/** [0, 1, 2, 5] → "0-2,5", as the gateway reads ranks too. */
export function writeRanks(ranks: readonly number[]): string {
  const sorted = [...new Set(ranks)].sort((a, b) => a - b)
  const parts: string[] = []
  for (let i = 0; i < sorted.length; ) {
    let j = i
    while (j + 1 < sorted.length && sorted[j + 1] === sorted[j] + 1) j += 1
    parts.push(j === i ? `${sorted[i]}` : `${sorted[i]}-${sorted[j]}`)
    i = j + 1
  }
  return parts.join(',')
}

function readRanks(text: unknown): number[] {
  if (typeof text !== 'string') return []
  const ranks = new Set<number>()
  for (const part of text.split(',')) {
    const [, low, high] = /^(\d{1,7})(?:-(\d{1,7}))?$/.exec(part) ?? []
    if (low === undefined) return []
    for (let rank = Number(low); rank <= Number(high ?? low) && ranks.size < MAX_RANKS; rank += 1) ranks.add(rank)
  }
  return [...ranks].sort((a, b) => a - b)
}

function whole(text: unknown): number | null {
  return typeof text === 'string' && /^\d{1,15}$/.test(text) ? Number(text) : null
}
