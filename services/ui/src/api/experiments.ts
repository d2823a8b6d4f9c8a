import { client, expect } from './client'
import type { components } from './schema'

type Schemas = components['schemas']
export type Surprisal = Schemas['PromptSurprisal']
export type Trace = Schemas['CausalTrace']
export type Comparison = Schemas['PromptComparison']
export type SweptPoint = Schemas['SweptPoint']
export type Attribution = Schemas['LogitAttribution']
export type InputAttribution = Schemas['InputAttribution']

const of = (run: string): { path: { run: string } } => ({ path: { run } })

/** Each takes several passes of the model; leaving ends it. */
export const getSurprisal = (run: string, body: Schemas['SurprisalRequest'], signal: AbortSignal): Promise<Surprisal[]> => expect(client.POST('/api/v1/scope/runs/{run}/surprisal', { params: of(run), body, signal }))

export const traceCauses = (run: string, body: Schemas['CausalTraceRequest'], signal: AbortSignal): Promise<Trace> => expect(client.POST('/api/v1/scope/runs/{run}/causal-trace', { params: of(run), body, signal }))

export const comparePasses = (run: string, body: Schemas['ComparisonRequest'], signal: AbortSignal): Promise<Comparison> => expect(client.POST('/api/v1/scope/runs/{run}/comparison', { params: of(run), body, signal }))

export const sweepCoefficients = (run: string, body: Schemas['SweepRequest'], signal: AbortSignal): Promise<SweptPoint[]> => expect(client.POST('/api/v1/scope/runs/{run}/sweep', { params: of(run), body, signal }))

export const attributeLogits = (run: string, body: Schemas['AttributionRequest'], signal: AbortSignal): Promise<Attribution> => expect(client.POST('/api/v1/scope/runs/{run}/attribution', { params: of(run), body, signal }))

export const attributeInput = (run: string, body: Schemas['InputAttributionRequest'], signal: AbortSignal): Promise<InputAttribution> => expect(client.POST('/api/v1/scope/runs/{run}/input-attribution', { params: of(run), body, signal }))
