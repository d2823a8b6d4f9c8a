import createClient from 'openapi-fetch'
import type { GridColumns } from '@/draw/timeline/grid'
import { writeRanks } from '@/lib/selection'
import { COLUMNS_TYPE, decodeColumns } from './columns'
import type { paths } from './schema'
import type { Clock, Finding, Metrics, Rank, RankStatus, Report, Session, Timeline, TraceControl, TraceControlStatus, TraceFormat } from './types'

/** An answer that is not the one asked for; `hint` says what to do about it. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint: string,
  ) {
    super(message)
    this.name = 'ApiError'
  }
}

// The page's fetch of the moment: tests put their own in its place.
export const client = createClient<paths>({ baseUrl: '/', credentials: 'same-origin', fetch: (request) => fetch(request) })

type Answer<T> = Promise<{ data?: T; error?: unknown; response: Response }>

export async function expect<T>(answer: Answer<T>): Promise<T> {
  const { data, error, response } = await answer
  if (response.ok && data !== undefined) return data
  throw toError(response.status, error)
}

export function toError(status: number, body: unknown): ApiError {
  const known = (body as { error?: { code?: string; message?: string; hint?: string } } | undefined)?.error
  return new ApiError(status, known?.code ?? 'unknown', known?.message ?? `HTTP ${status}`, known?.hint ?? '')
}

const of = (run: string): { path: { run: string } } => ({ path: { run } })

export const getSession = (): Promise<Session> => expect(client.GET('/api/v1/session'))

export const signIn = (token: string): Promise<Session> => expect(client.POST('/api/v1/session', { body: { token } }))

export const getRanks = (run: string, signal?: AbortSignal): Promise<Rank[]> =>
  expect(client.GET('/api/v1/jobs/{run}/ranks', { params: of(run), signal }))

export const getMetrics = (run: string, limit: number): Promise<Metrics> =>
  expect(client.GET('/api/v1/jobs/{run}/metrics', { params: { ...of(run), query: { limit } } }))

export const getClocks = (run: string, signal?: AbortSignal): Promise<Clock[]> =>
  expect(client.GET('/api/v1/jobs/{run}/clocks', { params: of(run), signal }))

/** Rows of single steps, both included: exact values of all ranks. */
export const getSteps = (run: string, attempt: number | null, from: number, to: number, signal?: AbortSignal): Promise<Timeline> => {
  const query = { from_step: from, to_step: to, limit: to - from + 1, ...(attempt === null ? {} : { attempt }) }
  return expect(client.GET('/api/v1/jobs/{run}/timeline', { params: { ...of(run), query }, signal }))
}

/** Which part of a timeline, and how finely; without `to` up to the newest step. */
export interface GridQuery {
  readonly attempt: number | null
  readonly from?: number
  readonly to?: number
  readonly buckets?: number
  readonly bucketSteps?: number
  /** Cells of the answer, at most. */
  readonly cells?: number
}

export const getTimelineGrid = async (run: string, asked: GridQuery, signal?: AbortSignal): Promise<GridColumns> => {
  const query = {
    from_step: asked.from ?? 0,
    to_step: asked.to ?? 0,
    ...(asked.attempt === null ? {} : { attempt: asked.attempt }),
    ...(asked.buckets ? { buckets: asked.buckets } : {}),
    ...(asked.cells ? { cells: asked.cells } : {}),
    ...(asked.bucketSteps ? { bucket_steps: asked.bucketSteps } : {}),
  }
  const answer = client.GET('/api/v1/jobs/{run}/timeline/grid', { params: { ...of(run), query }, headers: { Accept: COLUMNS_TYPE }, parseAs: 'arrayBuffer', signal })
  return decodeColumns(await expect<ArrayBuffer>(answer as Promise<{ data?: ArrayBuffer; error?: unknown; response: Response }>)) as unknown as GridColumns
}

export const getRankStatus = (signal?: AbortSignal): Promise<RankStatus[]> => expect(client.GET('/api/v1/ranks', { signal }))

export const getTraceControl = (run: string, signal?: AbortSignal): Promise<TraceControlStatus> =>
  expect(client.GET('/api/v1/jobs/{run}/trace-control', { params: of(run), signal }))

export const putTraceControl = (run: string, body: TraceControl): Promise<TraceControlStatus> =>
  expect(client.PUT('/api/v1/jobs/{run}/trace-control', { params: of(run), body }))

export const getFindings = (run: string, signal?: AbortSignal): Promise<Finding[]> =>
  expect(client.GET('/api/v1/findings', { params: { query: { run } }, signal }))

export const refuteFinding = (id: string): Promise<Finding> =>
  expect(client.POST('/api/v1/findings/{id}/refute', { params: { path: { id } } }))

export const getReport = (days: number, signal?: AbortSignal): Promise<Report> =>
  expect(client.GET('/api/v1/report', { params: { query: { days } }, signal }))

/** Where the report can be read as Markdown. */
export const reportUrl = (days: number): string => `/api/v1/report.md?days=${days}`

/** Which spans: of these steps, both included, and of these ranks; of all where none is named. */
export interface TraceQuery {
  readonly attempt: number | null
  readonly from: number
  readonly to: number
  readonly ranks?: readonly number[]
}

/** Where spans can be downloaded. */
export function traceUrl(run: string, { attempt, from, to, ranks }: TraceQuery, format: TraceFormat): string {
  const query = new URLSearchParams({ from_step: String(from), to_step: String(to), format })
  if (attempt !== null) query.set('attempt', String(attempt))
  if (ranks?.length) query.set('ranks', writeRanks(ranks))
  return `/api/v1/jobs/${encodeURIComponent(run)}/trace?${query}`
}

/** A document as text. */
export async function getText(url: string, signal: AbortSignal): Promise<string> {
  const response = await fetch(url, { credentials: 'same-origin', signal })
  if (!response.ok) throw toError(response.status, await response.json().catch(() => undefined))
  return response.text()
}

/** The trace as Perfetto reads it. `onProgress` is told how many bytes have come. */
export async function getTrace(url: string, onProgress: (bytes: number) => void, signal: AbortSignal): Promise<ArrayBuffer> {
  const response = await fetch(url, { credentials: 'same-origin', signal })
  if (!response.ok || !response.body) throw toError(response.status, await response.json().catch(() => undefined))
  const chunks: Uint8Array<ArrayBuffer>[] = []
  let bytes = 0
  for (const reader = response.body.getReader(); ; ) {
    const { done, value } = await reader.read()
    if (done) break
    chunks.push(value)
    bytes += value.byteLength
    onProgress(bytes)
  }
  return new Blob(chunks).arrayBuffer()
}
