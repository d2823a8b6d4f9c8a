import { median } from '@/lib/statistics'
import type { TimelineModel } from './model'

/**
 * A row's compute time over that of the other ranks of its group (its pipeline stage), as the median over the steps
 * `[first, end)`. NaN for a rank without peers. The detector's verdict weighs far more; this is what the eye compares.
 */
export function computeRatio(model: TimelineModel, groups: readonly number[], row: number, first: number, end: number): number {
  const width = model.steps.length
  const peers = groups.flatMap((group, other) => (group === groups[row] && other !== row ? [other] : []))
  if (peers.length === 0) return NaN
  const ratios: number[] = []
  for (let index = first; index < end; index += 1) {
    const expected = median(peers.map((peer) => model.compute[peer * width + index]))
    if (expected > 0) ratios.push(model.compute[row * width + index] / expected)
  }
  return median(ratios)
}

/** The same of each row. */
export function computeRatios(model: TimelineModel, groups: readonly number[], first: number, end: number): Float64Array {
  return Float64Array.from(model.ranks, (_, row) => computeRatio(model, groups, row, first, end))
}
