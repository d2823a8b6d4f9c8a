import type { Cells, Frame } from './frame'
import { cellsOf, FLAGS, FrameError } from './frame'
import { STATE, valuesOf } from './values'

/** A frame whose cells have been read: in the worker, so that the page only paints. */
export interface Picture {
  /** Without its bytes. */
  readonly frame: Frame
  /** The codes as sent; of a top-k the indexes. */
  readonly cells: Cells
  /** Row-major; of a top-k each index's value. */
  readonly values: Float32Array<ArrayBuffer>
  /** Of each cell, one of STATE. */
  readonly states: Uint8Array<ArrayBuffer>
  /** Of a top-k, for each row: of all values, not of the largest alone. */
  readonly logSumExp: Float32Array<ArrayBuffer> | null
  /** Of a PCA: each component's share of the variance, and which row each point is. */
  readonly explained: Float32Array<ArrayBuffer> | null
  readonly rows: Uint32Array<ArrayBuffer> | null
  /** The generation that it is of. */
  readonly request: string
  /** Of each plane, see `countsOf`; null: not counted. */
  readonly counts: Uint32Array<ArrayBuffer> | null
}

const NONE = 0xffffffff

export async function pictureOf(frame: Frame): Promise<Picture> {
  const cells = await cellsOf(frame)
  const { sections } = frame
  const own = <T>(section: 'LOG_SUM_EXP' | 'EXPLAINED' | 'ROWS', make: (buffer: ArrayBuffer) => T): T | null => {
    const bytes = sections.get(section)
    if (!bytes || bytes.length % 4) return null
    return make(bytes.slice().buffer)
  }
  const request = sections.get('REQUEST')
  const content = contentOf(frame, cells)
  return {
    frame: { ...frame, payload: new Uint8Array(0) },
    ...content,
    counts: frame.kind === 'TENSOR' ? countedPlanes(frame.dims, content.values, content.states) : null,
    logSumExp: own('LOG_SUM_EXP', (buffer) => new Float32Array(buffer)),
    explained: own('EXPLAINED', (buffer) => new Float32Array(buffer)),
    rows: own('ROWS', (buffer) => new Uint32Array(buffer)),
    request: request ? new TextDecoder().decode(request) : '',
  }
}

function contentOf(frame: Frame, cells: Cells): Pick<Picture, 'cells' | 'values' | 'states'> {
  if (frame.kind === 'TENSOR') {
    const { values, states } = valuesOf(frame, cells)
    return { cells, values: values as Float32Array<ArrayBuffer>, states: states as Uint8Array<ArrayBuffer> }
  }
  if (frame.kind === 'HIST') return { cells, values: Float32Array.from(cells), states: new Uint8Array(cells.length) }
  if (frame.kind !== 'TOPK') throw new FrameError(`a ${frame.kind} is not for viewers`)
  const count = cells.length / 2
  const indexes = (cells as Uint32Array).slice(0, count)
  const values = new Float32Array((cells as Uint32Array).slice(count).buffer)
  return { cells: indexes, values, states: Uint8Array.from(indexes, (index) => (index === NONE ? STATE.missing : STATE.value)) }
}

/** What can be handed over without a copy: sections stay views of the frame's own buffer, which nobody else reads. */
export function transferable({ cells, values, states, counts }: Picture): ArrayBuffer[] {
  return [...new Set([cells.buffer as ArrayBuffer, values.buffer, states.buffer, ...(counts ? [counts.buffer] : [])])]
}

export const has = ({ frame }: Picture, flag: keyof typeof FLAGS): boolean => (frame.flags & FLAGS[flag]) !== 0

/** The last two axes, at an index of each axis before them. */
export interface Plane {
  readonly rows: number
  readonly columns: number
  /** Of its first cell. */
  readonly offset: number
}

/** The plane at these indexes of the leading axes; an index beyond the axis is its last. */
export function planeOf(dims: readonly number[], leading: readonly number[] = []): Plane {
  const columns = dims.at(-1) ?? 1
  const rows = dims.at(-2) ?? 1
  let offset = 0
  dims.slice(0, -2).forEach((size, axis) => (offset = offset * size + Math.min(Math.max(leading[axis] ?? 0, 0), size - 1)))
  return { rows, columns, offset: offset * rows * columns }
}

export interface Candidate {
  readonly id: number
  readonly value: number
  /** Of the model’s own distribution, where the values are logits. */
  readonly probability: number
}

/** The rows of a top-k, each with its candidates, the likeliest first. */
export function candidatesOf(picture: Picture): Candidate[][] {
  const k = picture.frame.dims.at(-1) ?? 0
  const rows = k ? picture.values.length / k : 0
  return Array.from({ length: rows }, (_, row) => {
    const sum = picture.logSumExp?.[row] ?? 0
    const found: Candidate[] = []
    for (let i = row * k; i < (row + 1) * k; i += 1) {
      if (picture.states[i] === STATE.value) found.push({ id: picture.cells[i], value: picture.values[i], probability: Math.exp(picture.values[i] - sum) })
    }
    return found
  })
}

export interface Counts {
  readonly nonfinite: number
  readonly masked: number
  readonly missing: number
}

/** Cells of a plane that are no values. */
export function countSpecial({ values, states }: Pick<Picture, 'values' | 'states'>, plane: Plane): Counts {
  let [nonfinite, masked, missing] = [0, 0, 0]
  const end = plane.offset + plane.rows * plane.columns
  for (let i = plane.offset; i < end; i += 1) {
    const state = states[i]
    if (state === STATE.value) {
      if (values[i] - values[i] !== 0) nonfinite += 1 // of an infinity that is no number
    } else if (state === STATE.masked) masked += 1
    else if (state === STATE.missing) missing += 1
    else nonfinite += 1
  }
  return { nonfinite, masked, missing }
}

/** Planes of fewer cells are counted where they are shown. */
const WORTH_COUNTING = 4096

/** Of each plane its cells that are no values, in the order of `Counts`; null: the planes are small. */
function countedPlanes(dims: readonly number[], values: Float32Array<ArrayBuffer>, states: Uint8Array<ArrayBuffer>): Uint32Array<ArrayBuffer> | null {
  const { rows, columns } = planeOf(dims)
  const size = rows * columns
  if (size < WORTH_COUNTING) return null
  const counts = new Uint32Array((3 * values.length) / size)
  for (let i = 0; i < counts.length; i += 3) {
    const { nonfinite, masked, missing } = countSpecial({ values, states }, { rows, columns, offset: (i / 3) * size })
    counts.set([nonfinite, masked, missing], i)
  }
  return counts
}

/** Cells of a plane that are no values: as the worker has counted them, if it has. */
export function countsOf(picture: Picture, plane: Plane): Counts {
  if (!picture.counts) return countSpecial(picture, plane)
  const [nonfinite, masked, missing] = picture.counts.subarray((3 * plane.offset) / (plane.rows * plane.columns))
  return { nonfinite, masked, missing }
}
