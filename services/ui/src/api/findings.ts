/** Findings beyond what the event stream tells: old ones, and what people say of them. */
import { client, expect } from './client'
import type { Annotation, Finding } from './types'

export interface Subject {
  readonly job?: string
  readonly rank?: number
  readonly node?: string
  readonly device?: string
}

const of = (id: string): { path: { id: string } } => ({ path: { id } })

export const getFinding = (id: string, signal?: AbortSignal): Promise<Finding> =>
  expect(client.GET('/api/v1/findings/{id}', { params: of(id), signal }))

export const getFindingHistory = (subject: Subject, signal?: AbortSignal): Promise<Finding[]> =>
  expect(client.GET('/api/v1/findings/history', { params: { query: { ...subject, limit: 100 } }, signal }))

export const getAnnotations = (id: string, signal?: AbortSignal): Promise<Annotation[]> =>
  expect(client.GET('/api/v1/findings/{id}/annotations', { params: of(id), signal }))

export const annotateFinding = (id: string, kind: 'comment' | 'acknowledge' | 'unacknowledge', text = ''): Promise<Annotation> =>
  expect(client.POST('/api/v1/findings/{id}/annotations', { params: of(id), body: { kind, text } }))

export const silenceFinding = (id: string, seconds: number, text: string): Promise<Annotation> =>
  expect(client.POST('/api/v1/findings/{id}/silence', { params: of(id), body: { seconds, text } }))

export const endSilence = (id: string): Promise<Annotation> =>
  expect(client.DELETE('/api/v1/findings/{id}/silence', { params: of(id) }))
