/** A range of values as 0 to 1, before it becomes a colour. */
export interface Scale {
  readonly low: number
  readonly high: number
  /** 0 at `low`, 1 at `high`; beyond them it goes on. */
  readonly toUnit: (value: number) => number
  readonly ticks: readonly number[]
}

export function linearScale(low: number, high: number, ticks: readonly number[] = [low, high]): Scale {
  const width = high - low || 1
  return { low, high, ticks, toUnit: (value) => (value - low) / width }
}

/** From 0 up; small values are told apart better than by a linear scale. */
export function rootScale(high: number): Scale {
  return { low: 0, high, ticks: [0, high / 16, high / 4, high], toUnit: (value) => Math.sqrt(Math.max(0, value) / (high || 1)) }
}

/** Symmetric about `centre`, linear within ±`knee`, logarithmic beyond: small differences show, large ones still differ. */
export function asinhScale(centre: number, limit: number, knee: number, ticks: readonly number[]): Scale {
  const reach = Math.asinh(limit / knee)
  return {
    low: centre - limit,
    high: centre + limit,
    ticks,
    toUnit: (value) => 0.5 + Math.asinh((value - centre) / knee) / (2 * reach),
  }
}

/** A code of 0 stands for a value that is not known. */
export const MISSING = 0
const LAST = 255

/** 1 at the scale's low end and below, 255 at its high end and above, 0 for NaN. */
export function quantise(value: number, scale: Scale): number {
  if (Number.isNaN(value)) return MISSING
  return 1 + Math.round(Math.min(1, Math.max(0, scale.toUnit(value))) * (LAST - 1))
}
