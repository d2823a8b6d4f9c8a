/**
 * What the page and the gateway say to each other as texts: `ScopeClientMessage` and `ScopeServerMessage` of
 * proto/megatronapp/v1/scope.proto as proto3-JSON. There 64-bit numbers are strings, and what is zero or empty is
 * left out.
 */

/** A whole number of 64 bits, as JSON has it. */
export type Long = string | number

export interface Subscribe {
  /** The page's own number for it, from 1; one in use is replaced. */
  readonly id: number
  readonly expression: string
  readonly maxFps?: number
  readonly width?: number
  readonly height?: number
  readonly quantizer?: string
  readonly codec?: string
  readonly credits?: number
  readonly request?: string
}

/** One of a plan: see docs/scope.md. */
export interface Perturbation {
  readonly place: 'storage' | 'calculation' | 'system'
  readonly kind: string
  readonly site?: string
  readonly coefficient?: number
  readonly layers?: string
  readonly heads?: string
  readonly tokens?: string
  readonly channels?: string
  readonly steps?: string
  readonly bits?: string
  readonly withHeads?: string
  readonly redraw?: boolean
  readonly off?: boolean
  readonly keepInCheckpoints?: boolean
}

export interface Plan {
  readonly plan: string
  readonly perturbations: readonly Perturbation[]
  readonly seed?: Long
  readonly replica?: number
  readonly request?: string
}

export type Action =
  | { readonly train: { readonly do: 'pause' | 'step' | 'run_to' | 'resume' | 'renew'; readonly steps?: number; readonly untilStep?: number; readonly leaseSeconds?: number } }
  | { readonly perturb: Plan }
  | { readonly perturbClear: { readonly plan?: string } }
  /** A GenerationRequest or Control as JSON (docs/generation.md). */
  | { readonly generation: { readonly command: string } }
  /** What this viewer gets, as a file; `view` is the page's address. */
  | { readonly record: { readonly do: 'start' | 'stop'; readonly name?: string; readonly view?: string } }

export type ClientMessage =
  | { readonly join: { readonly client: string; readonly run?: string; readonly recording?: string; readonly resume?: { readonly epoch: string; readonly offset: string } } }
  | { readonly subscribe: Subscribe }
  | { readonly unsubscribe: { readonly id: number } }
  | { readonly credit: { readonly id: number; readonly frames: number } }
  | { readonly ping: { readonly time: number } }
  | { readonly command: { readonly id: string; readonly reason?: string } & Action }
  | { readonly control: { readonly do: 'request' | 'release' } }
  | { readonly snapshot: { readonly view: string } }
  | { readonly replay: ReplayOrder }

/** To a recording that is replayed. */
export interface ReplayOrder {
  readonly do: 'play' | 'pause' | 'seek'
  readonly seconds?: number
  readonly speed?: number
}

/** Where a replay is. */
export interface ReplayState {
  readonly seconds?: number
  readonly durationSeconds?: number
  readonly playing?: boolean
  readonly speed?: number
  /** What was looked at, and can be again. */
  readonly subscriptions?: readonly Subscribe[]
  readonly name?: string
  readonly recordedUnixSeconds?: number
}

/** The recording that this viewer makes. */
export interface RecordingState {
  readonly id: string
  readonly command?: string
  readonly state: 'recording' | 'finished'
  readonly bytes?: Long
  readonly seconds?: number
  /** Why it ended by itself. */
  readonly limit?: string
}

export interface TrainState {
  readonly state?: string
  readonly step?: Long
  readonly totalSteps?: Long
  readonly overheadRatio?: number
  readonly droppedFrames?: Long
  /** Until the pause ends by itself. */
  readonly leaseSeconds?: number
  /** Names of the plans in force. */
  readonly plan?: string
}

export interface Alert {
  readonly kind: string
  readonly site?: string
  readonly layer?: number
  readonly step?: Long
  readonly microbatch?: number
  readonly detail?: string
  readonly rank?: number
}

export interface AuditEntry {
  readonly unixNs?: Long
  readonly by?: string
  readonly action?: string
  readonly detail?: string
  readonly reason?: string
  readonly outcome?: string
  readonly command?: string
}

export interface Presence {
  readonly viewer?: string
  readonly what?: 'joined' | 'left' | 'controls' | 'released'
  readonly viewers?: number
  readonly role?: string
}

export interface ScopeEvent {
  readonly unixNs?: Long
  readonly generation?: { readonly event: string; readonly request: string }
  readonly state?: TrainState
  readonly alert?: Alert
  readonly presence?: Presence
  readonly audit?: AuditEntry
  readonly [other: string]: unknown
}

export interface NumberedEvent {
  readonly offset: Long
  readonly event: ScopeEvent
  readonly rank?: number
}

export interface Axis {
  readonly name: string
  /** 0 or absent: another one in each frame. */
  readonly size?: number
}

export interface Site {
  readonly name: string
  readonly layers?: readonly number[]
  readonly axes?: readonly Axis[]
  readonly dtype?: string
  /** "forward", "backward", "generate". */
  readonly passes?: readonly string[]
}

export interface Model {
  readonly name?: string
  readonly layers?: number
  readonly hidden?: number
  readonly heads?: number
  readonly queryGroups?: number
  readonly headChannels?: number
  readonly vocabulary?: number
  readonly sequenceLength?: number
  readonly microBatchSize?: number
  readonly microbatches?: number
  readonly dtype?: string
}

/** Who is connected and what can be looked at. */
export interface Description {
  readonly run?: string
  readonly job?: string
  readonly model?: Model
  readonly sizes?: Readonly<Record<string, number>>
  readonly sites?: readonly Site[]
  readonly roles?: readonly string[]
  readonly ranks?: readonly number[]
  readonly missingRanks?: readonly number[]
  readonly state?: TrainState
  /** The viewer who controls. */
  readonly controller?: string
  /** It is over: a recording. */
  readonly replay?: boolean
}

export interface Subscribed {
  readonly id: number
  readonly expression: string
  readonly shape?: readonly number[]
  readonly axes?: readonly string[]
  readonly kind?: string
  readonly quantizer?: string
  readonly frameBytes?: Long
  readonly costMicroseconds?: number
  readonly framesPerStep?: number
  /** Names along the last axis of statistics. */
  readonly statistics?: readonly string[]
}

export interface Refused {
  readonly id?: number
  readonly command?: string
  readonly code?: string
  /** Where in the expression, from 0. */
  readonly position?: number
  readonly message?: string
  readonly hint?: string
}

export interface Result {
  readonly command: string
  readonly ack?: { readonly code?: string; readonly hint?: string; readonly effectiveStep?: Long }
  readonly ranks?: number
  readonly answered?: number
}

export interface ServerMessage {
  readonly welcome?: { readonly epoch: string; readonly offset?: Long; readonly role?: string; readonly viewer?: string }
  readonly description?: Description
  readonly subscribed?: Subscribed
  readonly refused?: Refused
  readonly event?: NumberedEvent
  readonly resumed?: { readonly offset?: Long }
  readonly gap?: { readonly reason?: string }
  readonly stall?: { readonly id: number; readonly reason: string }
  readonly result?: Result
  readonly snapshot?: { readonly id: string }
  readonly recording?: RecordingState
  readonly replay?: ReplayState
  readonly goAway?: { readonly retryMilliseconds?: number }
  readonly [other: string]: unknown
}
