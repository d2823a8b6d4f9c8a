import { describe, expect, it } from 'vitest'
import type { Job } from '@/api/types'
import { chosenJobs } from '@/lib/jobList'
import { World } from '../support/world'

const job = (name: string, state: Job['state'], started: number, more: Partial<Job> = {}): Job => ({
  ...new World({ run: `run-${name}`, name: `team/${name}`, ranks: 1, steps: 10, state }).job(0),
  started_unix_seconds: started,
  ...more,
})
const jobs = [job('a', 'finished', 5), job('b', 'running', 1), job('c', 'failed', 3, { loss: null }), job('d', 'running', 4)]
const ask = { text: '', states: [], sort: null, ascending: true } as const
const names = (chosen: readonly Job[]): string[] => chosen.map(({ name }) => name)

describe('chosenJobs', () => {
  it('shows those that go on first, the one begun last first', () => expect(names(chosenJobs(jobs, ask))).toEqual(['d', 'b', 'a', 'c']))
  it('does not change its order while they run', () => {
    const later = jobs.map((one) => ({ ...one, step: 99, updated_unix_seconds: Math.random() * 1e9 }))
    expect(names(chosenJobs(later.reverse(), ask))).toEqual(['d', 'b', 'a', 'c'])
  })
  it('filters by state and by every word', () => {
    expect(names(chosenJobs(jobs, { ...ask, states: ['failed', 'finished'] }))).toEqual(['a', 'c'])
    expect(names(chosenJobs(jobs, { ...ask, text: 'TEAM run-d' }))).toEqual(['d'])
  })
  it.each([true, false])('puts what is not known last, ascending: %s', (ascending) => {
    expect(names(chosenJobs(jobs, { ...ask, sort: 'loss', ascending })).at(-1)).toBe('c')
  })
  it('sorts by name either way', () => {
    expect(names(chosenJobs(jobs, { ...ask, sort: 'name' }))).toEqual(['a', 'b', 'c', 'd'])
    expect(names(chosenJobs(jobs, { ...ask, sort: 'name', ascending: false }))).toEqual(['d', 'c', 'b', 'a'])
  })
})
