import type { RouteLocationRaw } from 'vue-router'
import type { Finding } from '@/api/types'

const BEFORE = 10
const AFTER = 30

/** The timeline of the finding's job around the step since which it holds, with its first rank selected. */
export function timelineAround(finding: Pick<Finding, 'id' | 'run' | 'attempt' | 'ranks' | 'since_step'>): RouteLocationRaw {
  const since = finding.since_step
  const window = since == null ? {} : { from: Math.max(1, since - BEFORE), to: since + AFTER, step: since }
  const rank = finding.ranks.length ? { rank: finding.ranks[0] } : {}
  return { name: 'timeline', params: { run: finding.run }, query: { ...window, ...rank, attempt: finding.attempt, finding: finding.id } }
}

/** What the layers of the finding's first rank compute, while its run goes on. */
export function scopeOf(finding: Pick<Finding, 'id' | 'run' | 'ranks'>): RouteLocationRaw {
  return { name: 'scope', params: { run: finding.run }, query: { ...(finding.ranks.length ? { rank: finding.ranks[0] } : {}), finding: finding.id } }
}
