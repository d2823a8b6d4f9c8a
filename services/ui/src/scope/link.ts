import type { InjectionKey } from 'vue'
import type { WorkerOrder, WorkerReport } from './desk'

/** The page's end of its worker. */
export interface ScopeLink {
  readonly order: (order: WorkerOrder) => void
  readonly close: () => void
}

export type OpenLink = (hear: (report: WorkerReport) => void) => ScopeLink

/** How pages come to one: tests put another in its place. */
export const OPEN_LINK: InjectionKey<OpenLink> = Symbol('scope link')

export const openWorker: OpenLink = (hear) => {
  const worker = new Worker(new URL('./worker.ts', import.meta.url), { type: 'module' })
  worker.onmessage = ({ data }: MessageEvent<WorkerReport>) => hear(data)
  return { order: (order) => worker.postMessage(order), close: () => worker.terminate() }
}

export function scopeUrl(location: Location): string {
  return `${location.protocol === 'https:' ? 'wss' : 'ws'}://${location.host}/api/v1/scope`
}
