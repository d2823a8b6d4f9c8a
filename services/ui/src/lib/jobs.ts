import type { Finding, Job, JobState } from '@/api/types'

/** So much of a run's id tells it from others; the terminal shows as much. */
export const shortRun = (run: string): string => run.slice(0, 8)

/** Jobs that go on, the one begun last first; then those that have ended. The order changes only when a job ends. */
export function byStart(a: Job, b: Job): number {
  const order = Number(isOver(a.state)) - Number(isOver(b.state))
  return order || (b.started_unix_seconds ?? 0) - (a.started_unix_seconds ?? 0) || a.run.localeCompare(b.run)
}

const OVER: ReadonlySet<JobState> = new Set<JobState>(['finished', 'stopped', 'failed', 'lost'])
export const isOver = (state: JobState): boolean => OVER.has(state)
/** None of its ranks runs, and none need be heard. */
export const waits = ({ state, ranks_connected }: Job): boolean => state === 'pending' || state === 'suspended' || (state === 'starting' && !ranks_connected)
/** Whether any of its ranks was ever heard: only then there is more to show than where it stands. */
export const wasHeard = ({ sizes, attempt }: Job): boolean => sizes.world > 0 || attempt > 0

/** Its attempt ended with it: nobody has seen it get better. */
export const wasOpenAtEnd = (finding: Finding): boolean =>
  finding.state === 'resolved' && finding.resolved_step === null && !finding.refuted_unix_ns

/** What is wrong with the job, or was when it ended. */
export function lasts(finding: Finding, job: Job): boolean {
  return finding.state === 'open' || (isOver(job.state) && wasOpenAtEnd(finding) && finding.attempt === job.attempt)
}

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

/** What people should look at first: open ones, of these paging before advice and dear before cheap; then the newest. */
export function byUrgency(a: Finding, b: Finding): number {
  const [openA, openB] = [a.state === 'open', b.state === 'open']
  if (openA !== openB) return openA ? -1 : 1
  const urgency = openA ? Number(b.page) - Number(a.page) || compare(cost(b), cost(a)) : 0
  return urgency || b.opened_unix_ns - a.opened_unix_ns
}

/** Also of infinities, whose difference is not a number. */
function compare(a: number, b: number): number {
  return Number(a > b) - Number(a < b)
}

/** A hang costs everything: JSON has no infinity, so its cost is null. */
export function cost(finding: Finding): number {
  return finding.cost_ratio ?? Infinity
}

export function findingsOf(findings: Iterable<Finding>, run: string): Finding[] {
  return [...findings].filter((finding) => finding.run === run).sort(byUrgency)
}
