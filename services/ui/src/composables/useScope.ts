import { useDocumentVisibility, useEventListener, useIntervalFn } from '@vueuse/core'
import type { InjectionKey, Ref, ShallowRef } from 'vue'
import { computed, inject, onScopeDispose, shallowRef, watch } from 'vue'
import type { Cut, ScopeState } from '@/scope/connection'
import type { WorkerReport } from '@/scope/desk'
import { OPEN_LINK, openWorker, scopeUrl } from '@/scope/link'
import type { Action, Alert, AuditEntry, Description, NumberedEvent, RecordingState, Refused, ReplayOrder, ReplayState, Result, Subscribe, Subscribed, TrainState } from '@/scope/messages'
import type { Picture } from '@/scope/picture'

/** What the gateway said no to, or a rank: `code` is for machines, `hint` says what to do. */
export class ScopeRefusal extends Error {
  override readonly name = 'ScopeRefusal'
  constructor(
    readonly code: string,
    message: string,
    readonly hint = '',
  ) {
    super(message)
  }
}

/** Told of one subscription. */
export interface Sink {
  readonly subscribed: (answer: Subscribed) => void
  readonly refused: (why: Refused) => void
  readonly picture: (picture: Picture) => void
  readonly stalled: (reason: string) => void
}

export interface Subscription {
  /** The newest pictures are on screen: more may come. */
  readonly painted: () => void
  readonly end: () => void
}

export interface Scope {
  readonly state: Readonly<Ref<ScopeState>>
  /** Why it is not live. */
  readonly cut: Readonly<ShallowRef<Cut>>
  readonly description: Readonly<ShallowRef<Description | undefined>>
  readonly training: Readonly<ShallowRef<TrainState>>
  /** When a pause ends by itself, in ms since 1970; null: nothing is paused. */
  readonly leaseUntil: Readonly<Ref<number | null>>
  readonly viewers: Readonly<Ref<number>>
  /** Who controls: this page, somebody else, nobody. */
  readonly control: Readonly<Ref<'mine' | 'taken' | 'free'>>
  /** The newest last. */
  readonly alerts: Readonly<ShallowRef<readonly Alert[]>>
  readonly audit: Readonly<ShallowRef<readonly AuditEntry[]>>
  readonly subscribe: (asked: Omit<Subscribe, 'id'>, sink: Sink) => Subscription
  /** Resolves when all ranks have it in force. Throws ScopeRefusal. */
  readonly command: (action: Action, reason?: string) => Promise<Result>
  readonly release: () => void
  /** Of a recording that is replayed: where it was, at `heardAt` in ms since 1970. */
  readonly replay: Readonly<ShallowRef<(ReplayState & { readonly heardAt: number }) | undefined>>
  readonly orderReplay: (order: ReplayOrder) => void
  /** Grows when what was known is known no more: a replay has jumped back, or events were lost. */
  readonly passes: Readonly<Ref<number>>
  /** What this page records, or has recorded last. */
  readonly recording: Readonly<ShallowRef<RecordingState | undefined>>
  /** Throws ScopeRefusal. */
  readonly record: (name: string, view: string) => Promise<void>
  readonly stopRecording: () => void
  /** Keeps what is on screen; resolves with its id. Throws ScopeRefusal. */
  readonly snapshot: (view: string) => Promise<string>
  readonly onEvent: (listener: (event: NumberedEvent) => void) => () => void
}

export const SCOPE: InjectionKey<Scope> = Symbol('scope')
export const LEASE_SECONDS = 60
const KEPT_ALERTS = 100
const KEPT_AUDIT = 200
const NO_CUT: Cut = { code: 0, reason: '' }

export function useScope(): Scope {
  const scope = inject(SCOPE)
  if (!scope) throw new Error('useScope() outside of a page of MegaScope')
  return scope
}

interface Waiting {
  readonly done: (result: Result) => void
  readonly failed: (why: ScopeRefusal) => void
}

