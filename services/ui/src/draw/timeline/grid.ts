import type { PeerGroups } from './peers'
import { expectedOfPeers, peerGroups } from './peers'
import { inTurns } from '@/lib/turns'

/** A part of a timeline as the gateway sends it (GET …/timeline/grid): cells by bucket, then rank; seconds. */
export interface GridColumns {
  readonly origin_unix_seconds: number
  /** What is stored of the attempt, whatever was asked for. */
  readonly oldest_step: number
  readonly newest_step: number
  readonly first_step: number
  readonly bucket_steps: number
  readonly rank: Uint32Array
  /** Per bucket; NaN: no step of it is stored. */
  readonly start_seconds: Float64Array
  readonly end_seconds: Float64Array
  readonly traced: Uint8Array
  readonly duration_seconds: Float32Array
  readonly compute_seconds: Float32Array
  readonly wait_seconds: Float32Array
  readonly host_seconds: Float32Array
  /** Where a bucket is one step. */
  readonly offset_seconds?: Float32Array
  /** Where it is more. */
  readonly longest_seconds?: Float32Array
  readonly most_compute_seconds?: Float32Array
}

export interface GridOptions {
  readonly origin?: number
  /** Whose compute is compared with whose: ranks of one group. */
  readonly groupOf?: (rank: number) => number
  readonly compared?: boolean
}

const CELLS = ['duration', 'compute', 'wait', 'host', 'longest', 'mostCompute', 'offset', 'ratio'] as const
type CellColumn = (typeof CELLS)[number]

/**
 * Ranks × buckets of steps, in rings of typed arrays: bucket b lies in slot b % capacity, so that the newest bucket
 * overwrites the oldest and nothing is ever moved or allocated. Cells are ordered by slot, then row (a rank's index in
 * `ranks`); NaN stands where a rank has told nothing. Times of buckets count from `origin`, in seconds.
 */
export class StepGrid implements Record<CellColumn, Float32Array> {
  readonly bucketSteps: number
  readonly ranks: Uint32Array
  readonly origin: number
  readonly capacity: number
  /** Means over a bucket's steps. */
  readonly duration: Float32Array
  readonly compute: Float32Array
  readonly wait: Float32Array
  readonly host: Float32Array
  /** Extremes over a bucket's steps. */
  readonly longest: Float32Array
  readonly mostCompute: Float32Array
  /** From the bucket's start to the rank's; 0 where buckets hold several steps. */
  readonly offset: Float32Array
  /** Compute ÷ median compute of the other ranks of its group in the bucket; NaN: no peers. */
  readonly ratio: Float32Array
  /** Per slot. */
  readonly start: Float64Array
  readonly stop: Float64Array
  readonly slowest: Float32Array
  readonly traced: Uint8Array
  /** Buckets that are held: [first, end). */
  first = 0
  end = 0
  oldestStep = 0
  newestStep = 0
  private groups: Int32Array
  private peers: PeerGroups
  private changedFrom = Infinity
  private readonly scratch: Float32Array
  private readonly expected: Float32Array<ArrayBuffer>

  constructor(columns: GridColumns, capacity: number, { origin = columns.origin_unix_seconds, groupOf = () => 0, compared = true }: GridOptions = {}) {
    this.bucketSteps = columns.bucket_steps
    this.ranks = columns.rank.slice()
    this.origin = origin
    this.capacity = Math.max(capacity, columns.start_seconds.length, 1)
    const cells = this.capacity * this.ranks.length
    const column = (): Float32Array => new Float32Array(cells).fill(NaN)
    this.duration = column()
    this.compute = column()
    this.wait = column()
    this.host = column()
    this.longest = column()
    this.mostCompute = column()
    this.offset = column()
    this.ratio = column()
    this.start = new Float64Array(this.capacity).fill(NaN)
    this.stop = new Float64Array(this.capacity).fill(NaN)
    this.slowest = new Float32Array(this.capacity)
    this.traced = new Uint8Array(this.capacity)
    this.groups = Int32Array.from(this.ranks, groupOf)
    this.peers = peerGroups(this.groups)
    this.expected = new Float32Array(this.ranks.length)
    this.scratch = new Float32Array(this.capacity)
    this.first = this.end = columns.first_step / this.bucketSteps
    this.take(columns)
    if (compared) this.compareFrom(this.first)
  }

  /** The same of many cells, compared in turns: at once it would be felt by a hand that moves the picture. */
  static async inTurns(columns: GridColumns, capacity: number, options: GridOptions, signal: AbortSignal): Promise<StepGrid> {
    const grid = new StepGrid(columns, capacity, { ...options, compared: false })
    const buckets = Array.from({ length: grid.end - grid.first }, (_, i) => grid.first + i)
    await inTurns(buckets, (bucket) => grid.compare(bucket), () => undefined, { signal })
    return grid
  }

  /** Whether these columns can be put behind what is here. */
  fits(columns: GridColumns): boolean {
    const same = columns.rank.length === this.ranks.length && columns.rank.every((rank, row) => rank === this.ranks[row])
    return same && columns.bucket_steps === this.bucketSteps
  }

