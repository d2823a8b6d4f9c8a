import type { Annotation, Finding, LiveEvent, Report } from '@/api/types'
import { answerExperiment } from './experiments'
import { COLUMNS_TYPE, gridBytes } from './grid'
import { differenceOf, historyOf, markersOf, timeSpentOf } from './runs'
import { chromeTrace } from './spans'
import { FakeScope } from './scope'
import type { FakeRecording, RecordingEntry } from './scopeRecordings'
import type { World } from './world'

export interface Answer {
  readonly status: number
  readonly type: string
  readonly body: string | Uint8Array<ArrayBuffer>
}

/**
 * The gateway of made-up runs: the REST answers, events and bytes of the real one, as far as pages ask for them. It may
 * be told to fail. A test holds it against openapi.json and against what a real gateway has answered.
 */
export class FakeGateway {
  /** What is asked for below these paths is answered with this status. */
  readonly failing = new Map<string, number>()
  /** What experiments were asked for. */
  readonly experiments: unknown[] = []
  readonly asked: string[] = []
  /** `silent`: it takes everything and answers nothing; `down`: nobody reaches it. */
  condition: 'up' | 'silent' | 'down' = 'up'
  collectorLost: number | null = null
  canSilence = true
  /** Whether the session that asks has signed in. */
  signedIn = true
  /** That the report counts. */
  incidents = 0
  /** Findings that only the store still has. */
  readonly archived: Finding[] = []
  readonly annotations: Annotation[] = []
  /** Runs that are known and no longer listed. */
  readonly unlisted = new Set<string>()
  /** Seconds since 1970. */
  now = (): number => Date.now() / 1000
  /** MegaScope of a run, where it is on. */
  readonly scopes = new Map<string, FakeScope>()
  /** Recordings that are gone; whether a file that is brought is refused, and what it becomes. */
  readonly deleted = new Set<string>()
  bad = false
  brought: Partial<RecordingEntry> = {}
  private readonly listeners = new Set<(event: LiveEvent) => void>()
  private readonly connections = new Set<() => void>()
  private readonly cache = new Map<string, Answer>()

  constructor(readonly worlds: readonly World[]) {}

  answer(method: string, url: URL, body?: unknown): Answer {
    const path = url.pathname
    this.asked.push(`${method} ${path}${url.search}`)
    for (const [below, status] of this.failing) if (path.startsWith(below)) return failure(status)
    if (path === '/api/v1/session') return json({ authenticated: this.signedIn, role: this.signedIn ? 'operator' : null, name: this.signedIn ? 'ann' : '', can_silence: this.canSilence, expires_unix_seconds: null })
    if (path === '/api/v1/jobs') return json(this.listed().map((world) => world.job(this.now())))
    if (path === '/api/v1/ranks') return json(this.listed().flatMap((world) => (world.unheard ? [] : Array.from({ length: world.ranks }, (_, rank) => world.rankStatus(rank)))))
    if (path === '/api/v1/findings') {
      const run = url.searchParams.get('run')
      return json(run ? [...this.worlds.flatMap((world) => world.findings(this.now())), ...this.archived].filter((one) => one.run === run) : this.findings(this.now()))
    }
    if (path === '/api/v1/report') return json(reportOf(this.incidents))
    if (path.startsWith('/api/v1/scope/recordings')) return this.ofRecordings(method, path.slice('/api/v1/scope/recordings/'.length))
    if (path === '/api/v1/scope/tickets') return { ...json({ ticket: 'made-up', expires_unix_seconds: this.now() + 30 }), status: 201 }
    if (path === '/api/v1/scope/audit') return json(this.scopes.get(url.searchParams.get('run') ?? '')?.records() ?? [])
    const experiment = /^\/api\/v1\/scope\/runs\/[^/]+\/(.+)$/.exec(path)?.[1]
    if (experiment) this.experiments.push(body)
    if (experiment) return json(answerExperiment(experiment, body))
    if (path.startsWith('/api/v1/history')) return this.ofRuns(path, url.searchParams)
    if (path.startsWith('/api/v1/findings/')) return this.ofFinding(method, path.slice('/api/v1/findings/'.length), url.searchParams, body)
    const [, run, rest = ''] = /^\/api\/v1\/jobs\/([^/]+)(?:\/(.*))?$/.exec(path) ?? []
    const world = this.worlds.find((one) => one.run === decodeURIComponent(run ?? ''))
    return world ? this.ofJob(world, rest, url.searchParams) : failure(404)
  }

