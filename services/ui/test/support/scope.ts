import type { AuditEntry, ClientMessage, Description, Plan, ScopeEvent, ServerMessage, Site, Subscribe, Subscribed, TrainState } from '@/scope/messages'
import { packFrame, packTexts } from './scopeFrames'
import { FakeGeneration } from './scopeGeneration'
import { FakeRecording } from './scopeRecordings'

export interface FakeModel {
  readonly layers: number
  readonly heads: number
  readonly channels: number
  readonly tokens: number
}

export const SMALL: FakeModel = { layers: 4, heads: 4, channels: 32, tokens: 16 }

/** What a viewer's socket is told. */
export type Send = (message: string | Uint8Array<ArrayBuffer>) => void

interface Viewer {
  readonly name: string
  readonly send: Send
  readonly role: string
  recording?: FakeRecording
  readonly subscriptions: Map<number, { readonly asked: Subscribe; credits: number; sequence: number; /** Steps of a generation wait one after the other. */ readonly waiting: [position: number, rows: number][] }>
}

/**
 * MegaScope of one made-up run: answers, frames and events of the gateway's `mscope.v1`, as far as pages ask for them.
 * Values are functions of site, layer, place and step. It only trains when it is told to `advance`.
 */
export class FakeScope {
  step = 0
  state: TrainState['state'] = 'training'
  plans = new Map<string, Plan>()
  role = 'operator'
  /** Somebody else who controls. */
  controller = ''
  /** Layers whose values are NaN, and shards that are late. */
  broken: readonly number[] = []
  late = 0
  replicas = 1
  connected = true
  job = 'team/fake'
  roles = ['train', 'perturb', 'generate']
  readonly commands: Record<string, unknown>[] = []
  readonly recordings: FakeRecording[] = []
  readonly audit: (AuditEntry & { readonly at: number })[] = []
  readonly generation: FakeGeneration
  private readonly viewers = new Set<Viewer>()
  private offset = 0
  private until: number | null = null

  constructor(
    readonly run: string,
    readonly model: FakeModel = SMALL,
  ) {
    this.generation = new FakeGeneration((request, event) => this.say({ generation: { request, event: JSON.stringify(event) } }), (request, at, rows) => this.generated(request, at, rows))
  }

  /** A viewer's connection; the returned function takes what the viewer says. */
  connect(send: Send, close: (code: number, reason: string) => void): { readonly hear: (text: string) => void; readonly leave: () => void } {
    const viewer: Viewer = {
      name: `viewer-${this.viewers.size + 1}`, role: this.role, subscriptions: new Map(),
      send: (message) => {
        viewer.recording?.take(message)
        send(message)
      },
    }
    return {
      hear: (text) => this.hear(viewer, JSON.parse(text) as ClientMessage & Record<string, never>, close),
      leave: () => {
        this.viewers.delete(viewer)
        if (this.controller === viewer.name) this.controller = ''
      },
    }
  }

  /** Expressions that viewers look at. */
  get asked(): string[] {
    return this.subscribed.map(({ expression }) => expression)
  }

  get subscribed(): Subscribe[] {
    return [...this.viewers].flatMap(({ subscriptions }) => [...subscriptions.values()].map(({ asked }) => asked))
  }

  /** One more step of the training, unless it is paused. */
  advance(): void {
    if (this.state === 'paused') return
    this.step += 1
    for (const viewer of this.viewers) for (const id of viewer.subscriptions.keys()) this.show(viewer, id)
    if (this.until !== null && this.step >= this.until) this.pause()
  }

  say(event: ScopeEvent, rank?: number): void {
    this.offset += 1
    for (const viewer of this.viewers) this.tell(viewer, { event: { offset: String(this.offset), event: { unixNs: String(Date.now() * 1e6), ...event }, ...(rank === undefined ? {} : { rank }) } })
  }

