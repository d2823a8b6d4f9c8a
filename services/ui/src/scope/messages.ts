/**
 * What the page and the gateway say to each other as texts: `ScopeClientMessage` and `ScopeServerMessage` of
 * proto/megatronapp/v1/scope.proto as proto3-JSON, where 64-bit numbers are strings. Only what the connection itself
 * reads is spelt out; the rest is handed on.
 */

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

export type ClientMessage =
  | { readonly join: { readonly client: string; readonly run?: string; readonly recording?: string; readonly resume?: { readonly epoch: string; readonly offset: string } } }
  | { readonly subscribe: Subscribe }
  | { readonly unsubscribe: { readonly id: number } }
  | { readonly credit: { readonly id: number; readonly frames: number } }
  | { readonly ping: { readonly time: number } }
  | { readonly command: Readonly<Record<string, unknown>> }
  | { readonly control: { readonly do: 'request' | 'release' } }
  | { readonly snapshot: { readonly view: string } }

export interface NumberedEvent {
  readonly offset: string | number
  readonly event: Readonly<Record<string, unknown>>
  readonly rank?: number
}

export interface ServerMessage {
  readonly welcome?: { readonly epoch: string; readonly offset: string | number; readonly role?: string; readonly viewer?: string }
  readonly event?: NumberedEvent
  readonly resumed?: { readonly offset: string | number }
  readonly gap?: { readonly reason: string }
  readonly goAway?: { readonly retryMilliseconds: number }
  readonly [other: string]: unknown
}
