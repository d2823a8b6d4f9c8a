/** The spans of a step, as lanes of ranks; read from a trace in Chrome's format (GET …/trace?format=chrome). */

export type SpanPart = 'compute' | 'backward' | 'wait' | 'host' | 'frame'

export interface Span {
  readonly name: string
  readonly part: SpanPart
  /** Seconds from the trace's first span. */
  readonly start: number
  readonly end: number
  readonly microbatch: number | null
  /** How many spans lie around it. */
  readonly depth: number
}

/** From then on. */
export interface Held {
  readonly at: number
  readonly count: number
}

/** Slots of a backward rank that hold a microbatch of the forward ranks; activations that a stage holds which chooses
 * its order; bytes that are under way from it to the neighbour that has most of them. */
export type Holding = 'slots' | 'activations' | 'bytes'

export interface HeldLine {
  readonly of: Holding
  /** By time. */
  readonly held: readonly Held[]
  /** Null where none holds the rank up. */
  readonly cap: number | null
}

export interface Lane {
  readonly rank: number
  readonly stream: number
  readonly label: string
  readonly spans: readonly Span[]
  readonly depths: number
  readonly lines: readonly HeldLine[]
}

/** From a message's send to its receive, or through the ranks of a collective. */
export interface Arrow {
  readonly from: { readonly lane: number; readonly at: number }
  readonly to: { readonly lane: number; readonly at: number }
}

export interface StepSpans {
  readonly lanes: readonly Lane[]
  readonly arrows: readonly Arrow[]
  readonly end: number
}

const GRAIN_SECONDS = 1e-9

interface TraceEvent {
  readonly ph: string
  readonly name?: string
  readonly pid: number
  readonly tid: number
  readonly ts?: number
  readonly dur?: number
  readonly id?: number
  readonly args?: Record<string, unknown>
}

const PARTS: Record<string, SpanPart> = {
  step: 'frame',
  forward: 'compute',
  backward: 'backward',
  wgrad: 'backward',
  optimizer: 'compute',
  layer_forward: 'compute',
  layer_backward: 'backward',
  data: 'host',
  gc: 'host',
  checkpoint: 'host',
  checkpoint_write: 'host',
  evaluate: 'host',
  processor_probe: 'host',
  decide: 'host',
  in_flight: 'host',
}
/** The span that tells of it: how much in `tokens`, its cap in `length_squares`. */
const TOLD_BY: Record<Holding, string> = { slots: 'wait_input', activations: 'decide', bytes: 'in_flight' }
const WAITS = /^wait_|_(send|recv)$|^(all_reduce|all_gather|reduce_scatter|broadcast|all_to_all|barrier|grad_sync)$/

export function partOf(name: string): SpanPart {
  return PARTS[name] ?? (WAITS.test(name) ? 'wait' : 'compute')
}

/** Throws SyntaxError for what is no such trace. */
export function readTrace(text: string): StepSpans {
  const { traceEvents } = JSON.parse(text) as { traceEvents?: TraceEvent[] }
  if (!Array.isArray(traceEvents)) throw new SyntaxError('no trace events')
  const labels = new Map<string, string>()
  const slices = new Map<string, TraceEvent[]>()
  for (const event of traceEvents) {
    const key = `${event.pid}/${event.tid}`
    if (event.ph === 'M' && event.name === 'thread_name') labels.set(key, String(event.args?.name ?? event.tid))
    if (event.ph === 'X') slices.set(key, [...(slices.get(key) ?? []), event])
  }
  const lanes = [...slices.entries()]
    .map(([key, events]) => laneOf(events, labels.get(key) ?? ''))
    .sort((a, b) => a.rank - b.rank || a.stream - b.stream)
  const end = Math.max(0, ...lanes.flatMap(({ spans }) => spans.map((span) => span.end)))
  return { lanes, arrows: arrowsOf(traceEvents, lanes), end }
}

function laneOf(events: TraceEvent[], label: string): Lane {
  const sorted = events.toSorted((a, b) => (a.ts ?? 0) - (b.ts ?? 0) || (b.dur ?? 0) - (a.dur ?? 0))
  const around: number[] = []
  const spans = sorted.map(({ name = '', ts = 0, dur = 0, args }): Span => {
    const [start, end] = [ts / 1e6, (ts + dur) / 1e6]
    // Times are written in µs with three digits: a span begins where another has ended.
    while (around.length && around[around.length - 1] <= start + GRAIN_SECONDS) around.pop()
    around.push(end)
    const microbatch = typeof args?.microbatch === 'number' ? args.microbatch : null
    return { name, part: partOf(name), start, end, microbatch, depth: around.length - 1 }
  })
  const [{ pid, tid }] = events
  return { rank: pid, stream: tid, label, spans, depths: Math.max(...spans.map(({ depth }) => depth)) + 1, lines: linesOf(sorted) }
}

function linesOf(sorted: readonly TraceEvent[]): HeldLine[] {
  return (Object.keys(TOLD_BY) as Holding[]).flatMap((of) => {
    const told = sorted.filter(({ name }) => name === TOLD_BY[of])
    if (!told.length) return []
    const held = told.map(({ ts = 0, args }) => ({ at: ts / 1e6, count: countOf(args?.tokens) }))
    return [{ of, held, cap: Math.max(0, ...told.map(({ args }) => countOf(args?.length_squares))) || null }]
  })
}

function countOf(value: unknown): number {
  return typeof value === 'number' ? value : 0
}

function arrowsOf(events: readonly TraceEvent[], lanes: readonly Lane[]): Arrow[] {
  const laneAt = new Map(lanes.map((lane, index) => [`${lane.rank}/${lane.stream}`, index]))
  const last = new Map<number, { lane: number; at: number }>()
  const arrows: Arrow[] = []
  for (const { ph, id, pid, tid, ts = 0 } of events) {
    if (id === undefined || !'stf'.includes(ph)) continue
    const lane = laneAt.get(`${pid}/${tid}`)
    if (lane === undefined) continue
    const point = { lane, at: ts / 1e6 }
    const before = last.get(id)
    if (before && ph !== 's') arrows.push({ from: before, to: point })
    last.set(id, point)
  }
  return arrows
}
