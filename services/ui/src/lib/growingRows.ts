import type { Picture } from '@/scope/picture'
import { planeOf } from '@/scope/picture'
import { STATE } from '@/scope/values'

/** Positions at most; a page shows no longer texts as a picture. */
const MOST = 4096

/**
 * Rows of a generation, put together: with a cache each frame has the new rows alone, of which the last is that of the
 * frame's position. Columns may grow (keys); what was not there is masked.
 */
export class GrowingRows {
  private values = new Float32Array(0)
  private states = new Uint8Array(0)
  private rows = 0
  private columns = 0
  private room = { rows: 0, columns: 0 }
  private low = Infinity
  private high = -Infinity
  private flags = 0

  /** False: it is none of these rows, and shown alone. */
  take(picture: Picture, plane = planeOf(picture.frame.dims)): boolean {
    const { frame } = picture
    const first = frame.step - plane.rows + 1
    if (first < 0 || frame.step >= MOST || plane.columns > MOST) return false
    this.grow(frame.step + 1, plane.columns)
    for (let row = 0; row < plane.rows; row += 1) {
      const to = (first + row) * this.room.columns
      const from = plane.offset + row * plane.columns
      this.values.set(picture.values.subarray(from, from + plane.columns), to)
      this.states.set(picture.states.subarray(from, from + plane.columns), to)
    }
    if (Number.isFinite(frame.low)) this.low = Math.min(this.low, frame.low)
    if (Number.isFinite(frame.high)) this.high = Math.max(this.high, frame.high)
    this.flags |= frame.flags
    return true
  }

  /** All rows so far, with the address of the newest frame. */
  pictureLike(newest: Picture): Picture {
    const { rows, columns } = this
    const values = new Float32Array(rows * columns)
    const states = new Uint8Array(rows * columns)
    for (let row = 0; row < rows; row += 1) {
      const from = row * this.room.columns
      values.set(this.values.subarray(from, from + columns), row * columns)
      states.set(this.states.subarray(from, from + columns), row * columns)
    }
    const frame = { ...newest.frame, dims: [rows, columns], dtype: 'F32' as const, quantizer: 'NONE' as const, codec: 'RAW' as const, low: this.low, high: this.high, flags: this.flags }
    return { ...newest, frame, cells: values, values, states, counts: null }
  }

  private grow(rows: number, columns: number): void {
    this.rows = Math.max(this.rows, rows)
    this.columns = Math.max(this.columns, columns)
    if (this.rows <= this.room.rows && this.columns <= this.room.columns) return
    const room = { rows: roomier(this.rows, this.room.rows), columns: roomier(this.columns, this.room.columns) }
    const values = new Float32Array(room.rows * room.columns).fill(NaN)
    const states = new Uint8Array(values.length).fill(STATE.masked)
    for (let row = 0; row < this.room.rows; row += 1) {
      const from = row * this.room.columns
      values.set(this.values.subarray(from, from + this.room.columns), row * room.columns)
      states.set(this.states.subarray(from, from + this.room.columns), row * room.columns)
    }
    ;[this.values, this.states, this.room] = [values, states, room]
  }
}

const roomier = (needed: number, before: number): number => (needed <= before ? before : Math.max(needed, Math.min(MOST, 2 * before)))
