import type { Annotation } from '@/api/types'

/** What several sources know, each once, the oldest first. */
export function merged(...sources: (readonly Annotation[])[]): Annotation[] {
  const known = new Map(sources.flat().map((one) => [one.id, one]))
  return [...known.values()].sort((a, b) => a.unix_ns - b.unix_ns || a.id.localeCompare(b.id))
}

/** The acknowledgement that holds. */
export function acknowledgedBy(said: readonly Annotation[]): Annotation | undefined {
  const last = said.findLast(({ kind }) => kind === 'acknowledge' || kind === 'unacknowledge')
  return last?.kind === 'acknowledge' ? last : undefined
}

/** The silence that holds. */
export function silencedBy(said: readonly Annotation[], nowNs: number): Annotation | undefined {
  const last = said.findLast(({ kind }) => kind === 'silence' || kind === 'unsilence')
  return last?.kind === 'silence' && last.until_unix_ns > nowNs ? last : undefined
}
