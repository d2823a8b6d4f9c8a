/** From the history of runs to curves: attempts strung together, smoothed, on one axis. Pure. */
import type { AttemptHistory, Marker, RunHistory, SeriesName } from '@/api/types'

export type Axis = 'step' | 'time'
export type Values = readonly (number | null)[]

/** One value of one run. x is the step, or the seconds since the run's start. */
export interface Curve {
  readonly x: readonly number[]
  readonly mean: Values
  readonly low: Values
  readonly high: Values
  /** Whether `low` and `high` say more than `mean`. */
  readonly thinned: boolean
}

export interface Point {
  readonly x: number
  readonly y: number
}

export const SERIES: readonly SeriesName[] = [
  'loss', 'step_seconds', 'tokens_per_second', 'tflops_per_gpu', 'grad_norm', 'learning_rate', 'bubble_ratio',
  'device_memory_bytes', 'host_memory_bytes',
]

export const startOf = (run: RunHistory): number => run.attempts.at(0)?.started_unix_seconds ?? 0

/** Steps that a later attempt did again are left out: each step is there once. */
export function curveOf(run: RunHistory, name: SeriesName, axis: Axis): Curve {
  const begin = startOf(run)
  const [x, mean, low, high]: [number[], (number | null)[], (number | null)[], (number | null)[]] = [[], [], [], []]
  let thinned = false
  for (const attempt of run.attempts) {
    const series = attempt.series.find((one) => one.name === name)
    const count = keptBins(attempt)
    for (let i = 0; i < count; i += 1) {
      x.push(axis === 'step' ? attempt.last_step[i] : attempt.unix_seconds[i] - begin)
      mean.push(series?.mean[i] ?? null)
      low.push((series?.min ?? series?.mean)?.[i] ?? null)
      high.push((series?.max ?? series?.mean)?.[i] ?? null)
    }
    thinned ||= series?.min != null
  }
  return { ...ascending(x, mean, low, high), thinned }
}

export function hasSeries(run: RunHistory, name: SeriesName): boolean {
  return run.attempts.some((attempt) => attempt.series.some((series) => series.name === name))
}

/** How often a value was no number, and the first step that it was not. */
export function broken(run: RunHistory, name: SeriesName): { count: number; step: number | null } {
  const bins = run.attempts.flatMap((attempt) => {
    const series = attempt.series.find((one) => one.name === name)
    return (series?.non_finite ?? []).map((bin) => attempt.first_step[bin])
  })
  return { count: bins.length, step: bins.length ? Math.min(...bins) : null }
}

/** Losses of evaluations; where an attempt did one again, the later counts. */
export function evaluationsOf(run: RunHistory, axis: Axis): Point[] {
  const points = new Map<string, Point>()
  for (const attempt of run.attempts) {
    for (const { split, step, loss } of attempt.evaluations) {
      const x = axis === 'step' ? step : timeOf(attempt, step, startOf(run))
      if (loss !== null && x !== null) points.set(`${split} ${step}`, { x, y: loss })
    }
  }
  return [...points.values()].sort((a, b) => a.x - b.x)
}

/** Where a marker stands on the axis; null: it is not known. */
export function positionOf(marker: Marker, run: RunHistory, axis: Axis): number | null {
  if (axis === 'step') return marker.step
  return marker.unix_seconds === null ? null : marker.unix_seconds - startOf(run)
}

/** How far a run has come on the axis; null: it has not begun. */
export function endOf(run: RunHistory, axis: Axis): number | null {
  const ends = run.attempts.flatMap(({ last_step: step, unix_seconds: time }) => (axis === 'step' ? step.slice(-1) : time.slice(-1).map((one) => one - startOf(run))))
  return ends.length ? Math.max(...ends) : null
}

/**
 * An average that forgets: `weight` of the value before, the rest of the new one, without the pull of the first value
 * (as in TensorBoard). A value that is not known stays so.
 */
export function smoothed(values: Values, weight: number): Values {
  if (weight <= 0) return values
  let [average, share] = [0, 0]
  return values.map((value) => {
    if (value === null) return null
    average = average * weight + value * (1 - weight)
    share = share * weight + (1 - weight)
    return average / share
  })
}

/** Columns over all x of all curves; null where a curve has none there. */
export function aligned(curves: readonly { x: readonly number[]; columns: readonly Values[] }[]): { x: number[]; columns: (number | null)[][] } {
  if (curves.length === 1) return { x: [...curves[0].x], columns: curves[0].columns.map((column) => [...column]) }
  const x = [...new Set(curves.flatMap((curve) => curve.x))].sort((a, b) => a - b)
  const index = new Map(x.map((value, i) => [value, i]))
  const columns = curves.flatMap((curve) =>
    curve.columns.map((column) => {
      const spread = new Array<number | null>(x.length).fill(null)
      curve.x.forEach((value, i) => (spread[index.get(value) ?? 0] = column[i]))
      return spread
    }),
  )
  return { x, columns }
}

function keptBins(attempt: AttemptHistory): number {
  const { kept_to_step: kept, last_step: last } = attempt
  if (kept === null) return last.length
  const beyond = last.findIndex((step) => step > kept)
  return beyond < 0 ? last.length : beyond
}

/** A clock that was set back, or attempts that overlap, leave x that goes back: a plot needs it ascending. */
function ascending(x: number[], ...columns: (number | null)[][]): { x: number[]; mean: Values; low: Values; high: Values } {
  const sorted = x.every((value, i) => i === 0 || x[i - 1] <= value)
  const order = sorted ? null : x.map((_, i) => i).sort((a, b) => x[a] - x[b])
  const put = <T>(column: T[]): T[] => order?.map((i) => column[i]) ?? column
  const [mean, low, high] = columns.map(put)
  return { x: put(x), mean, low, high }
}

function timeOf(attempt: AttemptHistory, step: number, begin: number): number | null {
  const bin = attempt.last_step.findIndex((last) => last >= step)
  return bin < 0 ? null : attempt.unix_seconds[bin] - begin
}
