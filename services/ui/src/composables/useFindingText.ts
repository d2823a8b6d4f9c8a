import type { Finding } from '@/api/types'
import { formatExcess, formatRanks } from '@/lib/format'
import { useText, useWord } from './useText'

export interface FindingText {
  /** "Rank 3", "Ranks 4–7", "Stage 1", "The job" */
  readonly who: (finding: Finding) => string
  /** "slow GPU" */
  readonly kind: (finding: Finding) => string
  readonly cause: (finding: Finding) => string
  /** "20 % slower", "hangs" */
  readonly effect: (finding: Finding) => string
  /** What the job would gain. */
  readonly cost: (finding: Finding) => string
}

/** A finding in a few words of the chosen language. */
export function useFindingText(): FindingText {
  const t = useText()
  const word = useWord()
  return {
    who: ({ ranks }) => {
      if (ranks.length === 0) return t('finding.job')
      return t(ranks.length === 1 ? 'finding.rank' : 'finding.ranks', { ranks: formatRanks(ranks) })
    },
    // A rank without a GPU is not called one.
    kind: ({ kind, gpu_uuid }) => (kind === 'slow_gpu' && !gpu_uuid ? t('kind.slow_device') : word('kind', kind)),
    cause: ({ cause }) => word('cause', cause),
    effect: ({ kind, effect_ratio }) => (kind === 'hang' ? t('finding.hangs') : formatExcess(effect_ratio)),
    cost: ({ cost_ratio }) => (cost_ratio == null ? t('finding.stopped') : formatExcess(cost_ratio)),
  }
}
