import type { TimelineModel } from '@/draw/timeline/model'

export interface StepRange {
  readonly from: number
  readonly to: number
}

/** "60-61" */
export function formatRange({ from, to }: StepRange): string {
  return `${from}-${to}`
}

export function parseRange(text: unknown): StepRange | null {
  const [, from, to] = /^(\d{1,15})-(\d{1,15})$/.exec(typeof text === 'string' ? text : '') ?? []
  return from ? { from: Number(from), to: Number(to) } : null
}

/** Steps of one trace at most: more than this makes a trace viewer slow and tells no more. */
export const MAX_TRACE_STEPS = 40

/** The steps in view whose spans are stored, the newest where there are too many; those nearest by when there is none in view. */
export function tracedRange(model: TimelineModel, first: number, last: number): StepRange | null {
  const traced = [...model.steps].filter((_, index) => model.traced[index] === 1)
  if (traced.length === 0) return null
  const seen = traced.filter((step) => step >= first && step <= last).slice(-MAX_TRACE_STEPS)
  if (seen.length) return { from: seen[0], to: seen[seen.length - 1] }
  const nearest = traced.reduce((best, step) => (distance(step, first, last) < distance(best, first, last) ? step : best))
  return { from: nearest, to: nearest }
}

function distance(step: number, first: number, last: number): number {
  return Math.max(first - step, step - last)
}