  private ofJob(world: World, what: string, query: URLSearchParams): Answer {
    const number = (name: string, otherwise: number): number => Number(query.get(name) ?? otherwise)
    const [from, to] = [number('from_step', 0), number('to_step', 0)]
    const attempt = number('attempt', 0)
    if (attempt && attempt !== world.attempt) return failure(404)
    switch (what) {
      case '':
        return json({ ...world.job(this.now()), recipe: world.recipe, evaluations: [] })
      case 'time-spent':
        return json(timeSpentOf(world))
      case 'markers':
        return json(markersOf(world))
      case 'ranks':
        return json(Array.from({ length: world.ranks }, (_, rank) => world.rank(rank)))
      case 'clocks':
        return json(Array.from({ length: world.ranks }, (_, rank) => world.clock(rank)))
      case 'metrics':
        return json(world.metrics(number('limit', 2000)))
      case 'timeline':
        return json(world.rows(Math.max(from, (to || world.newestStep) - number('limit', 200) + 1), to || world.newestStep))
      case 'timeline/grid':
        if (Math.max(from, world.oldestStored) > Math.min(to || world.newestStep, world.newestStep)) return failure(422)
        return this.once(`${world.run} ${world.newestStep} ${query.toString()}`, () => ({
          status: 200,
          type: COLUMNS_TYPE,
          body: gridBytes(world, { from, to, buckets: Math.min(number('buckets', 512), Math.max(32, Math.floor(number('cells', 1 << 18) / world.ranks))), bucketSteps: number('bucket_steps', 0) }),
        }))
      case 'trace':
        return world.traced(from) ? json(chromeTrace(world, from, query.get('ranks') ?? '')) : failure(404)
      case 'trace-control':
        return json({ requested: null, in_force: null, ranks: 0, ranks_confirmed: 0 })
    }
    return failure(404)
  }

  private listed(): World[] {
    return this.worlds.filter(({ run }) => !this.unlisted.has(run))
  }

  private findings(now: number): Finding[] {
    return this.listed().flatMap((world) => world.findings(now))
  }

  private ofRuns(path: string, query: URLSearchParams): Answer {
    const asked = query.getAll('run')
    const worlds = asked.map((run) => this.worlds.find((world) => world.run === run))
    if (worlds.some((world) => !world)) return failure(404)
    const known = worlds as World[]
    if (path.endsWith('/recipe-difference')) return json(differenceOf(known))
    const number = (name: string, otherwise: number): number => Number(query.get(name) ?? otherwise)
    return json(known.map((world) => historyOf(world, { from: number('from_step', 0), to: number('to_step', 0), points: number('points', 600) })))
  }

  private ofFinding(method: string, rest: string, query: URLSearchParams, body: unknown): Answer {
    const all = [...this.worlds.flatMap((world) => world.findings(this.now())), ...this.archived]
    if (rest === 'history') {
      const [job, rank, node, device] = ['job', 'rank', 'node', 'device'].map((name) => query.get(name) ?? '')
      const chosen = all.filter((one) => (!job || one.job === job) && (!rank || one.ranks.includes(Number(rank))) && (!node || one.node === node) && (!device || one.gpu_uuid === device || one.devices.includes(device)))
      return json(chosen.map((one) => ({ ...one, evidence: [] })).sort((a, b) => b.opened_unix_ns - a.opened_unix_ns))
    }
    const [id, what = ''] = rest.split('/')
    const finding = all.find((one) => one.id === decodeURIComponent(id))
    if (!finding) return failure(404)
    if (what === '') return json(finding)
    if (method === 'GET') return json(this.annotations.filter((one) => one.finding === finding.id))
    const said = (body ?? {}) as { kind?: Annotation['kind']; text?: string; seconds?: number }
    const kind = what === 'silence' ? (method === 'DELETE' ? 'unsilence' : 'silence') : (said.kind ?? 'comment')
    const annotation: Annotation = {
      id: `said-${this.annotations.length}`, finding: finding.id, kind, by: 'ann', text: said.text ?? '', silence: '',
      unix_ns: this.now() * 1e9, until_unix_ns: kind === 'silence' ? (this.now() + (said.seconds ?? 0)) * 1e9 : 0,
    }
    this.annotations.push(annotation)
    this.say({ type: 'annotation', annotation })
    return { ...json(annotation), status: method === 'POST' ? 201 : 200 }
  }

  /** What a viewer hears first. */
  greeting(): LiveEvent[] {
    const now = this.now()
    return [
      { type: 'snapshot', jobs: this.listed().map((world) => world.job(now)), findings: this.findings(now), annotations: this.annotations },
      this.ping(),
    ]
  }

  ping(): LiveEvent {
    return { type: 'ping', unix_seconds: this.now(), collector_lost_unix_seconds: this.collectorLost }
  }

