import type { Finding, RankStatus } from '@/api/types'
import { wasOpenAtEnd } from '@/lib/jobs'

export type Health = 'ok' | 'warn' | 'bad' | 'stale' | 'over'

/** Heartbeats come once a second. */
const SILENT_SECONDS = 3

export function isSilent(rank: Pick<RankStatus, 'connected' | 'heartbeat_age_seconds'>): boolean {
  return !rank.connected || (rank.heartbeat_age_seconds ?? 0) > SILENT_SECONDS
}

/** A paging finding is bad, advice is a warning, silence is no health at all; `lost`: nor is that of the platform. */
export function rankHealth(rank: Pick<RankStatus, 'connected' | 'ended' | 'heartbeat_age_seconds'>, finding: Finding | undefined, lost = false): Health {
  if (finding?.page) return 'bad'
  if (rank.ended) return 'over'
  if (lost || isSilent(rank)) return 'stale'
  return finding ? 'warn' : 'ok'
}

/** Of a finding by itself: one that nobody has seen get better is no better. */
export function findingHealth(finding: Finding): Health {
  if (finding.state === 'resolved' && !(finding.page && wasOpenAtEnd(finding))) return 'ok'
  return finding.page ? 'bad' : 'warn'
}

export interface NodeRanks {
  readonly node: string
  readonly ranks: readonly RankStatus[]
}

// Made once: localeCompare makes one each time, which of a thousand nodes takes a quarter of a second.
const inOrder = new Intl.Collator(undefined, { numeric: true }).compare

/** Ranks by the machine they run on, in the order of their local ranks. */
export function groupByNode(ranks: readonly RankStatus[]): NodeRanks[] {
  const nodes = new Map<string, RankStatus[]>()
  for (const rank of ranks) {
    const members = nodes.get(rank.node)
    if (members) members.push(rank)
    else nodes.set(rank.node, [rank])
  }
  return [...nodes]
    .map(([node, members]) => ({ node, ranks: members.sort((a, b) => a.local_rank - b.local_rank) }))
    .sort((a, b) => inOrder(a.node, b.node))
}
