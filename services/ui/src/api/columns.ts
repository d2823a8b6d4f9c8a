/** Tables of numbers as bytes; the gateway's columns.py says how they are laid out. */

export const COLUMNS_TYPE = 'application/vnd.megatronapp.columns'
const ALIGNMENT = 8
const ARRAYS = { float64: Float64Array, uint32: Uint32Array, uint8: Uint8Array }

interface Header {
  rows: number
  columns: { name: string; type: keyof typeof ARRAYS }[]
}

/** The table's own values and its columns, by name; the columns are views of `bytes`. Throws RangeError and SyntaxError. */
export function decodeColumns(bytes: ArrayBuffer): Record<string, unknown> {
  const length = new DataView(bytes).getUint32(0, true)
  const { rows, columns, ...values } = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length))) as Header
  const table: Record<string, unknown> = values
  let offset = 4 + length
  for (const { name, type } of columns) {
    table[name] = new ARRAYS[type](bytes, offset, rows)
    offset += Math.ceil((rows * ARRAYS[type].BYTES_PER_ELEMENT) / ALIGNMENT) * ALIGNMENT
  }
  return table
}
