import { useKnownWord, useText } from './useText'

/** What a statistic is called: `std`, `p99`. */
export function useStatisticWord(): (name: string) => string {
  const t = useText()
  const known = useKnownWord()
  return (name) => known('scope.statistic', name) ?? (/^p\d\d$/.test(name) ? t('scope.percentile', { percent: Number(name.slice(1)) }) : name)
}
