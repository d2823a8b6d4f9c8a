/**
 * Tensors as MegaScope sends them: a header of 80 bytes, sections of what belongs to the payload, the payload; all
 * little-endian. `megatronapp.core.scope.frame` has the table, and writes the files that both are tested with.
 */

export const MAX_FRAME_BYTES = 2 << 20
const MAGIC = 0x5c0e
const VERSION = 1
const HEADER_BYTES = 80
const NONE = 0xffff
const MAX_DIMS = 4
const MAX_SECTION_BYTES = 256 << 10
const MAX_OUTLIERS = 64

export const KINDS = { 1: 'TENSOR', 2: 'PARTIAL', 3: 'HIST', 4: 'TOPK' } as const
export const DTYPES = { 1: 'U8', 2: 'I8', 3: 'U16', 4: 'I16', 5: 'F16', 6: 'BF16', 7: 'F32', 8: 'F64', 9: 'U32' } as const
export const QUANTIZERS = { 0: 'NONE', 1: 'AFFINE', 2: 'AFFINE_ROW', 3: 'AFFINE_COLUMN', 4: 'ASINH', 5: 'SQRT' } as const
export const CODECS = { 0: 'RAW', 1: 'TRIANGLE', 2: 'ZLIB' } as const
export const SECTIONS = { 1: 'SCALES', 2: 'OUTLIERS', 3: 'FIRST_NONFINITE', 4: 'ORIGIN', 5: 'EXTENT', 6: 'LOG_SUM_EXP', 7: 'REQUEST', 8: 'EXPLAINED', 9: 'ROWS', 10: 'TOKEN_TEXTS' } as const

type Value<T> = T[keyof T]
export type Kind = Value<typeof KINDS>
export type Dtype = Value<typeof DTYPES>
export type Quantizer = Value<typeof QUANTIZERS>
export type Codec = Value<typeof CODECS>
export type Section = Value<typeof SECTIONS>

/** Bits of `flags`. */
export const FLAGS = { nonfinite: 1, outliers: 2, downsampled: 4, partial: 8, keyframe: 16, diff: 32, clipped: 64, replay: 128 } as const

export interface Frame {
  readonly kind: Kind
  readonly subscription: number
  readonly sequence: number
  readonly capturedUnixUs: number
  /** Of a generation: the position of its last row. */
  readonly step: number
  readonly microbatch: number | null
  readonly layer: number | null
  readonly dtype: Dtype
  readonly quantizer: Quantizer
  readonly codec: Codec
  readonly flags: number
  readonly missingShards: number
  readonly dims: readonly number[]
  readonly scale: number
  readonly bias: number
  /** Of the finite values before quantisation; NaN: there is none. */
  readonly low: number
  readonly high: number
  readonly sections: ReadonlyMap<Section, Uint8Array<ArrayBuffer>>
  /** As the codec leaves it: see `cellsOf`. */
  readonly payload: Uint8Array<ArrayBuffer>
}

/** Bytes that are no frame. */
export class FrameError extends Error {
  override readonly name = 'FrameError'
}

export type Cells = Uint8Array | Int8Array | Uint16Array | Int16Array | Float32Array | Float64Array | Uint32Array

/** 16-bit floats stay bits. */
const ARRAYS = { U8: Uint8Array, I8: Int8Array, U16: Uint16Array, I16: Int16Array, F16: Uint16Array, BF16: Uint16Array, F32: Float32Array, F64: Float64Array, U32: Uint32Array }
const CODED: readonly Dtype[] = ['U8', 'U16']
const QUANTIZED: Record<Quantizer, readonly Dtype[]> = {
  NONE: ['F16', 'BF16', 'F32', 'F64', 'U32'],
  AFFINE: CODED,
  AFFINE_ROW: CODED,
  AFFINE_COLUMN: CODED,
  ASINH: ['I8', 'I16'],
  SQRT: CODED,
}
const DTYPES_OF_KIND: Record<Kind, readonly Dtype[]> = {
  TENSOR: ['U8', 'I8', 'U16', 'I16', 'F16', 'BF16', 'F32', 'F64'],
  PARTIAL: ['F64'],
  HIST: ['U32'],
  TOPK: ['U32'],
}

const product = (dims: readonly number[]): number => dims.reduce((size, dim) => size * dim, 1)

export function elementsOf(frame: Pick<Frame, 'dims'>): number {
  return product(frame.dims)
}