  /** Every job is heard again, as it stands. */
  beat(): void {
    for (const world of this.listed()) this.say({ type: 'job', job: world.job(this.now()) })
  }

  /** Ends a step of a run. */
  advance(world: World): void {
    world.newestStep += 1
    const { step, ...columns } = world.metrics(1)
    const row = Object.fromEntries(Object.entries(columns).map(([name, [value]]) => [name, value]))
    this.say({ type: 'step', run: world.run, row: { step: step[0], ...row } as Extract<LiveEvent, { type: 'step' }>['row'] })
    this.say({ type: 'job', job: world.job(this.now()) })
  }

  /** A viewer of MegaScope; which run it wants its first message says. */
  view(send: (message: string | Uint8Array<ArrayBuffer>) => void, close: (code: number, reason: string) => void): { readonly hear: (text: string) => void; readonly leave: () => void } {
    let connection: ReturnType<FakeScope['connect']> | undefined
    return {
      hear: (text) => {
        if (!connection) {
          const { run = '', recording = '' } = (JSON.parse(text) as { join?: { run?: string; recording?: string } }).join ?? {}
          const kept = this.recording(recording)
          connection = kept ? { hear: kept.replay(send), leave: () => undefined } : this.scopes.get(run)?.connect(send, close)
          if (!connection) return close(4400, `no rank of run ${run} is connected`)
        }
        connection.hear(text)
      },
      leave: () => connection?.leave(),
    }
  }

  private recording(id: string): FakeRecording | undefined {
    return this.recordings().find((one) => one.id === id)
  }

  private recordings(): FakeRecording[] {
    return [...this.scopes.values()].flatMap(({ recordings }) => recordings).filter(({ id }) => !this.deleted.has(id))
  }

  private ofRecordings(method: string, id: string): Answer {
    if (method === 'POST') return this.bad ? failure(422) : { ...json(this.brought), status: 201 }
    if (!id) return json([...this.recordings()].reverse().map((one) => one.entry()))
    const found = this.recording(id)
    if (!found) return failure(404)
    if (method !== 'DELETE') return json(found.entry())
    this.deleted.add(id)
    return { status: 204, type: 'text/plain', body: '' }
  }

  /** Turns MegaScope on for a run. */
  scope(run: string, model?: ConstructorParameters<typeof FakeScope>[1]): FakeScope {
    const scope = new FakeScope(run, model)
    scope.job = this.worlds.find((world) => world.run === run)?.name ?? scope.job
    this.scopes.set(run, scope)
    return scope
  }

  say(event: LiveEvent): void {
    if (this.condition !== 'up') return
    for (const listener of this.listeners) listener(event)
  }

  listen(listener: (event: LiveEvent) => void): () => void {
    this.listeners.add(listener)
    return () => this.listeners.delete(listener)
  }

  /** Of whatever is connected: `cut` is called when the gateway goes down. */
  connected(cut: () => void): () => void {
    this.connections.add(cut)
    return () => this.connections.delete(cut)
  }

  get connectionCount(): number {
    return this.connections.size
  }

  /** Killed, or begun again: nobody is told. */
  turn(condition: 'up' | 'silent' | 'down'): void {
    this.condition = condition
    if (condition === 'down') for (const cut of [...this.connections]) cut()
  }

  private once(key: string, make: () => Answer): Answer {
    const known = this.cache.get(key) ?? make()
    if (this.cache.size > 32) this.cache.clear()
    this.cache.set(key, known)
    return known
  }
}

const reportOf = (incidents: number): Report => ({
  from_unix_seconds: 1_789_000_000, to_unix_seconds: 1_790_000_000, incidents, open: 0, mean_seconds_to_resolve: incidents ? 600 : null,
  levels: incidents ? [{ level: 'P1', incidents, open: 0, mean_seconds_to_resolve: 600 }] : [],
  causes: incidents ? [{ cause: 'compute', incidents }] : [],
  repeat_offenders: incidents > 1 ? [{ kind: 'node', name: 'node-3', incidents, alerts: ['SlowGpu', 'SlowLink'] }, { kind: 'gpu', name: 'GPU-00000003', incidents: incidents - 1, alerts: ['SlowGpu'] }, { kind: 'job', name: 'research/moe-ablation', incidents: 2, alerts: ['Hang'] }] : [],
  trend: [],
})

const json = (body: unknown): Answer => ({ status: 200, type: 'application/json', body: JSON.stringify(body) })

function failure(status: number): Answer {
  const code = { 401: 'unauthenticated', 404: 'not_found', 503: 'unavailable' }[status] ?? 'invalid_request'
  return { status, type: 'application/json', body: JSON.stringify({ error: { code, message: `made to answer ${status}`, hint: 'it is a test' } }) }
}