  /** Whoever looks at this is told why something of it does not come. */
  stall(expression: string, reason: string): void {
    for (const viewer of this.viewers) for (const [id, { asked }] of viewer.subscriptions) if (asked.expression === expression) this.tell(viewer, { stall: { id, reason } })
  }

  records(): Record<string, unknown>[] {
    return this.audit.map(({ at, by = '', action = '', detail = '', reason = '', outcome = '', command = '' }) => ({ unix_seconds: at, by, action, detail, reason, outcome, command }))
  }

  description(): Description {
    const { layers, heads, channels, tokens } = this.model
    return {
      run: this.run, job: this.job,
      model: { name: 'fake', layers, heads, queryGroups: Math.max(1, heads / 2), hidden: channels, headChannels: channels / heads, vocabulary: 256, sequenceLength: tokens, dtype: 'bf16' },
      sizes: { world: 2, tensor: this.replicas > 1 ? 1 : 2, pipeline: 1, data: this.replicas },
      sites: this.connected ? sitesOf(this.model) : [],
      roles: this.roles,
      ranks: this.connected ? [0, 1] : [],
      state: this.trainState(),
      controller: this.controller,
    }
  }

  private trainState(): TrainState {
    return { state: this.state, step: String(this.step), totalSteps: '1000', overheadRatio: 0.006, ...(this.state === 'paused' ? { leaseSeconds: 60 } : {}), plan: [...this.plans.keys()].join(', ') }
  }

  private tell({ send }: Viewer, message: ServerMessage): void {
    send(JSON.stringify(message))
  }

  private hear(viewer: Viewer, message: ClientMessage & Record<string, never>, close: (code: number, reason: string) => void): void {
    if ('join' in message) return this.join(viewer, (message as { join: { run: string } }).join.run, close)
    if ('subscribe' in message) return this.subscribe(viewer, message.subscribe as Subscribe)
    if ('ping' in message) return this.tell(viewer, { pong: message.ping } as ServerMessage)
    if ('unsubscribe' in message) return void viewer.subscriptions.delete((message.unsubscribe as { id: number }).id)
    if ('credit' in message) {
      const { id, frames } = message.credit as { id: number; frames: number }
      const subscription = viewer.subscriptions.get(id)
      if (!subscription) return
      subscription.credits += frames
      for (const [position, rows] of subscription.waiting.splice(0)) this.show(viewer, id, position, rows)
      return
    }
    if ('snapshot' in message) return this.tell(viewer, { snapshot: { id: this.record(viewer, '', (message.snapshot as { view: string }).view, true).id } })
    if ('command' in message && 'record' in (message.command as object)) return this.recordingOf(viewer, message.command as { id: string; record: { do: string; view?: string } })
    if ('command' in message) return this.command(viewer, message.command as Record<string, unknown>)
    if ('control' in message) this.control(viewer, (message.control as { do: string }).do)
  }

  private recordingOf(viewer: Viewer, { id, record }: { readonly id: string; readonly record: { readonly do: string; readonly view?: string } }): void {
    if (viewer.role !== 'operator') return this.tell(viewer, { refused: { command: id, code: 'forbidden', message: 'recording needs the operator role' } })
    if (record.do === 'start') {
      const { id: made } = this.record(viewer, id, record.view ?? '', false)
      return this.tell(viewer, { recording: { id: made, command: id, state: 'recording', bytes: '4096', seconds: 0 } })
    }
    const made = viewer.recording
    if (!made) return
    made.finished = true
    viewer.recording = undefined
    this.tell(viewer, { recording: { id: made.id, state: 'finished', bytes: '9000', seconds: made.seconds } })
  }

  private record(viewer: Viewer, _command: string, view: string, snapshot: boolean): FakeRecording {
    const made = new FakeRecording(`${'0'.repeat(15)}${this.recordings.length + 1}`, { view, snapshot, at: Date.now() / 1000 }, this.description())
    this.recordings.push(made)
    viewer.recording = made
    for (const { asked } of viewer.subscriptions.values()) made.ask(asked, this.answerOf(asked))
    for (const id of viewer.subscriptions.keys()) this.show(viewer, id)
    made.finished = snapshot
    if (snapshot) viewer.recording = undefined
    return made
  }

