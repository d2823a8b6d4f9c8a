/** Median of the finite values; NaN where there is none. */
export function median(values: Iterable<number>): number {
  const sorted = Float64Array.from(values).filter(Number.isFinite).sort()
  if (sorted.length === 0) return NaN
  const middle = sorted.length >> 1
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2
}

/** The value below which a share of the finite values lies (nearest rank); NaN where there is none. */
export function quantile(values: Iterable<number>, share: number): number {
  const sorted = Float64Array.from(values).filter(Number.isFinite).sort()
  if (sorted.length === 0) return NaN
  return sorted[Math.min(sorted.length - 1, Math.max(0, Math.ceil(share * sorted.length) - 1))]
}
