import { client, expect } from './client'
import type { components } from './schema'

export type AuditRecord = components['schemas']['AuditEntry']

/** Who disturbed, paused or compared a run's model, and why; the oldest first. */
export const getScopeAudit = (run: string, signal?: AbortSignal): Promise<AuditRecord[]> =>
  expect(client.GET('/api/v1/scope/audit', { params: { query: { run } }, signal }))
