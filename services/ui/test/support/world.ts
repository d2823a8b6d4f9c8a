import type { Clock, Finding, Job, JobState, Metrics, Rank, RankStatus, Recipe, Timeline } from '@/api/types'

/** What goes wrong in a made-up run. */
export interface Fault {
  readonly ranks: readonly number[]
  readonly since: number
  readonly until?: number
  /** Compute ÷ usual compute. */
  readonly effect: number
}

export interface WorldOptions {
  readonly run?: string
  readonly name?: string
  readonly ranks: number
  readonly steps: number
  readonly pipeline?: number
  readonly perNode?: number
  readonly attempt?: number
  readonly oldestStep?: number
  readonly faults?: readonly Fault[]
  /** Spans are stored of the first two of so many steps. */
  readonly tracedEvery?: number
  readonly state?: JobState
  readonly reason?: string
  /** Why it is in its state, in the operator's words. */
  readonly message?: string
  /** None of its ranks has been heard. */
  readonly unheard?: boolean
  /** The step after which a second attempt went on. */
  readonly restartedAt?: number
  readonly settings?: Readonly<Record<string, string>>
  /** Added to the loss. */
  readonly worse?: number
}

export const STEP_SECONDS = 1
const COMPUTE = 0.62
const WAIT = 0.08
const BEGIN = 1_790_000_000
const TRACED = 2
const UNKNOWN_SIZES = { world: 0, tensor: 0, pipeline: 0, data: 0, context: 0, expert: 0, virtual_pipeline: 0 }

/** One step of one rank, in seconds. */
export interface StepValues {
  readonly compute: number
  readonly wait: number
  readonly host: number
  readonly duration: number
}

export type Curves = Readonly<Record<'loss' | 'learning_rate' | 'grad_norm' | 'step_seconds' | 'tokens_per_second' | 'tflops_per_gpu', number>>

/**
 * A run with any number of ranks and steps, made up as it is asked for: the same question has the same answer. Ranks
 * are spread over stages and nodes in their order; compute scatters by one percent, and faults make it longer.
 */
export class World {
  readonly run: string
  readonly name: string
  readonly ranks: number
  readonly pipeline: number
  readonly attempt: number
  readonly oldestStep: number
  readonly faults: readonly Fault[]
  readonly tracedEvery: number
  state: JobState
  readonly reason: string
  readonly message: string
  readonly unheard: boolean
  attached: Job['attached'] = null
  newestStep: number
  /** Ranks that say nothing any more. */
  silent = new Set<number>()
  readonly restartedAt: number | null
  readonly recipe: Recipe
  private readonly perNode: number
  private readonly worse: number

  constructor(options: WorldOptions) {
    this.run = options.run ?? 'run-fake'
    this.name = options.name ?? 'team/fake'
    this.ranks = options.ranks
    this.pipeline = options.pipeline ?? 1
    this.perNode = options.perNode ?? 8
    this.attempt = options.attempt ?? 1
    this.oldestStep = options.oldestStep ?? 1
    this.newestStep = options.steps
    this.faults = options.faults ?? []
    this.tracedEvery = options.tracedEvery ?? 10
    this.state = options.state ?? 'running'
    this.reason = options.reason ?? ''
    this.message = options.message ?? ''
    this.unheard = options.unheard ?? false
    this.restartedAt = options.restartedAt ?? null
    this.worse = options.worse ?? 0
    this.recipe = { settings: { lr: '0.0003', seed: '1234', bf16: 'true', 'num-layers': '32', ...options.settings }, versions: { torch: '2.9.1', 'megatron-core': '0.16.1' } }
  }

  /** 0, as the newest, where no step has been reported. */
  get oldestStored(): number {
    return Math.min(this.oldestStep, this.newestStep)
  }

  stageOf(rank: number): number {
    return Math.floor(rank / Math.max(1, Math.ceil(this.ranks / this.pipeline)))
  }

  traced(step: number): boolean {
    return step % this.tracedEvery < TRACED
  }

  effect(rank: number, step: number): number {
    const faults = this.faults.filter((fault) => fault.ranks.includes(rank) && step >= fault.since && step <= (fault.until ?? Infinity))
    return faults.reduce((effect, fault) => effect * fault.effect, 1)
  }

