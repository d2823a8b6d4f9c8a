import { COLUMNS_TYPE } from '@/api/columns'
import type { World } from './world'

/** The bytes of GET …/timeline/grid, as gateway/columns.py writes them. */
export interface GridQuestion {
  readonly from: number
  readonly to: number
  readonly buckets: number
  readonly bucketSteps: number
}

export { COLUMNS_TYPE }
const CELLS = 1 << 20

export function gridBytes(world: World, asked: GridQuestion): Uint8Array<ArrayBuffer> {
  const first = Math.max(asked.from, world.oldestStored)
  const last = Math.min(asked.to || world.newestStep, world.newestStep)
  const most = Math.min(asked.buckets, Math.floor(CELLS / world.ranks))
  let size = asked.bucketSteps || 1
  while (!asked.bucketSteps && Math.floor(last / size) - Math.floor(first / size) + 1 > most) size *= 2
  const begin = first - (first % size)
  const count = Math.floor((last - begin) / size) + 1
  const cells = count * world.ranks
  const cell = (): Float32Array<ArrayBuffer> => new Float32Array(cells).fill(NaN)
  const column = { offset: cell(), duration: cell(), shortest: cell(), longest: cell(), compute: cell(), mostCompute: cell(), wait: cell(), host: cell() }
  const [start, end, traced] = [new Float64Array(count).fill(NaN), new Float64Array(count).fill(NaN), new Uint8Array(count)]
  for (let bucket = 0; bucket < count; bucket += 1) {
    const from = Math.max(first, begin + bucket * size)
    const to = Math.min(last, begin + (bucket + 1) * size - 1)
    if (to < world.oldestStep) continue // nothing has been reported
    let latest = 0
    for (let rank = 0; rank < world.ranks; rank += 1) {
      const at = bucket * world.ranks + rank
      latest = Math.max(latest, fold(world, column, at, rank, from, to))
    }
    start[bucket] = world.startOf(from) - world.startOf(first)
    end[bucket] = world.startOf(to) - world.startOf(first) + latest
    for (let step = from; step <= to; step += 1) if (world.traced(step)) traced[bucket] = 1
  }
  const detail: [string, ArrayLike<number>, string][] =
    size === 1
      ? [['offset_seconds', column.offset, 'float32']]
      : [['shortest_seconds', column.shortest, 'float16'], ['longest_seconds', column.longest, 'float16'], ['most_compute_seconds', column.mostCompute, 'float16']]
  return encodeColumns(
    { origin_unix_seconds: world.startOf(first), oldest_step: world.oldestStored, newest_step: world.newestStep, first_step: begin, bucket_steps: size },
    [
      ['rank', Uint32Array.from({ length: world.ranks }, (_, rank) => rank), 'uint32'],
      ['start_seconds', start, 'float64'],
      ['end_seconds', end, 'float64'],
      ['traced', traced, 'uint8'],
      ...detail,
      ['duration_seconds', column.duration, 'float16'],
      ['compute_seconds', column.compute, 'float16'],
      ['wait_seconds', column.wait, 'float16'],
      ['host_seconds', column.host, 'float16'],
    ],
  )
}

type Column = Record<'offset' | 'duration' | 'shortest' | 'longest' | 'compute' | 'mostCompute' | 'wait' | 'host', Float32Array>

function fold(world: World, column: Column, at: number, rank: number, from: number, to: number): number {
  let [compute, wait, host, duration, shortest, longest, most, latest] = [0, 0, 0, 0, Infinity, 0, 0, 0]
  for (let step = from; step <= to; step += 1) {
    const values = world.values(rank, step)
    compute += values.compute
    wait += values.wait
    host += values.host
    duration += values.duration
    shortest = Math.min(shortest, values.duration)
    longest = Math.max(longest, values.duration)
    most = Math.max(most, values.compute)
    latest = values.duration
  }
  const count = to - from + 1
  column.offset[at] = 0
  column.compute[at] = compute / count
  column.wait[at] = wait / count
  column.host[at] = host / count
  column.duration[at] = duration / count
  column.shortest[at] = shortest
  column.longest[at] = longest
  column.mostCompute[at] = most
  return latest
}

const BYTES: Record<string, number> = { float64: 8, float32: 4, float16: 2, uint32: 4, uint8: 1 }

export function encodeColumns(values: Record<string, unknown>, columns: readonly [string, ArrayLike<number>, string][]): Uint8Array<ArrayBuffer> {
  const listed = columns.map(([name, data, type]) => ({ name, type, rows: data.length }))
  let header = JSON.stringify({ ...values, columns: listed })
  header += ' '.repeat((8 - ((4 + header.length) % 8)) % 8)
  const size = columns.reduce((sum, [, data, type]) => sum + Math.ceil((data.length * BYTES[type]) / 8) * 8, 4 + header.length)
  const bytes = new Uint8Array(size)
  const view = new DataView(bytes.buffer)
  view.setUint32(0, header.length, true)
  bytes.set(new TextEncoder().encode(header), 4)
  let at = 4 + header.length
  for (const [, data, type] of columns) {
    for (let i = 0; i < data.length; i += 1) write(view, type, at + i * BYTES[type], data[i])
    at += Math.ceil((data.length * BYTES[type]) / 8) * 8
  }
  return bytes
}

function write(view: DataView, type: string, at: number, value: number): void {
  if (type === 'float64') view.setFloat64(at, value, true)
  else if (type === 'float32') view.setFloat32(at, value, true)
  else if (type === 'float16') view.setUint16(at, numberToHalf(value), true)
  else if (type === 'uint32') view.setUint32(at, value, true)
  else view.setUint8(at, value)
}

const bits = new DataView(new ArrayBuffer(4))

/** The nearest binary16 (ties away from zero). */
export function numberToHalf(value: number): number {
  if (Number.isNaN(value)) return 0x7e00
  bits.setFloat32(0, value)
  const word = bits.getUint32(0)
  const sign = (word >>> 16) & 0x8000
  const exponent = ((word >>> 23) & 0xff) - 112
  const fraction = word & 0x7fffff
  if (exponent >= 31) return sign | 0x7bff
  if (exponent > 0) return sign | (((exponent << 10) | (fraction >>> 13)) + ((fraction >>> 12) & 1))
  if (exponent < -10) return sign
  return sign | (((fraction | 0x800000) >>> (14 - exponent)) + (((fraction | 0x800000) >>> (13 - exponent)) & 1))
}