  private answerOf(asked: Subscribe): Subscribed {
    const planned = plan(asked.expression, this.model)
    if ('message' in planned) return { id: asked.id, expression: asked.expression }
    return { id: asked.id, expression: asked.expression, shape: [...planned.shape], axes: planned.axes, kind: planned.kind, quantizer: 'asinh', frameBytes: '4176', costMicroseconds: 24, framesPerStep: Math.max(1, planned.layers.length), statistics: planned.statistics }
  }

  private join(viewer: Viewer, run: string, close: (code: number, reason: string) => void): void {
    if (run !== this.run) return close(4400, `no run ${run}`)
    this.viewers.add(viewer)
    this.tell(viewer, { welcome: { viewer: viewer.name, epoch: 'e1', offset: String(this.offset), role: viewer.role } })
    this.tell(viewer, { description: this.description() })
    this.say({ presence: { viewer: viewer.name, what: 'joined', viewers: this.viewers.size, role: viewer.role } })
  }

  private subscribe(viewer: Viewer, asked: Subscribe): void {
    const planned = plan(asked.expression, this.model)
    if ('message' in planned) return this.tell(viewer, { refused: { id: asked.id, ...planned } })
    viewer.subscriptions.set(asked.id, { asked, credits: asked.credits ?? 2, sequence: 0, waiting: [] })
    this.tell(viewer, { subscribed: this.answerOf(asked) })
    viewer.recording?.ask(asked, this.answerOf(asked))
    if (!this.connected) this.tell(viewer, { stall: { id: asked.id, reason: 'no_producer' } })
  }

  private show(viewer: Viewer, id: number, position?: number, rows = 1): void {
    const subscription = viewer.subscriptions.get(id)
    if (!subscription) return
    if (position !== undefined && subscription.credits < 1) return void subscription.waiting.push([position, rows])
    const whole = plan(subscription.asked.expression, this.model)
    if ('message' in whole) return
    const planned = position === undefined ? whole : newRows(whole, position, rows)
    for (const layer of planned.layers.length ? planned.layers : [undefined]) {
      if (subscription.credits < 1) return
      subscription.credits -= 1
      subscription.sequence += 1
      const step = position ?? this.step
      viewer.send(packFrame({ ...frameOf(planned, layer, step, this.broken), subscription: id, sequence: subscription.sequence, step, layer, microbatch: 0, missingShards: this.late, request: subscription.asked.request }))
    }
  }

  /** A generation came to a position: what is watched of it is shown. */
  private generated(request: string, position: number, rows: number): void {
    for (const viewer of this.viewers) for (const [id, { asked }] of viewer.subscriptions) if (asked.request === request) this.show(viewer, id, position, rows)
  }

  private control(viewer: Viewer, what: string): boolean {
    if (what === 'release') {
      if (this.controller === viewer.name) this.controller = ''
      this.say({ presence: { viewer: viewer.name, what: 'released', viewers: this.viewers.size } })
      return true
    }
    if (this.controller && this.controller !== viewer.name) return false
    if (this.controller !== viewer.name) {
      this.controller = viewer.name
      this.say({ presence: { viewer: viewer.name, what: 'controls', viewers: this.viewers.size } })
    }
    return true
  }