/** The frame; payload and sections are views of `bytes`. Every field is checked, also against the payload's size. Throws FrameError. */
export function unpack(bytes: ArrayBuffer): Frame {
  if (bytes.byteLength < HEADER_BYTES || bytes.byteLength > MAX_FRAME_BYTES) throw new FrameError(`${bytes.byteLength} bytes are no frame`)
  const view = new DataView(bytes)
  const u16 = (at: number): number => view.getUint16(at, true)
  const u32 = (at: number): number => view.getUint32(at, true)
  const f32 = (at: number): number => view.getFloat32(at, true)
  if (u16(0) !== MAGIC || view.getUint8(2) !== VERSION) throw new FrameError(`magic ${u16(0)}, version ${view.getUint8(2)}`)
  const ndim = view.getUint8(34)
  const dims = [40, 44, 48, 52].map(u32)
  if (ndim > MAX_DIMS || dims.slice(ndim).some((dim) => dim !== 0)) throw new FrameError(`${ndim} dims ${dims.join()}`)
  const sectionBytes = u32(72)
  if (sectionBytes % 16 || sectionBytes > MAX_SECTION_BYTES || HEADER_BYTES + sectionBytes > bytes.byteLength) throw new FrameError(`${sectionBytes} bytes of sections`)
  const payload = new Uint8Array(bytes, HEADER_BYTES + sectionBytes)
  const checksum = u32(76)
  if (checksum && crc32(payload) !== checksum) throw new FrameError('the payload’s checksum is another one')
  const optional = (value: number): number | null => (value === NONE ? null : value)
  const frame: Frame = {
    kind: named(KINDS, view.getUint8(3)),
    subscription: u32(4),
    sequence: Number(view.getBigUint64(8, true)),
    capturedUnixUs: Number(view.getBigUint64(16, true)),
    step: u32(24),
    microbatch: optional(u16(28)),
    layer: optional(u16(30)),
    dtype: named(DTYPES, view.getUint8(32)),
    quantizer: named(QUANTIZERS, view.getUint8(33)),
    codec: named(CODECS, view.getUint8(35)),
    flags: u16(36),
    missingShards: u16(38),
    dims: dims.slice(0, ndim),
    scale: f32(56),
    bias: f32(60),
    low: f32(64),
    high: f32(68),
    sections: sectionsOf(new Uint8Array(bytes, HEADER_BYTES, sectionBytes)),
    payload,
  }
  check(frame)
  return frame
}

/** The payload as an array of its dtype; cells of a triangle that have no value are 0. Throws FrameError. */
export async function cellsOf(frame: Frame): Promise<Cells> {
  const raw = frame.codec === 'ZLIB' ? await inflated(frame.payload, rawBytes(frame)) : frame.payload.slice()
  const cells = new ARRAYS[frame.dtype](raw.buffer)
  return frame.codec === 'TRIANGLE' ? squared(cells, frame) : cells
}

function squared(packed: Cells, frame: Frame): Cells {
  const size = frame.dims[frame.dims.length - 1]
  const square = new ARRAYS[frame.dtype](elementsOf(frame))
  let from = 0
  for (let row = 0; row < square.length / size; row += 1) {
    const length = (row % size) + 1
    square.set(packed.subarray(from, from + length), row * size)
    from += length
  }
  return square
}

function rawBytes({ kind, dims, dtype }: Frame): number {
  return product(dims) * ARRAYS[dtype].BYTES_PER_ELEMENT * (kind === 'TOPK' ? 2 : 1)
}

function check(frame: Frame): void {
  const { kind, dtype, quantizer, dims } = frame
  if (product(dims.map((dim) => Math.max(dim, 1))) > MAX_FRAME_BYTES) throw new FrameError(`dims ${dims.join()}`)
  if (!DTYPES_OF_KIND[kind].includes(dtype) || !QUANTIZED[quantizer].includes(dtype)) throw new FrameError(`${kind} of ${dtype} by ${quantizer}`)
  if (!Number.isFinite(frame.scale) || !Number.isFinite(frame.bias)) throw new FrameError(`scale ${frame.scale}, bias ${frame.bias}`)
  checkPayload(frame)
  checkSections(frame)
}

