import type { Evidence, Finding } from '@/api/types'
import { formatExcess, formatInteger, formatNumber, formatRanks, formatRatio, formatSeconds } from '@/lib/format'
import { median } from '@/lib/statistics'
import { usePreferences } from '@/stores/preferences'
import { useKnownWord, useText, useWord } from './useText'

export interface FindingText {
  /** "Rank 3", "Ranks 4–7", "Stage 1", "The job" */
  readonly who: (finding: Finding) => string
  /** "slow GPU" */
  readonly kind: (finding: Finding) => string
  /** "Rank 3: slow GPU", "Rank 39 hangs" */
  readonly title: (finding: Finding) => string
  /** "slow GPU +25 %", "hangs" */
  readonly short: (finding: Finding) => string
  readonly cause: (finding: Finding) => string
  /** "+20 %"; of a hang nothing. */
  readonly effect: (finding: Finding) => string
  /** What the job would gain. */
  readonly cost: (finding: Finding) => string
  /** A sentence of what is the matter, since when, and what it costs. */
  readonly summary: (finding: Finding) => string
  readonly advice: (finding: Finding) => string
  readonly evidence: (evidence: Evidence) => string
}

/**
 * A finding in words of the chosen language, made of its codes and numbers. What the detector says in English beyond
 * these is shown to those who read the page in English.
 */
export function useFindingText(): FindingText {
  const t = useText()
  const word = useWord()
  const known = useKnownWord()
  const preferences = usePreferences()
  const english = (): boolean => preferences.locale === 'en'

  const who = ({ ranks }: Finding): string => {
    if (ranks.length === 0) return t('finding.job')
    return t(ranks.length === 1 ? 'finding.rank' : 'finding.ranks', { ranks: formatRanks(ranks) })
  }
  // A rank without a GPU is not called one.
  const kind = ({ kind: code, gpu_uuid }: Finding): string => (code === 'slow_gpu' && !gpu_uuid ? t('kind.slow_device') : word('kind', code))
  const summary = (finding: Finding): string => {
    const values = {
      who: who(finding),
      effect: percent(finding.effect_ratio ?? NaN),
      times: formatRatio(finding.effect_ratio),
      step: formatInteger(finding.since_step ?? 0),
      cost: percent(finding.cost_ratio ?? NaN),
    }
    const plural = finding.ranks.length > 1 ? '.many' : ''
    const about = `${finding.kind}.${finding.cause}`
    const says = known('says', about + plural, values) ?? known('says', about, values) ?? known('says', finding.kind + plural, values) ?? known('says', finding.kind, values)
    if (says === undefined) return finding.summary
    const since = finding.since_step == null ? '' : t('says.since', values)
    const costs = finding.kind !== 'hang' && (finding.cost_ratio ?? 0) >= 1.0005 ? t('says.cost', values) : ''
    return t('says.sentence', { says, since, costs })
  }
  return {
    who,
    kind,
    title: (finding) => (finding.kind === 'hang' ? t(finding.ranks.length > 1 ? 'finding.manyHang' : 'finding.oneHangs', { who: who(finding) }) : t('finding.title', { who: who(finding), kind: kind(finding) })),
    short: (finding) => (finding.kind === 'hang' ? t('finding.hangs') : `${kind(finding)} ${formatExcess(finding.effect_ratio)}`),
    cause: ({ cause }) => word('cause', cause),
    effect: ({ kind: code, effect_ratio }) => (code === 'hang' ? '' : formatExcess(effect_ratio)),
    cost: ({ cost_ratio }) => (cost_ratio == null ? t('finding.stopped') : formatExcess(cost_ratio)),
    summary,
    advice: (finding) => {
      const told = known('advice', `${finding.kind}.${finding.cause}`) ?? known('advice', finding.kind) ?? ''
      return english() ? finding.advice || told : told || finding.advice
    },
    evidence: (evidence) => {
      if (english()) return evidence.text
      const format = evidence.unit === 'seconds' ? formatSeconds : evidence.unit === 'ratio' ? formatRatio : formatNumber
      const [measured, expected] = [median(evidence.values), median(evidence.expected)]
      if (Number.isNaN(measured)) return evidence.text
      return Number.isNaN(expected)
        ? t('evidence.median', { measured: format(measured) })
        : t('evidence.medians', { measured: format(measured), expected: format(expected) })
    },
  }
}

/** 1.25 → "25 %", as the detector writes it in English. */
function percent(ratio: number): string {
  return formatExcess(ratio).replace('+', '')
}