/** A viewer of one run, or of a recording, as long as the calling component lives. The connection lives in a worker. */
export function createScope(run: Ref<string>, ofRecording: Readonly<Ref<string>> = shallowRef('')): Scope {
  const open = inject(OPEN_LINK, openWorker)
  const state = shallowRef<ScopeState>('connecting')
  const cut = shallowRef<Cut>(NO_CUT)
  const description = shallowRef<Description>()
  const training = shallowRef<TrainState>({})
  const leaseUntil = shallowRef<number | null>(null)
  const viewers = shallowRef(0)
  const me = shallowRef('')
  const controller = shallowRef('')
  const alerts = shallowRef<readonly Alert[]>([])
  const audit = shallowRef<readonly AuditEntry[]>([])
  const replay = shallowRef<ReplayState & { readonly heardAt: number }>()
  const passes = shallowRef(0)
  const recording = shallowRef<RecordingState>()
  let snapshots: { readonly done: (id: string) => void; readonly failed: (why: ScopeRefusal) => void }[] = []
  const sinks = new Map<number, Sink>()
  const waiting = new Map<string, Waiting>()
  const listeners = new Set<(event: NumberedEvent) => void>()
  let lastSubscription = 0
  let lastCommand = 0

  const link = open(hear)

  function hear(report: WorkerReport): void {
    switch (report.report) {
      case 'state':
        state.value = report.state
        cut.value = report.cut
        if (report.state !== 'live') leave()
        return
      case 'frame':
        return sinks.get(report.picture.frame.subscription)?.picture(report.picture)
      case 'event':
        return happened(report.event)
      case 'message':
        return said(report.message)
      case 'gap':
        forget()
        passes.value += 1
        return
    }
  }

  function said(message: Extract<WorkerReport, { report: 'message' }>['message']): void {
    const { welcome, description: described, subscribed, refused, stall, result, snapshot: taken, recording: kept, replay: at } = message
    if (welcome) me.value = welcome.viewer ?? ''
    if (described) describe(described)
    if (subscribed) sinks.get(subscribed.id)?.subscribed(subscribed)
    if (stall) sinks.get(stall.id)?.stalled(stall.reason)
    if (refused?.id) sinks.get(refused.id)?.refused(refused)
    if (refused?.command) settle(refused.command, refusalOf(refused.code, refused.message, refused.hint))
    if (refused && !refused.id && !refused.command) snapshots.shift()?.failed(refusalOf(refused.code, refused.message, refused.hint))
    if (result) finish(result)
    if (taken) snapshots.shift()?.done(taken.id)
    if (kept) keeps(kept)
    if (at) replay.value = { ...at, heardAt: Date.now() }
  }

  function keeps(kept: RecordingState): void {
    recording.value = kept
    const begun = kept.command ?? ''
    if (kept.limit === 'disk') return settle(begun, new ScopeRefusal('failed', ''))
    waiting.get(begun)?.done({ command: begun })
    waiting.delete(begun)
  }

  function forget(): void {
    training.value = {}
    leaseUntil.value = null
    alerts.value = []
    audit.value = []
  }

  function describe(described: Description): void {
    description.value = described
    controller.value = described.controller ?? ''
    if (described.state) takeState(described.state)
  }

  function takeState(told: TrainState): void {
    training.value = told
    leaseUntil.value = told.state === 'paused' && told.leaseSeconds ? Date.now() + told.leaseSeconds * 1000 : null
  }

  function happened(numbered: NumberedEvent): void {
    const { presence, audit: entry, alert, state: told } = numbered.event
    if (presence) {
      viewers.value = presence.viewers ?? 0
      const who = presence.viewer ?? ''
      if (presence.what === 'controls') controller.value = who
      else if (presence.what !== 'joined' && controller.value === who) controller.value = ''
    }
    if (told) takeState(told)
    if (alert) alerts.value = [...alerts.value, { ...alert, rank: alert.rank ?? numbered.rank }].slice(-KEPT_ALERTS)
    if (entry) audit.value = [...audit.value, entry].slice(-KEPT_AUDIT)
    for (const listener of listeners) listener(numbered)
  }

  /** Whoever is cut off controls no more, and hears no answers to what was asked. */
  function leave(): void {
    controller.value = ''
    for (const command of [...waiting.keys()]) settle(command, new ScopeRefusal('lost', ''))
    for (const one of snapshots) one.failed(new ScopeRefusal('lost', ''))
    snapshots = []
    // The gateway ends it with the connection.
    if (recording.value?.state === 'recording') recording.value = { ...recording.value, state: 'finished' }
  }

  function settle(command: string, why: ScopeRefusal): void {
    waiting.get(command)?.failed(why)
    waiting.delete(command)
  }

  function finish(result: Result): void {
    const { ack } = result
    if (ack?.code) return settle(result.command, refusalOf(ack.code, ack.hint))
    if ((result.answered ?? 0) < (result.ranks ?? 0)) return
    waiting.get(result.command)?.done(result)
    waiting.delete(result.command)
  }

  function subscribe(asked: Omit<Subscribe, 'id'>, sink: Sink): Subscription {
    const id = (lastSubscription += 1)
    sinks.set(id, sink)
    link.order({ order: 'subscribe', asked: { id, ...asked } })
    return {
      painted: () => link.order({ order: 'painted', id }),
      end: () => {
        if (sinks.delete(id)) link.order({ order: 'unsubscribe', id })
      },
    }
  }

  function command(action: Action, reason = ''): Promise<Result> {
    if (state.value !== 'live') return Promise.reject(new ScopeRefusal('lost', ''))
    const id = `page-${Date.now().toString(36)}-${(lastCommand += 1)}`
    return new Promise((done, failed) => {
      waiting.set(id, { done, failed })
      link.order({ order: 'say', message: { command: { id, ...(reason ? { reason } : {}), ...action } } })
    })
  }

  const control = computed(() => (controller.value === '' ? 'free' : controller.value === me.value ? 'mine' : 'taken'))
  /** A pause of this page lasts as long as somebody looks at it. */
  async function renew(): Promise<void> {
    if (training.value.state !== 'paused' || control.value !== 'mine') return
    const until = Date.now() + LEASE_SECONDS * 1000
    await command({ train: { do: 'renew', leaseSeconds: LEASE_SECONDS } }).then(() => (leaseUntil.value = until), () => undefined)
  }
  useIntervalFn(() => void renew(), (LEASE_SECONDS / 3) * 1000)

  watch(
    [run, ofRecording],
    ([name, kept]) => {
      description.value = undefined
      replay.value = undefined
      forget()
      if (name || kept) link.order({ order: 'open', url: scopeUrl(window.location), run: name, recording: kept, client: 'page' })
    },
    { immediate: true },
  )
  const visibility = useDocumentVisibility()
  watch(visibility, (seen) => link.order({ order: 'hidden', hidden: seen === 'hidden' }))
  const end = (): void => {
    link.order({ order: 'close' })
    link.close()
  }
  useEventListener(window, 'pagehide', () => link.order({ order: 'close' }))
  onScopeDispose(end)

  return {
    state, cut, description, training, leaseUntil, viewers, control, alerts, audit, subscribe, command, replay, passes, recording,
    orderReplay: (order) => link.order({ order: 'say', message: { replay: order } }),
    record: async (name, view) => void (await command({ record: { do: 'start', name, view } })),
    stopRecording: () => link.order({ order: 'say', message: { command: { id: 'stop', record: { do: 'stop' } } } }),
    snapshot: (view) => {
      if (state.value !== 'live') return Promise.reject(new ScopeRefusal('lost', ''))
      link.order({ order: 'say', message: { snapshot: { view } } })
      return new Promise((done, failed) => snapshots.push({ done, failed }))
    },
    release: () => link.order({ order: 'say', message: { control: { do: 'release' } } }),
    onEvent: (listener) => {
      listeners.add(listener)
      return () => listeners.delete(listener)
    },
  }
}

const refusalOf = (code = 'failed', message = '', hint = ''): ScopeRefusal => new ScopeRefusal(code, message, hint)
