/** Runs as a whole: their curves, their time, their recipes. */
import { client, expect } from './client'
import type { JobDetail, Marker, RecipeDifference, RunHistory, TimeSpent } from './types'

export interface HistoryQuery {
  readonly runs: readonly string[]
  readonly axis: 'step' | 'time'
  /** Steps, inclusive; 0: no bound. */
  readonly from: number
  readonly to: number
  readonly points: number
}

export const getHistory = ({ runs, axis, from, to, points }: HistoryQuery, signal?: AbortSignal): Promise<RunHistory[]> =>
  expect(client.GET('/api/v1/history', { params: { query: { run: [...runs], by: axis, from_step: from, to_step: to, points } }, signal }))

export const getJob = (run: string, signal?: AbortSignal): Promise<JobDetail> =>
  expect(client.GET('/api/v1/jobs/{run}', { params: { path: { run } }, signal }))

export const getTimeSpent = (run: string, signal?: AbortSignal): Promise<TimeSpent> =>
  expect(client.GET('/api/v1/jobs/{run}/time-spent', { params: { path: { run } }, signal }))

export const getMarkers = (run: string, signal?: AbortSignal): Promise<Marker[]> =>
  expect(client.GET('/api/v1/jobs/{run}/markers', { params: { path: { run } }, signal }))

export const getRecipeDifference = (runs: readonly string[], signal?: AbortSignal): Promise<RecipeDifference> =>
  expect(client.GET('/api/v1/history/recipe-difference', { params: { query: { run: [...runs] } }, signal }))
