import type { StepGrid } from '@/draw/timeline/grid'

export interface StepSpan {
  readonly from: number
  readonly to: number
}

/** "60-61" */
export function formatRange({ from, to }: StepSpan): string {
  return `${from}-${to}`
}

export function parseRange(text: unknown): StepSpan | null {
  const [, from, to] = /^(\d{1,15})-(\d{1,15})$/.exec(typeof text === 'string' ? text : '') ?? []
  return from ? { from: Number(from), to: Number(to) } : null
}

/** Steps of one trace at most: more than this makes a trace viewer slow and tells no more. */
export const MAX_TRACE_STEPS = 40

/**
 * The steps in view whose spans are stored, the newest where there are too many; those nearest by when there is none in
 * view. As finely as the grid's buckets are: a bucket of several steps tells only that one of them is.
 */
export function tracedRange(grid: StepGrid, first: number, last: number): StepSpan | null {
  const traced: number[] = []
  for (let bucket = grid.first; bucket < grid.end; bucket += 1) if (grid.traced[grid.slot(bucket)]) traced.push(bucket)
  if (traced.length === 0) return null
  const most = Math.max(1, Math.floor(MAX_TRACE_STEPS / grid.bucketSteps))
  const seen = traced.filter((bucket) => (bucket + 1) * grid.bucketSteps > first && bucket * grid.bucketSteps <= last).slice(-most)
  const wanted = seen.length ? seen : [nearest(traced, first / grid.bucketSteps, last / grid.bucketSteps)]
  const to = (wanted[wanted.length - 1] + 1) * grid.bucketSteps - 1
  return { from: Math.max(grid.oldestStep, wanted[0] * grid.bucketSteps, to - MAX_TRACE_STEPS + 1), to: Math.min(to, grid.newestStep) }
}

function nearest(buckets: readonly number[], first: number, last: number): number {
  const distance = (bucket: number): number => Math.max(first - bucket, bucket - last)
  return buckets.reduce((best, bucket) => (distance(bucket) < distance(best) ? bucket : best))
}
