import { halfToNumber } from '@/api/columns'
import type { Cells, Dtype, Frame } from './frame'
import { elementsOf, outliersOf } from './frame'

/** A cell is a value, or in a state that every format keeps (`megatronapp.core.scope.quantize` has the table). */
export const STATE = { value: 0, nan: 1, masked: 2, missing: 3 } as const

export interface Values {
  readonly values: Float32Array
  /** Of each cell, one of STATE; infinities are values. */
  readonly states: Uint8Array
}

interface Codes {
  readonly nan: number
  readonly low: number
  readonly high: number
  readonly masked: number
  readonly missing: number
}

const CODES: Partial<Record<Dtype, Codes>> = {
  I8: { nan: -128, low: -127, high: 127, masked: -126, missing: 126 },
  I16: { nan: -32768, low: -32767, high: 32767, masked: -32766, missing: 32766 },
  U8: { nan: 255, low: 251, high: 252, masked: 253, missing: 254 },
  U16: { nan: 65535, low: 65531, high: 65532, masked: 65533, missing: 65534 },
}

/** The values of a tensor's cells, as `cellsOf` gives them. */
export function valuesOf(frame: Frame, cells: Cells): Values {
  const values = new Float32Array(elementsOf(frame))
  const states = new Uint8Array(values.length)
  const codes = CODES[frame.dtype]
  if (codes && frame.quantizer !== 'NONE') decodeCodes(frame, cells, codes, values, states)
  else decodeFloats(frame.dtype, cells, values, states)
  if (frame.codec === 'TRIANGLE') maskAbove(frame.dims[frame.dims.length - 1], values, states)
  return { values, states }
}

/**
 * What each code of a frame means, by its lowest 8 or 16 bits; null: its cells are no codes, or mean another value in
 * each row.
 */
export function valuesOfCodes(frame: Frame): Values | null {
  const { dtype, quantizer } = frame
  const codes = CODES[dtype]
  if (!codes || quantizer === 'NONE' || quantizer === 'AFFINE_ROW' || quantizer === 'AFFINE_COLUMN') return null
  const bits = dtype === 'I8' || dtype === 'U8' ? 8 : 16
  const all = (dtype === 'I8' ? new Int8Array(256) : dtype === 'I16' ? new Int16Array(65536) : bits === 8 ? new Uint8Array(256) : new Uint16Array(65536)).map((_, code) => code)
  const values = new Float32Array(all.length)
  const states = new Uint8Array(all.length)
  decodeCodes({ ...frame, sections: new Map() }, all, codes, values, states)
  return { values, states }
}

function decodeCodes(frame: Frame, cells: Cells, codes: Codes, values: Float32Array, states: Uint8Array): void {
  const decode = decoderOf(frame)
  for (let i = 0; i < values.length; i += 1) values[i] = decode(cells[i], i)
  for (const { index, value } of outliersOf(frame)) values[index] = value
  for (let i = 0; i < values.length; i += 1) {
    const code = cells[i]
    if (code === codes.low) values[i] = -Infinity
    else if (code === codes.high) values[i] = Infinity
    else if (code === codes.nan) states[i] = STATE.nan
    else if (code === codes.masked) states[i] = STATE.masked
    else if (code === codes.missing) states[i] = STATE.missing
    if (states[i]) values[i] = NaN
  }
}

function decoderOf(frame: Frame): (code: number, index: number) => number {
  const { quantizer, scale, bias, dims } = frame
  const width = dims[dims.length - 1] ?? 1
  const table = frame.sections.get('SCALES')
  const view = table && new DataView(table.buffer, table.byteOffset, table.length)
  const entry = (at: number): [number, number] => [view!.getFloat32(8 * at, true), view!.getFloat32(8 * at + 4, true)]
  switch (quantizer) {
    case 'ASINH':
      return (code) => bias * Math.sinh(code * scale)
    case 'SQRT':
      return (code) => scale * code * code
    case 'AFFINE_ROW':
    case 'AFFINE_COLUMN':
      return (code, index) => {
        const [by, from] = entry(quantizer === 'AFFINE_ROW' ? Math.floor(index / width) : index % width)
        return from + by * code
      }
    default:
      return (code) => bias + scale * code
  }
}

/** Masked and missing cells are NaNs whose lowest payload bits are 1 and 2. */
function decodeFloats(dtype: Dtype, cells: Cells, values: Float32Array, states: Uint8Array): void {
  const word = new Uint32Array(1)
  const float = new Float32Array(word.buffer)
  const raw = dtype === 'F32' ? new Uint32Array(cells.buffer, cells.byteOffset, cells.length) : cells
  for (let i = 0; i < values.length; i += 1) {
    word[0] = dtype === 'BF16' ? raw[i] << 16 : raw[i]
    values[i] = dtype === 'F16' ? halfToNumber(cells[i]) : dtype === 'BF16' || dtype === 'F32' ? float[0] : cells[i]
    if (Number.isNaN(values[i])) states[i] = dtype === 'F64' ? STATE.nan : ([STATE.nan, STATE.masked, STATE.missing, STATE.nan] as const)[raw[i] & 3]
  }
}

function maskAbove(size: number, values: Float32Array, states: Uint8Array): void {
  for (let i = 0; i < values.length; i += 1) {
    if (i % size <= Math.floor(i / size) % size) continue
    values[i] = NaN
    states[i] = STATE.masked
  }
}
