import type { Finding, Rank } from '@/api/types'

export type Health = 'ok' | 'warn' | 'bad' | 'stale'

/** A paging finding is bad, advice is a warning, silence is no health at all. */
export function rankHealth(rank: Pick<Rank, 'connected'>, finding: Finding | undefined): Health {
  if (finding?.page) return 'bad'
  if (!rank.connected) return 'stale'
  return finding ? 'warn' : 'ok'
}

export interface NodeRanks {
  readonly node: string
  readonly ranks: readonly Rank[]
}

/** Ranks by the machine they run on, in the order of their local ranks. */
export function groupByNode(ranks: readonly Rank[]): NodeRanks[] {
  const nodes = new Map<string, Rank[]>()
  for (const rank of ranks) nodes.set(rank.node, [...(nodes.get(rank.node) ?? []), rank])
  return [...nodes]
    .map(([node, members]) => ({ node, ranks: members.sort((a, b) => a.local_rank - b.local_rank) }))
    .sort((a, b) => a.node.localeCompare(b.node, undefined, { numeric: true }))
}