  /** The first bucket that has changed since this was asked last; Infinity: none. Its picture asks, and nobody else. */
  takeChanged(): number {
    const from = this.changedFrom
    this.changedFrom = Infinity
    return from
  }

  /** Takes in buckets at the end, over what was known of them. */
  put(columns: GridColumns): void {
    this.take(columns)
    this.compareFrom(columns.first_step / this.bucketSteps)
  }

  private take(columns: GridColumns): void {
    const begin = columns.first_step / this.bucketSteps
    const count = columns.start_seconds.length
    for (let bucket = Math.max(this.end, begin + count - this.capacity); bucket < begin; bucket += 1) this.clear(bucket)
    for (let i = Math.max(0, this.first - begin); i < count; i += 1) this.putBucket(columns, i, (begin + i) % this.capacity)
    this.end = Math.max(this.end, begin + count)
    this.first = Math.max(this.first, this.end - this.capacity)
    this.oldestStep = columns.oldest_step
    this.newestStep = Math.max(this.newestStep, columns.newest_step)
    this.changedFrom = Math.min(this.changedFrom, begin)
  }

  /** Whose compute is compared with whose: ranks of one group. Returns whether that is another than before. */
  setGroups(groupOf: (rank: number) => number): boolean {
    const groups = Int32Array.from(this.ranks, groupOf)
    if (groups.every((group, row) => group === this.groups[row])) return false
    this.groups = groups
    this.peers = peerGroups(groups)
    this.compareFrom(this.first)
    this.changedFrom = this.first
    return true
  }

  slot(bucket: number): number {
    return bucket % this.capacity
  }

  cell(bucket: number, row: number): number {
    return (bucket % this.capacity) * this.ranks.length + row
  }

  bucketOf(step: number): number {
    return Math.floor(step / this.bucketSteps)
  }

  /** Index of a rank; -1: it has none. */
  rowOf(rank: number): number {
    return this.ranks.indexOf(rank)
  }

  /** Whether all of these steps that there are lie in it. */
  covers(firstStep: number, lastStep: number): boolean {
    const first = Math.max(firstStep, this.oldestStep)
    const last = Math.min(lastStep, this.newestStep)
    return this.bucketOf(first) >= this.first && this.bucketOf(last) < this.end
  }

  /** Median of a row's ratios over buckets [first, end). */
  medianRatio(row: number, first: number, end: number): number {
    let count = 0
    for (let bucket = Math.max(first, this.first); bucket < Math.min(end, this.end); bucket += 1) {
      const value = this.ratio[this.cell(bucket, row)]
      if (value > 0) this.scratch[count++] = value
    }
    if (count === 0) return NaN
    const sorted = this.scratch.subarray(0, count).sort()
    const middle = count >> 1
    return count % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2
  }

  private putBucket(columns: GridColumns, i: number, slot: number): void {
    const width = this.ranks.length
    const at = slot * width
    const part = (values: Float32Array): Float32Array => values.subarray(i * width, (i + 1) * width)
    this.duration.set(part(columns.duration_seconds), at)
    this.compute.set(part(columns.compute_seconds), at)
    this.wait.set(part(columns.wait_seconds), at)
    this.host.set(part(columns.host_seconds), at)
    this.longest.set(part(columns.longest_seconds ?? columns.duration_seconds), at)
    this.mostCompute.set(part(columns.most_compute_seconds ?? columns.compute_seconds), at)
    if (columns.offset_seconds) this.offset.set(part(columns.offset_seconds), at)
    else this.offset.fill(0, at, at + width)
    const shift = columns.origin_unix_seconds - this.origin
    this.start[slot] = columns.start_seconds[i] + shift
    this.stop[slot] = columns.end_seconds[i] + shift
    this.traced[slot] = columns.traced[i]
    let slowest = 0
    for (let cell = at; cell < at + width; cell += 1) if (this.longest[cell] > slowest) slowest = this.longest[cell]
    this.slowest[slot] = slowest
  }

  private clear(bucket: number): void {
    const slot = this.slot(bucket)
    const [from, to] = [slot * this.ranks.length, (slot + 1) * this.ranks.length]
    for (const name of CELLS) this[name].fill(NaN, from, to)
    this.start[slot] = this.stop[slot] = NaN
    this.slowest[slot] = this.traced[slot] = 0
  }

  private compareFrom(begin: number): void {
    for (let bucket = Math.max(begin, this.first); bucket < this.end; bucket += 1) this.compare(bucket)
  }

  private compare(bucket: number): void {
    const width = this.ranks.length
    const at = this.slot(bucket) * width
    const compute = this.compute.subarray(at, at + width)
    const expected = expectedOfPeers(compute, this.peers, this.expected)
    for (let row = 0; row < width; row += 1) this.ratio[at + row] = expected[row] > 0 ? compute[row] / expected[row] : NaN
  }
}