  private command(viewer: Viewer, command: Record<string, unknown>): void {
    this.commands.push(command)
    const id = String(command.id)
    const refuse = (code: string, message: string, hint = ''): void => this.tell(viewer, { refused: { command: id, code, message, hint } })
    if (viewer.role !== 'operator') return refuse('forbidden', 'this needs the operator role')
    if (!this.control(viewer, 'request')) return refuse('not_controller', 'somebody else controls this run', 'wait until it is released')
    const action = ['train', 'perturb', 'perturbClear', 'generation'].find((one) => one in command) ?? ''
    if (action === 'perturb' && !command.reason) return refuse('invalid', 'perturb needs a reason', 'say why; it is kept in the audit')
    const named = action === 'perturbClear' ? 'perturb_clear' : action
    const entry = { at: Date.now() / 1000, by: 'operator ann', action: named, detail: action === 'generation' ? '{}' : JSON.stringify(command[action]), reason: String(command.reason ?? ''), command: `${viewer.name}:${id}` }
    this.audit.push(entry)
    this.say({ audit: entry })
    this.carryOut(action, command)
    this.audit.push({ ...entry, at: Date.now() / 1000, detail: '', reason: '', outcome: 'done' })
    this.tell(viewer, { result: { command: id, ack: { effectiveStep: String(this.step + 1) }, ranks: 2, answered: 2 } })
  }

  private carryOut(action: string, command: Record<string, unknown>): void {
    if (action === 'perturb') this.plans.set((command.perturb as Plan).plan, command.perturb as Plan)
    if (action === 'perturbClear') {
      const { plan: name } = command.perturbClear as { plan?: string }
      if (name) this.plans.delete(name)
      else this.plans.clear()
    }
    if (action === 'generation') this.generation.command((command.generation as { command: string }).command)
    if (action === 'train') this.train(command.train as { do: string; steps?: number; untilStep?: number })
  }

  private train({ do: what, steps = 1, untilStep = 0 }: { do: string; steps?: number; untilStep?: number }): void {
    if (what === 'pause') return this.pause()
    if (what === 'renew') return
    this.state = 'training'
    this.until = what === 'step' ? this.step + steps : what === 'run_to' ? untilStep : null
    this.say({ state: this.trainState() }, 0)
    if (what === 'step') for (let i = 0; i < steps; i += 1) this.advance()
  }

  private pause(): void {
    this.state = 'paused'
    this.until = null
    this.say({ state: this.trainState() }, 0)
  }
}

/** What its training reads. */
const WORDS = ['The', ' cat', ' sat', ' on', ' the', ' mat', '\n', '\u202Eevil']

function sitesOf({ layers, heads, channels }: FakeModel): Site[] {
  const every = Array.from({ length: layers }, (_, layer) => layer)
  const [batch, token] = [{ name: 'batch', size: 2 }, { name: 'token' }]
  const rows = (name: string, size: number): Site => ({ name, layers: every, axes: [batch, token, { name: 'chan', size }], dtype: 'bf16', passes: ['forward'] })
  const perHead = (name: string, axis: string): Site => ({ name, layers: every, axes: [batch, token, { name: axis, size: heads }, { name: 'chan', size: channels / heads }], passes: ['forward'] })
  return [
    { name: 'tokens', axes: [batch, token] },
    { name: 'embed', axes: [batch, token, { name: 'chan', size: channels }] },
    rows('resid_pre', channels), rows('resid_mid', channels), rows('resid_post', channels),
    perHead('attn.q', 'head'), perHead('attn.k', 'group'), perHead('attn.v', 'group'),
    { name: 'attn.scores', layers: every, axes: [batch, { name: 'head', size: heads }, { name: 'query' }, { name: 'key' }] },
    { name: 'attn.probs', layers: every, axes: [batch, { name: 'head', size: heads }, { name: 'query' }, { name: 'key' }] },
    perHead('attn.context', 'head'), rows('attn.out', channels),
    rows('mlp.fc1', 4 * channels), rows('mlp.act', 4 * channels), rows('mlp.out', channels),
    { name: 'final_norm', axes: [batch, token, { name: 'chan', size: channels }] },
    { name: 'logits', axes: [batch, token, { name: 'vocab', size: 256 }] },
    { name: 'loss', axes: [batch, token] },
    { ...rows('sae.mid', 12 * channels), layers: [1] },
    { name: 'weight.mlp.linear_fc1.weight', layers: every, axes: [{ name: 'out', size: 4 * channels }, { name: 'in', size: channels }] },
    { name: 'opt.exp_avg.mlp.linear_fc1.weight', layers: every, axes: [{ name: 'out', size: 4 * channels }, { name: 'in', size: channels }] },
    { ...rows('grad.mlp.out', channels), passes: ['backward'] }, { ...rows('grad.resid_post', channels), passes: ['backward'] },
  ]
}