  values(rank: number, step: number): StepValues {
    const compute = COMPUTE * (1 + 0.01 * noise(rank * 7919 + step)) * this.effect(rank, step)
    const host = 0.02 * (1 + 0.2 * noise(rank * 31 + step * 17))
    const slowest = COMPUTE * Math.max(1, ...this.faults.filter(({ since, until }) => step >= since && step <= (until ?? Infinity)).map(({ effect }) => effect))
    const wait = Math.max(0.01, slowest - compute) + WAIT
    return { compute, wait, host, duration: compute + wait + host }
  }

  /** What the run tells of itself at a step, as curves and as its newest numbers. */
  curves(step: number): Curves {
    const slow = Math.max(1, ...this.faults.map(({ since, until, effect }) => (step >= since && step <= (until ?? Infinity) ? effect : 1)))
    return {
      loss: this.lossOf(step),
      learning_rate: 3e-4 * Math.min(1, step / 100) * (0.55 + 0.45 * Math.cos(step / 4000)),
      grad_norm: 0.9 + 0.1 * noise(step) + 2 * Math.exp(-step / 200),
      step_seconds: STEP_SECONDS * slow * (1 + 0.02 * noise(step)),
      tokens_per_second: 16_384 / slow,
      tflops_per_gpu: 410 / slow,
    }
  }

  readonly lossOf = (step: number): number => loss(step) + this.worse

  startOf(step: number): number {
    return BEGIN + step * STEP_SECONDS
  }

  job(now: number): Job {
    const slow = this.findings(now).flatMap((finding) => finding.ranks)
    const known = (value: number): number | null => (this.unheard ? null : value)
    const newest = this.curves(this.newestStep)
    return {
      run: this.run,
      job: this.name,
      namespace: this.name.split('/')[0],
      name: this.name.split('/')[1],
      attempt: this.unheard ? 0 : this.attempt,
      state: this.state,
      attached: this.attached,
      state_reason: this.reason,
      state_message: this.message,
      sizes: this.unheard ? UNKNOWN_SIZES : { world: this.ranks, tensor: 1, pipeline: this.pipeline, data: Math.ceil(this.ranks / this.pipeline), context: 1, expert: 1, virtual_pipeline: 1 },
      step: this.unheard ? 0 : this.newestStep,
      total_steps: this.unheard ? 0 : Math.max(50_000, this.newestStep),
      step_seconds: known(newest.step_seconds),
      loss: known(newest.loss),
      loss_trend: this.unheard ? [] : Array.from({ length: 24 }, (_, i) => this.lossOf(1 + i * Math.floor(this.newestStep / 24))),
      learning_rate: known(newest.learning_rate),
      grad_norm: known(newest.grad_norm),
      tokens_per_second: known(newest.tokens_per_second),
      tflops_per_gpu: known(newest.tflops_per_gpu),
      non_finite: [],
      eta_seconds: ['running', 'stalled'].includes(this.state) ? 3600 : null,
      ranks_connected: ['starting', 'running', 'stalled'].includes(this.state) && !this.unheard ? this.ranks : 0,
      ranks_silent: this.silent.size,
      slow_ranks: slow,
      open_findings: this.faults.length,
      trace_control: null,
      started_unix_seconds: this.startOf(this.oldestStep),
      updated_unix_seconds: now,
    }
  }

  rank(rank: number): Rank {
    return {
      rank,
      node: `node-${Math.floor(rank / this.perNode)}`,
      gpu_uuid: `GPU-${rank.toString(16).padStart(8, '0')}`,
      device: 'cuda',
      device_id: '',
      device_name: 'H200',
      role: '',
      local_rank: rank % this.perNode,
      placement: { tensor: 0, pipeline: this.stageOf(rank), data: rank % Math.ceil(this.ranks / this.pipeline), context: 0, expert: 0 },
      connected: true,
      ended: false,
      step: this.newestStep,
      activity: 'forward',
      activity_seconds: 0.1,
      heartbeat_age_seconds: this.silent.has(rank) ? 8 : 0.4,
      dropped: 0,
      gpu: null,
      memory: null,
    }
  }

