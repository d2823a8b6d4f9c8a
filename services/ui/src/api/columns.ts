/** Tables of numbers as bytes; the gateway's columns.py says how they are laid out. */

export const COLUMNS_TYPE = 'application/vnd.megatronapp.columns'
const ALIGNMENT = 8
const ARRAYS = { float64: Float64Array, float32: Float32Array, float16: Uint16Array, uint32: Uint32Array, uint8: Uint8Array }

interface Header {
  columns: { name: string; type: keyof typeof ARRAYS; rows: number }[]
}

/**
 * The document's own values and its columns, by name; columns are views of `bytes`, but for those of half floats, which
 * become Float32Arrays. Throws RangeError and SyntaxError.
 */
export function decodeColumns(bytes: ArrayBuffer): Record<string, unknown> {
  const length = new DataView(bytes).getUint32(0, true)
  const { columns, ...values } = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length))) as Header
  const table: Record<string, unknown> = values
  let offset = 4 + length
  for (const { name, type, rows } of columns) {
    const column = new ARRAYS[type](bytes, offset, rows)
    table[name] = type === 'float16' ? widened(column as Uint16Array) : column
    offset += Math.ceil((rows * ARRAYS[type].BYTES_PER_ELEMENT) / ALIGNMENT) * ALIGNMENT
  }
  return table
}

let halves: Float32Array | undefined

/** Half floats as floats, by a table of all 65,536. */
function widened(column: Uint16Array): Float32Array {
  halves ??= Float32Array.from({ length: 1 << 16 }, (_, bits) => halfToNumber(bits))
  const wide = new Float32Array(column.length)
  for (let i = 0; i < column.length; i += 1) wide[i] = halves[column[i]]
  return wide
}

/** IEEE 754 binary16. */
export function halfToNumber(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1
  const exponent = (bits >> 10) & 0x1f
  const fraction = bits & 0x3ff
  if (exponent === 0) return sign * fraction * 2 ** -24
  if (exponent === 31) return fraction ? NaN : sign * Infinity
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15)
}
