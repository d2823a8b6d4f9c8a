/** Which jobs are shown, in which order. Pure. */
import type { Job, JobState } from '@/api/types'
import { isOver } from './jobs'

export type SortColumn = 'started' | 'name' | 'state' | 'progress' | 'loss' | 'step_seconds' | 'findings'

export const STATES: readonly JobState[] = ['pending', 'starting', 'running', 'stalled', 'suspended', 'finished', 'stopped', 'failed', 'lost']
export const COLUMNS: readonly SortColumn[] = ['started', 'name', 'state', 'progress', 'loss', 'step_seconds', 'findings']
export const PAGE_JOBS = 50

export interface JobQuery {
  readonly text: string
  /** Empty: all. */
  readonly states: readonly JobState[]
  /** null: those that go on first, the one begun last first. */
  readonly sort: SortColumn | null
  readonly ascending: boolean
}

const KEYS: Record<SortColumn, (job: Job) => number | string | null> = {
  started: (job) => job.started_unix_seconds,
  name: (job) => job.job,
  state: (job) => STATES.indexOf(job.state),
  progress: (job) => (job.total_steps ? job.step / job.total_steps : null),
  loss: (job) => job.loss,
  step_seconds: (job) => job.step_seconds,
  findings: (job) => job.open_findings,
}

/** Equal ones stay in the order of their start, so that a list that is refreshed does not hop. */
export function chosenJobs(jobs: Iterable<Job>, { text, states, sort, ascending }: JobQuery): Job[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean)
  const wanted = new Set(states)
  const chosen = [...jobs].filter((job) => {
    if (wanted.size && !wanted.has(job.state)) return false
    if (!words.length) return true
    const where = `${job.job} ${job.run} ${job.state}`.toLowerCase()
    return words.every((word) => where.includes(word))
  })
  const begun = (a: Job, b: Job): number => (b.started_unix_seconds ?? 0) - (a.started_unix_seconds ?? 0) || (a.run < b.run ? -1 : 1)
  if (sort === null) return chosen.sort((a, b) => Number(isOver(a.state)) - Number(isOver(b.state)) || begun(a, b))
  const key = KEYS[sort]
  return chosen.sort((a, b) => {
    const [left, right] = [key(a), key(b)]
    // What is not known comes last either way.
    if (left === null || right === null) return Number(left === null) - Number(right === null) || begun(a, b)
    const order = left < right ? -1 : left > right ? 1 : 0
    return (ascending ? order : -order) || begun(a, b)
  })
}