  rankStatus(rank: number): RankStatus {
    const { node, device, local_rank, connected, ended, heartbeat_age_seconds } = this.rank(rank)
    return { run: this.run, rank, node, device, local_rank, connected, ended, heartbeat_age_seconds }
  }

  clock(rank: number): Clock {
    return {
      rank, node: `node-${Math.floor(rank / this.perNode)}`, offset_ns: 100 * rank, drift_ppm: 0.1, error_ns: 800,
      residual_median_ns: 300, residual_p90_ns: 900, raw_residual_median_ns: 5000, fitted: rank > 0, anchors: 40,
    }
  }

  metrics(limit: number): Metrics {
    const first = Math.max(this.oldestStep, this.newestStep - limit + 1)
    const step = Array.from({ length: this.newestStep - first + 1 }, (_, i) => first + i)
    const curves = step.map((one) => this.curves(one))
    return {
      step,
      unix_seconds: step.map((one) => this.startOf(one)),
      step_seconds: curves.map((one) => one.step_seconds),
      loss: curves.map((one) => one.loss),
      learning_rate: curves.map((one) => one.learning_rate),
      grad_norm: curves.map((one) => one.grad_norm),
      tokens_per_second: curves.map((one) => one.tokens_per_second),
      tflops_per_gpu: curves.map((one) => one.tflops_per_gpu),
    }
  }

  findings(now: number): Finding[] {
    return this.faults.map((fault, index) => {
      const steps = Array.from({ length: 60 }, (_, i) => Math.max(1, fault.since - 10) + i)
      return {
        id: `${this.run}-finding-${index}`,
        run: this.run,
        job: this.name,
        attempt: this.attempt,
        kind: 'slow_gpu',
        cause: 'compute',
        ranks: [...fault.ranks],
        workers: [],
        node: this.rank(fault.ranks[0]).node,
        gpu_uuid: this.rank(fault.ranks[0]).gpu_uuid,
        since_step: fault.since,
        effect_ratio: fault.effect,
        cost_ratio: 1 + 0.9 * (fault.effect - 1),
        confidence: 0.99,
        state: 'open',
        page: true,
        evidence: [
          { signal: 'compute_effect', text: 'compute over that of its peers', unit: 'ratio', steps, values: steps.map((step) => this.effect(fault.ranks[0], step)), expected: steps.map(() => 1) },
        ],
        summary: `Rank ${fault.ranks[0]} computes slower since step ${fault.since}.`,
        advice: 'Look at its clocks.',
        opened_unix_ns: this.startOf(fault.since + 4) * 1e9,
        resolved_unix_ns: 0,
        opened_step: fault.since + 4,
        resolved_step: null,
        updated_unix_ns: now * 1e9,
        since_unix_ns: this.startOf(fault.since) * 1e9,
        devices: [],
        opened_attempt: this.attempt,
        refuted_unix_ns: 0,
      }
    })
  }

  rows(first: number, last: number): Timeline {
    const steps = Array.from({ length: Math.max(0, Math.min(last, this.newestStep) - Math.max(first, this.oldestStep) + 1) }, (_, i) => Math.max(first, this.oldestStep) + i)
    const cells = steps.flatMap((step) => Array.from({ length: this.ranks }, (_, rank) => ({ step, rank, ...this.values(rank, step) })))
    return {
      origin_unix_seconds: steps.length ? this.startOf(steps[0]) : 0,
      step: cells.map(({ step }) => step),
      rank: cells.map(({ rank }) => rank),
      start_seconds: cells.map(({ step }) => this.startOf(step) - this.startOf(steps[0])),
      duration_seconds: cells.map(({ duration }) => duration),
      compute_seconds: cells.map(({ compute }) => compute),
      wait_seconds: cells.map(({ wait }) => wait),
      host_seconds: cells.map(({ host }) => host),
      traced: cells.map(({ step }) => this.traced(step)),
    }
  }
}

const loss = (step: number): number => 2.1 + 6.5 * Math.exp(-step / 900) + 0.02 * noise(step)

/** −1 to 1, of an integer: the same each time. */
export function noise(seed: number): number {
  let hash = Math.imul(seed ^ 0x9e3779b9, 0x85ebca6b)
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35)
  return ((hash ^ (hash >>> 16)) >>> 0) / 0x7fffffff - 1
}
