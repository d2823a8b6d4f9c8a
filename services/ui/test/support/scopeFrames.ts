/** Frames as `megatronapp.core.scope.frame` writes them: values as asinh codes of 8 bits, or as floats. */
import { KINDS } from '@/scope/frame'

export interface FrameParts {
  readonly kind?: 'TENSOR' | 'HIST' | 'TOPK'
  readonly subscription?: number
  readonly sequence?: number
  readonly step?: number
  readonly microbatch?: number
  readonly layer?: number
  readonly dims: readonly number[]
  readonly missingShards?: number
  /** Of a top-k: as many indexes before. NaN is NaN; what is in `absent` is masked (2) or missing (3). */
  readonly values: Float32Array
  readonly indexes?: Uint32Array
  readonly absent?: Uint8Array
  readonly explained?: Float32Array
  readonly rows?: Uint32Array
  readonly logSumExp?: Float32Array
  readonly request?: string
  readonly tokenTexts?: Uint8Array
  /** As floats, not as codes. */
  readonly exact?: boolean
}

const HEADER = 80
const DTYPE = { I8: 2, F32: 7, U32: 9 }
const NONE = 0xffff
const LAST_CODE = 125
const CODES = { nan: -128, low: -127, high: 127, masked: -126, missing: 126 }

/** As `megatronapp.core.scope.token_texts` writes them. */
export function packTexts(texts: ReadonlyMap<number, string>): Uint8Array<ArrayBuffer> {
  return Uint8Array.from([...texts].flatMap(([id, text]) => {
    const bytes = new TextEncoder().encode(text)
    const head = new DataView(new ArrayBuffer(6))
    head.setUint32(0, id, true)
    head.setUint16(4, bytes.length, true)
    return [...new Uint8Array(head.buffer), ...bytes]
  }))
}

export function packFrame(parts: FrameParts): Uint8Array<ArrayBuffer> {
  const kind = parts.kind ?? 'TENSOR'
  const [low, high] = finiteRange(parts.values)
  const coded = kind === 'TENSOR' && !parts.exact
  const k = Math.max(Math.abs(low), Math.abs(high), 1e-6) / 50
  const scale = Math.asinh(Math.max(Math.abs(low), Math.abs(high), 1e-6) / k) / LAST_CODE
  const payload = coded ? codes(parts, k, scale) : kind === 'TENSOR' ? floats(parts) : kind === 'HIST' ? bytesOf(Uint32Array.from(parts.values)) : joined(bytesOf(parts.indexes!), bytesOf(parts.values))
  const sections = joined(
    ...[
      [6, parts.logSumExp && bytesOf(parts.logSumExp)],
      [7, parts.request ? new TextEncoder().encode(parts.request) : undefined],
      [8, parts.explained && bytesOf(parts.explained)],
      [9, parts.rows && bytesOf(parts.rows)],
      [10, parts.tokenTexts],
    ].flatMap(([number, content]) => (content ? [section(number as number, content as Uint8Array)] : [])),
  )
  const filled = Math.ceil(sections.length / 16) * 16
  const frame = new Uint8Array(HEADER + filled + payload.length)
  const view = new DataView(frame.buffer)
  const number = Number(Object.entries(KINDS).find(([, name]) => name === kind)![0])
  view.setUint16(0, 0x5c0e, true)
  view.setUint8(2, 1)
  view.setUint8(3, number)
  view.setUint32(4, parts.subscription ?? 1, true)
  view.setBigUint64(8, BigInt(parts.sequence ?? 1), true)
  view.setUint32(24, parts.step ?? 0, true)
  view.setUint16(28, parts.microbatch ?? NONE, true)
  view.setUint16(30, parts.layer ?? NONE, true)
  view.setUint8(32, coded ? DTYPE.I8 : kind === 'TENSOR' ? DTYPE.F32 : DTYPE.U32)
  view.setUint8(33, coded ? 4 : 0)
  view.setUint8(34, parts.dims.length)
  view.setUint16(36, (parts.missingShards ? 8 : 0) | (parts.values.some((value) => !Number.isFinite(value)) ? 1 : 0), true)
  view.setUint16(38, parts.missingShards ?? 0, true)
  parts.dims.forEach((dim, i) => view.setUint32(40 + 4 * i, dim, true))
  view.setFloat32(56, scale, true)
  view.setFloat32(60, k, true)
  view.setFloat32(64, low, true)
  view.setFloat32(68, high, true)
  view.setUint32(72, filled, true)
  frame.set(sections, HEADER)
  frame.set(payload, HEADER + filled)
  return frame
}

function codes({ values, absent }: FrameParts, k: number, scale: number): Uint8Array {
  const all = new Int8Array(values.length)
  values.forEach((value, i) => {
    if (absent?.[i]) all[i] = absent[i] === 2 ? CODES.masked : CODES.missing
    else if (Number.isNaN(value)) all[i] = CODES.nan
    else if (!Number.isFinite(value)) all[i] = value > 0 ? CODES.high : CODES.low
    else all[i] = Math.round(Math.asinh(value / k) / scale)
  })
  return new Uint8Array(all.buffer)
}

function floats({ values, absent }: FrameParts): Uint8Array {
  const words = new Uint32Array(values.slice().buffer)
  absent?.forEach((state, i) => state && (words[i] = 0x7fc00000 | (state - 1)))
  return bytesOf(words)
}

function finiteRange(values: Float32Array): [number, number] {
  let [low, high] = [Infinity, -Infinity]
  for (const value of values) if (Number.isFinite(value)) [low, high] = [Math.min(low, value), Math.max(high, value)]
  return low > high ? [0, 0] : [low, high]
}

const bytesOf = (array: Uint32Array | Float32Array): Uint8Array => new Uint8Array(array.buffer.slice(array.byteOffset, array.byteOffset + array.byteLength))

function section(kind: number, content: Uint8Array): Uint8Array {
  const bytes = new Uint8Array(8 + Math.ceil(content.length / 8) * 8)
  const view = new DataView(bytes.buffer)
  view.setUint16(0, kind, true)
  view.setUint32(4, content.length, true)
  bytes.set(content, 8)
  return bytes
}

function joined(...parts: readonly Uint8Array[]): Uint8Array {
  const all = new Uint8Array(parts.reduce((size, part) => size + part.length, 0))
  let at = 0
  for (const part of parts) {
    all.set(part, at)
    at += part.length
  }
  return all
}
