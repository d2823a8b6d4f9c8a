import type { Finding, Job } from '@/api/types'

/** "TP 2 · PP 2 · DP 4": only the dimensions that are split. */
export function layoutText(sizes: Job['sizes']): string {
  const dimensions: [string, number][] = [
    ['TP', sizes.tensor],
    ['PP', sizes.pipeline],
    ['VPP', sizes.virtual_pipeline],
    ['CP', sizes.context],
    ['EP', sizes.expert],
    ['DP', sizes.data],
  ]
  return dimensions.flatMap(([name, size]) => (size > 1 ? [`${name} ${size}`] : [])).join(' · ')
}

/** What people should look at first: open before resolved, paging before advice, dear before cheap. */
export function byUrgency(a: Finding, b: Finding): number {
  return (
    Number(b.state === 'open') - Number(a.state === 'open') ||
    Number(b.page) - Number(a.page) ||
    cost(b) - cost(a) ||
    b.opened_unix_ns - a.opened_unix_ns
  )
}

/** A hang costs everything: JSON has no infinity, so its cost is null. */
export function cost(finding: Finding): number {
  return finding.cost_ratio ?? Infinity
}

export function findingsOf(findings: Iterable<Finding>, run: string): Finding[] {
  return [...findings].filter((finding) => finding.run === run).sort(byUrgency)
}
