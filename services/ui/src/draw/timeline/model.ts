import { bisectLeft } from 'd3-array'

/** Rows as the gateway sends them: one per (step, rank), column-wise. */
export interface TimelineColumns {
  origin_unix_seconds: number
  step: Float64Array
  rank: Uint32Array
  start_seconds: Float64Array
  duration_seconds: Float64Array
  compute_seconds: Float64Array
  wait_seconds: Float64Array
  host_seconds: Float64Array
  /** 1 where the step's spans are stored. */
  traced: Uint8Array
}

/**
 * A dense rank × step grid, ready to draw. Matrices are row-major: `[row * steps.length + index]`, seconds; NaN stands
 * where a rank has not reported a step. Starts count from `originUnixSeconds`.
 */
export interface TimelineModel {
  readonly originUnixSeconds: number
  readonly steps: Int32Array
  readonly ranks: Int32Array
  readonly start: Float64Array
  readonly duration: Float64Array
  readonly compute: Float64Array
  readonly wait: Float64Array
  readonly host: Float64Array
  /** Per step: 1 where its spans are stored. */
  readonly traced: Uint8Array
  /** Per step: first start and last end over the ranks. */
  readonly stepStart: Float64Array
  readonly stepEnd: Float64Array
}

const NOTHING = new Float64Array()

export const EMPTY_COLUMNS: TimelineColumns = {
  origin_unix_seconds: 0,
  step: NOTHING,
  rank: new Uint32Array(),
  start_seconds: NOTHING,
  duration_seconds: NOTHING,
  compute_seconds: NOTHING,
  wait_seconds: NOTHING,
  host_seconds: NOTHING,
  traced: new Uint8Array(),
}

export function buildModel(columns: TimelineColumns): TimelineModel {
  const steps = distinct(columns.step)
  const ranks = distinct(columns.rank)
  const matrix = (): Float64Array => new Float64Array(steps.length * ranks.length).fill(NaN)
  const model: TimelineModel = {
    originUnixSeconds: columns.origin_unix_seconds,
    steps,
    ranks,
    start: matrix(),
    duration: matrix(),
    compute: matrix(),
    wait: matrix(),
    host: matrix(),
    traced: new Uint8Array(steps.length),
    stepStart: new Float64Array(steps.length).fill(Infinity),
    stepEnd: new Float64Array(steps.length).fill(-Infinity),
  }
  for (let i = 0; i < columns.step.length; i += 1) placeRow(model, columns, i)
  return model
}

function placeRow(model: TimelineModel, columns: TimelineColumns, i: number): void {
  const step = bisectLeft(model.steps, columns.step[i])
  const cell = bisectLeft(model.ranks, columns.rank[i]) * model.steps.length + step
  const start = columns.start_seconds[i]
  model.start[cell] = start
  model.duration[cell] = columns.duration_seconds[i]
  model.compute[cell] = columns.compute_seconds[i]
  model.wait[cell] = columns.wait_seconds[i]
  model.host[cell] = columns.host_seconds[i]
  if (columns.traced[i]) model.traced[step] = 1
  model.stepStart[step] = Math.min(model.stepStart[step], start)
  model.stepEnd[step] = Math.max(model.stepEnd[step], start + columns.duration_seconds[i])
}

function distinct(values: Float64Array | Uint32Array): Int32Array {
  return Int32Array.from(new Set(values)).sort()
}

/** Rows of `fresh` replace those of the same steps in `known`; only the newest `keepSteps` steps are kept. */
export function mergeColumns(known: TimelineColumns, fresh: TimelineColumns, keepSteps: number): TimelineColumns {
  if (fresh.step.length === 0) return known
  const replaced = new Set(fresh.step)
  const all = [...new Set([...known.step, ...fresh.step])].sort((a, b) => a - b)
  const oldest = all[Math.max(0, all.length - keepSteps)]
  const keptKnown = indicesWhere(known.step, (step) => step >= oldest && !replaced.has(step))
  const keptFresh = indicesWhere(fresh.step, (step) => step >= oldest)
  const origin = known.step.length ? known.origin_unix_seconds : fresh.origin_unix_seconds
  const shift = fresh.origin_unix_seconds - origin
  const join = <T extends Float64Array | Uint32Array | Uint8Array>(a: T, b: T, into: new (length: number) => T): T => {
    const joined = new into(keptKnown.length + keptFresh.length)
    keptKnown.forEach((from, to) => (joined[to] = a[from]))
    keptFresh.forEach((from, to) => (joined[keptKnown.length + to] = b[from]))
    return joined
  }
  return {
    origin_unix_seconds: origin,
    step: join(known.step, fresh.step, Float64Array),
    rank: join(known.rank, fresh.rank, Uint32Array),
    start_seconds: join(known.start_seconds, fresh.start_seconds.map((start) => start + shift), Float64Array),
    duration_seconds: join(known.duration_seconds, fresh.duration_seconds, Float64Array),
    compute_seconds: join(known.compute_seconds, fresh.compute_seconds, Float64Array),
    wait_seconds: join(known.wait_seconds, fresh.wait_seconds, Float64Array),
    host_seconds: join(known.host_seconds, fresh.host_seconds, Float64Array),
    traced: join(known.traced, fresh.traced, Uint8Array),
  }
}

function indicesWhere(values: Float64Array, keep: (value: number) => boolean): number[] {
  const found: number[] = []
  values.forEach((value, index) => void (keep(value) && found.push(index)))
  return found
}
