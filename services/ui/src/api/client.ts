import createClient from 'openapi-fetch'
import type { TimelineColumns } from '@/draw/timeline/model'
import { COLUMNS_TYPE, decodeColumns } from './columns'
import type { paths } from './schema'
import type { Clock, Finding, Metrics, Rank, Report, Session, TraceControl, TraceControlStatus, TraceFormat } from './types'

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

const client = createClient<paths>({ baseUrl: '/', credentials: 'same-origin' })

type Answer<T> = Promise<{ data?: T; error?: unknown; response: Response }>

async function expect<T>(answer: Answer<T>): Promise<T> {
  const { data, error, response } = await answer
  if (response.ok && data !== undefined) return data
  throw toError(response.status, error)
}

function toError(status: number, body: unknown): ApiError {
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

export const getTimeline = async (
  run: string,
  fromStep: number,
  limit: number,
  signal?: AbortSignal,
): Promise<TimelineColumns> => {
  const params = { ...of(run), query: { from_step: fromStep, limit } }
  const headers = { Accept: COLUMNS_TYPE }
  const answer = client.GET('/api/v1/jobs/{run}/timeline', { params, headers, parseAs: 'arrayBuffer', signal })
  return decodeColumns(await expect<ArrayBuffer>(answer)) as unknown as TimelineColumns
}

export const getTraceControl = (run: string, signal?: AbortSignal): Promise<TraceControlStatus> =>
  expect(client.GET('/api/v1/jobs/{run}/trace-control', { params: of(run), signal }))

export const putTraceControl = (run: string, body: TraceControl): Promise<TraceControlStatus> =>
  expect(client.PUT('/api/v1/jobs/{run}/trace-control', { params: of(run), body }))

export const refuteFinding = (id: string): Promise<Finding> =>
  expect(client.POST('/api/v1/findings/{id}/refute', { params: { path: { id } } }))

export const getReport = (days: number, signal?: AbortSignal): Promise<Report> =>
  expect(client.GET('/api/v1/report', { params: { query: { days } }, signal }))

/** Where the report can be read as Markdown. */
export const reportUrl = (days: number): string => `/api/v1/report.md?days=${days}`

/** Where the spans of the steps, both included, can be downloaded. */
export function traceUrl(run: string, fromStep: number, toStep: number, format: TraceFormat): string {
  const query = new URLSearchParams({ from_step: String(fromStep), to_step: String(toStep), format })
  return `/api/v1/jobs/${encodeURIComponent(run)}/trace?${query}`
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
