import { client, expect, toError } from './client'
import type { components } from './schema'

export type AuditRecord = components['schemas']['AuditEntry']

export type Recording = components['schemas']['Recording']

const of = (recording: string): { path: { recording: string } } => ({ path: { recording } })

/** Recordings and snapshots, the newest first. */
export const getRecordings = (signal?: AbortSignal): Promise<Recording[]> => expect(client.GET('/api/v1/scope/recordings', { signal }))

export const getRecording = (id: string, signal?: AbortSignal): Promise<Recording> => expect(client.GET('/api/v1/scope/recordings/{recording}', { params: of(id), signal }))

export async function deleteRecording(id: string): Promise<void> {
  const { error, response } = await client.DELETE('/api/v1/scope/recordings/{recording}', { params: of(id) })
  if (!response.ok) throw toError(response.status, error)
}

/** A `.mscope` file that somebody has. */
export async function bringRecording(file: Blob): Promise<Recording> {
  const response = await fetch('/api/v1/scope/recordings', { method: 'POST', body: file, credentials: 'same-origin', headers: { 'Content-Type': 'application/octet-stream' } })
  const body: unknown = await response.json().catch(() => undefined)
  if (!response.ok) throw toError(response.status, body)
  return body as Recording
}

/** Where the file is. */
export const recordingUrl = (id: string): string => `/api/v1/scope/recordings/${encodeURIComponent(id)}/file`

/** Who disturbed, paused or compared a run's model, and why; the oldest first. */
export const getScopeAudit = (run: string, signal?: AbortSignal): Promise<AuditRecord[]> =>
  expect(client.GET('/api/v1/scope/audit', { params: { query: { run } }, signal }))