function checkPayload(frame: Frame): void {
  const { kind, codec, dims, payload } = frame
  let raw = rawBytes(frame)
  if (codec === 'ZLIB') {
    if (kind === 'PARTIAL' || payload.length === 0) throw new FrameError(`a ${kind} of ${payload.length} bytes by zlib`)
    return
  }
  if (codec === 'TRIANGLE') {
    const [rows = 0, columns = 0] = dims.slice(-2)
    if (kind !== 'TENSOR' || dims.length < 2 || rows !== columns || rows === 0) throw new FrameError(`a triangle of ${dims.join()}`)
    raw = (raw / rows) * ((rows + 1) / 2)
  }
  const fits = kind === 'PARTIAL' ? raw > 0 && payload.length > 0 && payload.length % raw === 0 : payload.length === raw
  if (!fits) throw new FrameError(`${payload.length} bytes of payload for ${dims.join()} of ${frame.dtype}`)
}

function checkSections(frame: Frame): void {
  const { dims, quantizer, sections } = frame
  const size = (section: Section): number => sections.get(section)?.length ?? 0
  const rows = product(dims.slice(0, -1))
  const scales = quantizer === 'AFFINE_ROW' ? rows : quantizer === 'AFFINE_COLUMN' ? (dims[dims.length - 1] ?? 1) : 0
  if (size('SCALES') !== 8 * scales) throw new FrameError('the table of scales has another size')
  if (size('OUTLIERS') % 8 || size('OUTLIERS') > 8 * MAX_OUTLIERS) throw new FrameError('outliers of another size')
  if (outliersOf(frame).some(({ index }) => index >= Math.max(1, product(dims)))) throw new FrameError('outliers that are none of its values')
  if (sections.has('FIRST_NONFINITE') && size('FIRST_NONFINITE') !== 8) throw new FrameError('the first non-finite index has another size')
  if (size('LOG_SUM_EXP') !== (frame.kind === 'TOPK' ? 4 * rows : 0)) throw new FrameError('log-sum-exp of another number of rows')
}

/** The exact values of the farthest cells. */
export function outliersOf(frame: Pick<Frame, 'sections'>): { readonly index: number; readonly value: number }[] {
  const bytes = frame.sections.get('OUTLIERS')
  if (!bytes) return []
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length)
  return Array.from({ length: bytes.length / 8 }, (_, i) => ({ index: view.getUint32(8 * i, true), value: view.getFloat32(8 * i + 4, true) }))
}

/** Sections of kinds that are not known are passed over: a newer sender's. */
function sectionsOf(bytes: Uint8Array<ArrayBuffer>): Map<Section, Uint8Array<ArrayBuffer>> {
  const found = new Map<Section, Uint8Array<ArrayBuffer>>()
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length)
  let before = 0
  for (let at = 0; at + 8 <= bytes.length; ) {
    const [kind, size] = [view.getUint16(at, true), view.getUint32(at + 4, true)]
    if (kind === 0) break // filling
    if (size > bytes.length - at - 8 || kind <= before) throw new FrameError(`section ${kind} of ${size} bytes`)
    if (kind in SECTIONS) found.set(SECTIONS[kind as keyof typeof SECTIONS], bytes.subarray(at + 8, at + 8 + size))
    before = kind
    at += 8 + Math.ceil(size / 8) * 8
  }
  return found
}

function named<T extends Record<number, string>>(names: T, number: number): Value<T> {
  const name = (names as Record<number, Value<T> | undefined>)[number]
  if (name === undefined) throw new FrameError(`${number} is none of ${Object.values(names).join()}`)
  return name
}

/** Never more than it should be, whatever the payload unfolds to. */
async function inflated(payload: Uint8Array<ArrayBuffer>, size: number): Promise<Uint8Array<ArrayBuffer>> {
  const result = new Uint8Array(size)
  let at = 0
  try {
    const reader = new Blob([payload]).stream().pipeThrough(new DecompressionStream('deflate')).getReader()
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      if (at + part.value.length > size) throw new FrameError(`more than ${size} bytes when inflated`)
      result.set(part.value, at)
      at += part.value.length
    }
  } catch (error) {
    throw error instanceof FrameError ? error : new FrameError(`the payload can't be inflated: ${String(error)}`)
  }
  if (at !== size) throw new FrameError(`${at} bytes when inflated, not ${size}`)
  return result
}

const CRC = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1
  return value
})

export function crc32(bytes: Uint8Array): number {
  let value = 0xffffffff
  for (const byte of bytes) value = CRC[(value ^ byte) & 255] ^ (value >>> 8)
  return ~value >>> 0
}
