import { useIntervalFn, useWebSocket } from '@vueuse/core'
import type { InjectionKey, Ref } from 'vue'
import { computed, inject, shallowReactive, shallowRef } from 'vue'
import { backoffMs } from '@/lib/backoff'
import { isOver, waits } from '@/lib/jobs'
import type { Annotation, Finding, Job, LiveEvent } from './types'

/** The gateway says something at least every 2 seconds; a longer silence means that the picture is old. */
const STALE_SECONDS = 4.5
/** Ranks send a heartbeat once a second: of a job that nobody has heard of for so long nobody knows how it goes. */
const QUIET_SECONDS = 4
const REOPEN_MS = 10_000

/** `partial`: the gateway answers, and a trace-collector does not. */
export type LiveState = 'connecting' | 'live' | 'partial' | 'stale' | 'offline'
export type StepListener = (event: Extract<LiveEvent, { type: 'step' }>) => void

/** Jobs and findings as they are now, pushed by the gateway over one WebSocket. */
export interface Live {
  readonly jobs: ReadonlyMap<string, Job>
  readonly findings: ReadonlyMap<string, Finding>
  /** What people said of these findings, by finding, the oldest first. */
  readonly annotations: ReadonlyMap<string, readonly Annotation[]>
  readonly state: Readonly<Ref<LiveState>>
  /** Seconds since the gateway was heard last; null: never. */
  readonly silence: Readonly<Ref<number | null>>
  /** When the gateway was heard last, in ms since 1970, while it is not heard any more; else null. */
  readonly lostSince: Readonly<Ref<number | null>>
  /** Since when a trace-collector has not answered, in ms since 1970; null: all do, or the gateway itself is lost. */
  readonly collectorLostSince: Readonly<Ref<number | null>>
  /** Seconds for which nothing was heard of a job that goes on; null: it is heard, or has ended. */
  readonly quietFor: (job: Job) => number | null
  /** The first snapshot has arrived: an empty list now means that there is none. */
  readonly ready: Readonly<Ref<boolean>>
  /** Grows with each snapshot, so after each cut: what was built up from steps has to be asked for again. */
  readonly snapshots: Readonly<Ref<number>>
  readonly onStep: (listener: StepListener) => () => void
}

export const LIVE: InjectionKey<Live> = Symbol('live')

export function useLive(): Live {
  const live = inject(LIVE)
  if (!live) throw new Error('useLive() outside of the app')
  return live
}

/** Opens the event stream and keeps it open; call inside an effect scope that lives as long as the app. */
export function createLive(url: string): Live {
  const jobs = shallowReactive(new Map<string, Job>())
  const findings = shallowReactive(new Map<string, Finding>())
  const annotations = shallowReactive(new Map<string, readonly Annotation[]>())
  const listeners = new Set<StepListener>()
  const snapshots = shallowRef(0)
  const ready = computed(() => snapshots.value > 0)
  const heardAt = shallowRef<number | null>(null)
  const now = shallowRef(Date.now())
  const collectorLost = shallowRef<number | null>(null)
  /** The gateway's clock against this one's, in ms. */
  let ahead = 0
  let openedAt = Date.now()
  useIntervalFn(() => {
    now.value = Date.now()
    // A cut that nobody tells of: the connection is made anew.
    if (status.value !== 'OPEN' || now.value - Math.max(openedAt, heardAt.value ?? 0) < REOPEN_MS) return
    openedAt = now.value
    open()
  }, 1000)

  const { status, open } = useWebSocket(url, {
    autoReconnect: { retries: () => true, delay: (attempt) => backoffMs(attempt) },
    onMessage: (_, message: MessageEvent<string>) => {
      heardAt.value = now.value = Date.now()
      receive(JSON.parse(message.data) as LiveEvent)
    },
  })

  function say(annotation: Annotation): void {
    const known = annotations.get(annotation.finding) ?? []
    if (known.every(({ id }) => id !== annotation.id)) annotations.set(annotation.finding, [...known, annotation])
  }

  function receive(event: LiveEvent): void {
    switch (event.type) {
      case 'snapshot':
        replace(jobs, event.jobs, (job) => job.run)
        replace(findings, event.findings, (finding) => finding.id)
        annotations.clear()
        for (const annotation of event.annotations) say(annotation)
        snapshots.value += 1
        break
      case 'job':
        jobs.set(event.job.run, event.job)
        break
      case 'job_gone':
        jobs.delete(event.run)
        break
      case 'finding':
        findings.set(event.finding.id, event.finding)
        break
      case 'annotation':
        say(event.annotation)
        break
      case 'step':
        for (const listener of listeners) listener(event)
        break
      case 'ping':
        ahead = event.unix_seconds * 1000 - Date.now()
        collectorLost.value = event.collector_lost_unix_seconds === null ? null : event.collector_lost_unix_seconds * 1000 - ahead
        break
    }
  }

  const silence = computed(() => (heardAt.value === null ? null : Math.max(0, (now.value - heardAt.value) / 1000)))
  const state = computed<LiveState>(() => {
    if (status.value === 'OPEN') {
      if (silence.value !== null && silence.value > STALE_SECONDS) return 'stale'
      return collectorLost.value === null ? 'live' : 'partial'
    }
    return heardAt.value === null && status.value === 'CONNECTING' ? 'connecting' : 'offline'
  })
  const lostSince = computed(() => (state.value === 'offline' || state.value === 'stale' ? heardAt.value : null))
  const collectorLostSince = computed(() => (lostSince.value === null ? collectorLost.value : null))
  const quietFor = (job: Job): number | null => {
    if (isOver(job.state)) return null
    const seconds = (now.value + ahead) / 1000 - job.updated_unix_seconds
    if (waits(job)) return lostSince.value === null ? null : seconds
    return lostSince.value !== null || seconds > QUIET_SECONDS ? seconds : null
  }
  const onStep = (listener: StepListener): (() => void) => {
    listeners.add(listener)
    return () => listeners.delete(listener)
  }
  return { jobs, findings, annotations, state, silence, lostSince, collectorLostSince, quietFor, ready, snapshots, onStep }
}

function replace<T>(map: Map<string, T>, values: readonly T[], key: (value: T) => string): void {
  const fresh = new Set(values.map(key))
  for (const old of [...map.keys()]) if (!fresh.has(old)) map.delete(old)
  for (const value of values) map.set(key(value), value)
}

export function eventsUrl(location: Location): string {
  return `${location.protocol === 'https:' ? 'wss' : 'ws'}://${location.host}/api/v1/events`
}