interface Planned {
  readonly site: string
  readonly layers: readonly number[]
  readonly axes: readonly string[]
  readonly shape: readonly number[]
  readonly kind: 'tensor' | 'topk' | 'hist'
  readonly statistics?: readonly string[]
  readonly pca: boolean
  /** Of a generation: the position of the first row. */
  readonly from?: number
}
interface PlanRefused {
  readonly code: string
  readonly position?: number
  readonly message: string
  readonly hint?: string
}

/** As far as tests and pictures need it: slices by one index, statistics, histograms, top-k, pca. */
function plan(text: string, model: FakeModel): Planned | PlanRefused {
  const [selector, ...operations] = text.split('|').map((part) => part.trim())
  const [, picks, name] = /^(?:layers\[([^\]]*)\]\.)?([\w.]+)$/.exec(selector) ?? []
  const site = sitesOf(model).find((one) => one.name === name)
  if (!site) return { code: 'unknown_site', message: `there is no site ${selector}`, hint: 'one of attn.q, resid_post' }
  const layers = !site.layers?.length ? [] : picks === '*' ? site.layers : (picks ?? '').split(',').map(Number)
  if (layers.some((layer) => !(layer < model.layers))) return { code: 'invalid', message: `there is no layer ${picks}`, hint: `0 to ${model.layers - 1}` }
  let axes = (site.axes ?? []).map(({ name: axis }) => axis)
  let sizes = (site.axes ?? []).map(({ size }) => size ?? model.tokens)
  let kind: Planned['kind'] = 'tensor'
  let statistics: readonly string[] | undefined
  let pca = false
  for (const operation of operations) {
    const [, what, inner = ''] = /^(\w+)(?:\(([^)]*)\))?$/.exec(operation) ?? []
    const at = axes.indexOf(what ?? '')
    if (at >= 0 && /^\d+$/.test(inner)) [axes, sizes] = [axes.toSpliced(at, 1), sizes.toSpliced(at, 1)]
    else if (what === 'last') sizes = sizes.map((size, i) => (axes[i] === 'query' || (axes[i] === 'token' && !axes.includes('query')) ? Math.min(size, Number(inner)) : size))
    else if (what === 'stats') [statistics, axes, sizes] = [inner.split(','), ['stat'], [inner.split(',').length]]
    else if (what === 'replicas') [axes, sizes] = [['replica', ...axes], [2, ...sizes]]
    else if (what === 'hist') [kind, axes, sizes] = ['hist', ['bin'], [Number(inner.split(',')[0])]]
    else if (what === 'topk' || what === 'logitlens') [kind, axes, sizes] = ['topk', axes.with(-1, 'top'), sizes.with(-1, Number(inner))]
    else if (what === 'pca') [pca, axes, sizes] = [true, ['row', 'component'], [sizes.slice(0, -1).reduce((a, b) => a * b, 1), 2]]
    else if (['mean', 'entropy', 'norm', 'max', 'absmax'].includes(what ?? '')) [axes, sizes] = [axes.filter((axis) => axis !== inner), sizes.filter((_, i) => axes[i] !== inner)]
    else return { code: 'syntax', position: text.indexOf(operation), message: `there is no operation ${what ?? operation}`, hint: 'one of head, pool, stats' }
  }
  return { site: name, layers, axes, shape: sizes, kind, statistics, pca }
}

/** With a cache of keys and values, a step of a generation has its new rows alone. */
function newRows(planned: Planned, position: number, rows: number): Planned {
  if (planned.kind !== 'tensor' || planned.statistics) return planned
  if (planned.pca) return { ...planned, shape: [position + 1, 2] }
  return { ...planned, shape: planned.shape.with(-2, rows).with(-1, planned.axes.at(-1) === 'key' ? position + 1 : planned.shape.at(-1)!), from: position - rows + 1 }
}

