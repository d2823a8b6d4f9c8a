import type { Rank } from '@/api/types'

/** Ranks of one trace at most: more makes a trace viewer slow and tells no more of one rank. */
const MOST_RANKS = 32

/**
 * Whose spans tell what a rank did and for whom it waited: of a small job everybody's; else those of its own pipeline,
 * then its stage's, nearest first. Empty: all.
 */
export function pipelineOf(rank: Rank | undefined, all: readonly Rank[], most = MOST_RANKS): number[] {
  if (all.length <= most) return []
  if (!rank) return all.slice(0, most).map((one) => one.rank)
  const { placement } = rank
  const distance = (one: Rank): number => Math.abs(one.rank - rank.rank)
  const own = all.filter(({ placement: p }) => p.data === placement.data && p.tensor === placement.tensor && p.context === placement.context && p.expert === placement.expert)
  const stage = all.filter(({ placement: p }) => p.pipeline === placement.pipeline).sort((a, b) => distance(a) - distance(b))
  const chosen = new Set([rank, ...own, ...stage].map((one) => one.rank))
  return [...chosen].slice(0, most).sort((a, b) => a - b)
}
