import type { Lut } from '../colourMap'
import type { Scale } from '../scale'
import { asinhScale, linearScale, quantise } from '../scale'
import type { StepGrid } from './grid'

/** What a cell's colour tells. */
export type Quantity = 'peers' | 'duration' | 'compute' | 'wait' | 'host'

const COLUMN = { peers: 'ratio', duration: 'longest', compute: 'mostCompute', wait: 'wait', host: 'host' } as const
const SAMPLES = 4096

/** Always the same for ratios; of times, from 0 to twice the median of what there is, so that colours keep their meaning. */
export function scaleOf(quantity: Quantity, grid: StepGrid): Scale {
  if (quantity === 'peers') return asinhScale(1, 0.5, 0.05, [0.5, 0.9, 1, 1.1, 1.5])
  const values = grid[quantity]
  const stride = Math.max(1, Math.floor(values.length / SAMPLES))
  const sample: number[] = []
  for (let i = 0; i < values.length; i += stride) if (values[i] > 0) sample.push(values[i])
  const middle = sample.sort((a, b) => a - b)[sample.length >> 1] ?? 1
  return linearScale(0, 2 * middle, [0, middle, 2 * middle])
}

/** Colours of buckets [from, end) as pixels: a picture of `capacity` columns, one a slot, and a line for each of `rows`. */
export function paintCells(
  pixels: Uint32Array,
  grid: StepGrid,
  quantity: Quantity,
  rows: readonly number[],
  scale: Scale,
  lut: Lut,
  from: number,
  end: number,
): void {
  const values = grid[COLUMN[quantity]]
  const width = grid.capacity
  for (let bucket = Math.max(from, grid.first); bucket < end; bucket += 1) {
    const slot = grid.slot(bucket)
    const at = slot * grid.ranks.length
    for (let line = 0; line < rows.length; line += 1) {
      const value = values[at + rows[line]]
      // A rank without peers is as it is expected to be.
      const shown = quantity === 'peers' && Number.isNaN(value) && !Number.isNaN(grid.duration[at + rows[line]]) ? 1 : value
      pixels[line * width + slot] = lut[quantise(shown, scale)]
    }
  }
}

/** Runs of columns of the ring that show buckets [first, end) in order: one, or two where the ring's end lies between. */
export function runsOf(grid: StepGrid, first: number, end: number): { readonly slot: number; readonly bucket: number; readonly count: number }[] {
  if (end <= first) return []
  const slot = grid.slot(first)
  const until = Math.min(end - first, grid.capacity - slot)
  const runs = [{ slot, bucket: first, count: until }]
  if (until < end - first) runs.push({ slot: 0, bucket: first + until, count: end - first - until })
  return runs
}

/** Buckets [from, end). */
export interface Stretch {
  readonly from: number
  readonly end: number
}

/** Parts of a picture that have to be painted, so that `seen` is in it, and what then is in it: one stretch. `painted` of it stands. */
export function unpainted(painted: Stretch, seen: Stretch): { readonly parts: readonly Stretch[]; readonly painted: Stretch } {
  if (painted.end <= painted.from) return { parts: seen.end > seen.from ? [seen] : [], painted: seen }
  const whole = { from: Math.min(painted.from, seen.from), end: Math.max(painted.end, seen.end) }
  const parts = [{ from: whole.from, end: painted.from }, { from: painted.end, end: whole.end }]
  return { parts: parts.filter(({ from, end }) => end > from), painted: whole }
}