const hash = (x: number): number => {
  const value = Math.sin(x * 12.9898) * 43758.5453
  return value - Math.floor(value)
}

function frameOf(planned: Planned, layer: number | undefined, step: number, broken: readonly number[]): Pick<Parameters<typeof packFrame>[0], 'kind' | 'dims' | 'values' | 'indexes' | 'absent' | 'explained' | 'rows' | 'logSumExp' | 'exact' | 'tokenTexts'> {
  const { site, shape, kind, statistics } = planned
  const size = shape.reduce((a, b) => a * b, 1)
  const columns = shape.at(-1) ?? 1
  const seed = (layer ?? 0) * 31 + site.length
  /** The second replica of layer 1 is half as large again. */
  const statisticOf = (i: number, replica: number): number => {
    const name = statistics?.[i]
    if (name === 'nonfinite') return Number(broken.includes(layer ?? -1)) * 12
    if (name === 'zero') return 0.01 * hash(seed)
    return (1 + (layer ?? 0) * 0.4) * (i + 1) * (1 + 0.1 * hash(seed + step + i)) * (replica && layer === 1 ? 1.5 : 1)
  }
  if (statistics) return { dims: shape, exact: true, values: Float32Array.from({ length: size }, (_, at) => statisticOf(at % columns, Math.floor(at / columns))) }
  if (kind === 'hist') return { kind: 'HIST', dims: shape, values: Float32Array.from({ length: size }, (_, i) => Math.round(4000 * Math.exp(-(((i - size / 2) / (size / 9)) ** 2)))) }
  if (kind === 'topk') {
    const values = Float32Array.from({ length: size }, (_, i) => 5 - (i % columns) * 0.7 + hash(i + seed + step) * 0.1)
    return { kind: 'TOPK', dims: shape, values, indexes: Uint32Array.from({ length: size }, (_, i) => Math.floor(hash(i * 3 + seed + step) * 256)), logSumExp: Float32Array.from({ length: size / columns }, () => 5.7) }
  }
  if (planned.pca) {
    const values = Float32Array.from({ length: size }, (_, i) => Math.cos((i >> 1) / 3 + (i % 2) * 1.4) * (1 + (i >> 1) / 20) + hash(i + seed) * 0.3)
    return { dims: shape, exact: true, values, explained: Float32Array.from([0.62, 0.21]), rows: Uint32Array.from({ length: 2 * size }, (_, i) => [0, step, 0, i >> 2][i & 3]) }
  }
  if (site === 'tokens') return { dims: shape, exact: true, values: Float32Array.from({ length: size }, (_, i) => i % WORDS.length), tokenTexts: packTexts(new Map(WORDS.entries())) }
  const probabilities = site === 'attn.probs'
  const absent = site.startsWith('attn.probs') || site === 'attn.scores' ? Uint8Array.from({ length: size }, (_, i) => (i % columns > (planned.from ?? 0) + (Math.floor(i / columns) % (shape.at(-2) ?? 1)) ? 2 : 0)) : undefined
  const values = Float32Array.from({ length: size }, (_, i) => {
    const [row, column] = [(planned.from ?? 0) + (Math.floor(i / columns) % (shape.at(-2) ?? 1)), i % columns]
    if (broken.includes(layer ?? -1) && i % 97 === 5) return i % 2 ? NaN : Infinity
    if (probabilities) return Math.exp(-Math.abs(row - column - 1) * 0.8 - hash(seed) * column * 0.05) + (column === 0 ? 0.4 : 0)
    const outlier = column === Math.floor(columns / 3) ? 8 : 1
    return outlier * (Math.sin(column * 0.37 + seed) + Math.cos(row * 0.5 + step * 0.2) + 0.8 * (hash(i + seed + step) - 0.5))
  })
  return { dims: shape, values, absent }
}
