import { crc32 } from '@/scope/frame'

/** Arrays as NumPy reads them (numpy.load): a ZIP, stored, of .npy files of version 1.0 (numpy.lib.format). */

export interface NumpyArray {
  readonly name: string
  readonly dims: readonly number[]
  readonly values: Float32Array
}

/** Of one axis. */
export interface NumpyTexts {
  readonly name: string
  readonly texts: readonly string[]
}

const encoder = new TextEncoder()
const HEADER_STEP = 64

export function npy(array: NumpyArray | NumpyTexts): Uint8Array<ArrayBuffer> {
  if ('values' in array) {
    const [file, view] = opened('<f4', array.dims, 4 * array.values.length)
    array.values.forEach((value, at) => view.setFloat32(4 * at, value, true))
    return file
  }
  const letters = array.texts.map((text) => Array.from(text, (letter) => letter.codePointAt(0)!))
  const width = letters.reduce((most, { length }) => Math.max(most, length), 1)
  const [file, view] = opened(`<U${width}`, [letters.length], 4 * width * letters.length)
  letters.forEach((text, row) => text.forEach((letter, at) => view.setUint32(4 * (row * width + at), letter, true)))
  return file
}

/** A file for so many bytes, and these. */
function opened(kind: string, dims: readonly number[], bytes: number): [Uint8Array<ArrayBuffer>, DataView] {
  const shape = dims.length === 1 ? `(${dims[0]},)` : `(${dims.join(', ')})`
  const text = `{'descr': '${kind}', 'fortran_order': False, 'shape': ${shape}, }`
  const size = Math.ceil((10 + text.length + 1) / HEADER_STEP) * HEADER_STEP
  const file = new Uint8Array(size + bytes)
  file.set([0x93, ...encoder.encode('NUMPY'), 1, 0, (size - 10) & 255, (size - 10) >> 8])
  file.set(encoder.encode(`${text.padEnd(size - 11)}\n`), 10)
  return [file, new DataView(file.buffer, size)]
}

/** The same names twice are the caller's mistake. */
export function npz(arrays: readonly (NumpyArray | NumpyTexts)[]): Blob {
  const parts: Uint8Array<ArrayBuffer>[] = []
  const central: Uint8Array<ArrayBuffer>[] = []
  let offset = 0
  for (const array of arrays) {
    const content = npy(array)
    const name = encoder.encode(`${array.name}.npy`)
    const about = [20, 0, 0, 0, 0x21] // needed version, flags, stored, time, date: 1 January 1980
    const sums = [crc32(content), content.length, content.length]
    parts.push(record(0x04034b50, about, sums, [name.length, 0], name), content)
    central.push(record(0x02014b50, [20, ...about], sums, [name.length, 0, 0, 0, 0, 0, 0], name, offset))
    offset += 30 + name.length + content.length
  }
  const size = central.reduce((sum, { length }) => sum + length, 0)
  const end = new DataView(new ArrayBuffer(22))
  end.setUint32(0, 0x06054b50, true)
  end.setUint16(8, arrays.length, true)
  end.setUint16(10, arrays.length, true)
  end.setUint32(12, size, true)
  end.setUint32(16, offset, true)
  return new Blob([...parts, ...central, new Uint8Array(end.buffer)], { type: 'application/octet-stream' })
}

function record(magic: number, shorts: readonly number[], longs: readonly number[], more: readonly number[], name: Uint8Array, offset?: number): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(4 + 2 * shorts.length + 4 * longs.length + 2 * more.length + (offset === undefined ? 0 : 4) + name.length)
  const view = new DataView(bytes.buffer)
  let at = 4
  view.setUint32(0, magic, true)
  for (const value of shorts) view.setUint16((at += 2) - 2, value, true)
  for (const value of longs) view.setUint32((at += 4) - 4, value >>> 0, true)
  for (const value of more) view.setUint16((at += 2) - 2, value, true)
  if (offset !== undefined) view.setUint32((at += 4) - 4, offset, true)
  bytes.set(name, at)
  return bytes
}
