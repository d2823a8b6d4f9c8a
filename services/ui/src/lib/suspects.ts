import type { Finding } from '@/api/types'
import type { Suspect } from '@/draw/timeline/paint'

/** Ranks that open findings name, and how; an imbalance is nobody's. */
export function suspectsOf(findings: readonly Finding[]): Map<number, Suspect[]> {
  const suspects = new Map<number, Suspect[]>()
  for (const { kind, ranks, since_step, page } of findings) {
    if (kind === 'imbalance') continue
    for (const rank of ranks) {
      const suspect = { rank, sinceStep: since_step ?? null, pages: page }
      suspects.set(rank, [...(suspects.get(rank) ?? []), suspect])
    }
  }
  return suspects
}
