import { describe, expect, it } from 'vitest'
import { decodeColumns } from '@/api/columns'

/** As the gateway writes it (columns.py): columns of a float64, a uint32, a uint8 and a float16, of their own lengths. */
function document(): ArrayBuffer {
  const header = JSON.stringify({
    origin_unix_seconds: 5.5,
    columns: [
      { name: 'start_seconds', type: 'float64', rows: 3 },
      { name: 'rank', type: 'uint32', rows: 3 },
      { name: 'traced', type: 'uint8', rows: 3 },
      { name: 'host_seconds', type: 'float16', rows: 5 },
    ],
  })
  const padded = header + ' '.repeat((8 - ((4 + header.length) % 8)) % 8)
  const begin = 4 + padded.length
  const bytes = new ArrayBuffer(begin + 24 + 16 + 8 + 16)
  new DataView(bytes).setUint32(0, padded.length, true)
  new Uint8Array(bytes, 4).set(new TextEncoder().encode(padded))
  new Float64Array(bytes, begin, 3).set([0, 0.25, 0.5])
  new Uint32Array(bytes, begin + 24, 3).set([0, 1, 2])
  new Uint8Array(bytes, begin + 40, 3).set([1, 0, 1])
  new Uint16Array(bytes, begin + 48, 5).set([0x3c00, 0x0001, 0x7e00, 0xfbff, 0x3555])
  return bytes
}

describe('decodeColumns', () => {
  it('reads values and columns, each where it begins', () => {
    expect(decodeColumns(document())).toEqual({
      origin_unix_seconds: 5.5,
      start_seconds: Float64Array.of(0, 0.25, 0.5),
      rank: Uint32Array.of(0, 1, 2),
      traced: Uint8Array.of(1, 0, 1),
      host_seconds: Float32Array.of(1, 2 ** -24, NaN, -65504, 0.333251953125),
    })
  })

  it('refuses a document that was cut off', () => {
    expect(() => decodeColumns(document().slice(0, -24))).toThrow(RangeError)
  })
})
