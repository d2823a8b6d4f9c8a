import { readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { cellsOf, FrameError, unpack } from '@/scope/frame'
import { STATE, valuesOf } from '@/scope/values'

/** What the Python side has written, and what it reads out of it. */
const FOLDER = fileURLToPath(new URL('../../../../tests/data/scope/', import.meta.url))
const EXPECTED = JSON.parse(readFileSync(`${FOLDER}frames.json`, 'utf8')) as Record<string, Expected>
const NAMES = readdirSync(FOLDER).flatMap((name) => (name.endsWith('.mscope-frame') ? [name.slice(0, -'.mscope-frame'.length)] : []))

interface Expected {
  readonly values?: (number | string)[]
  readonly payload?: number[]
  readonly sections: Record<string, string>
  readonly [field: string]: unknown
}

function bytes(name: string): ArrayBuffer {
  return new Uint8Array(readFileSync(`${FOLDER}${name}.mscope-frame`)).buffer
}
const hex = (data: Uint8Array): string => [...data].map((byte) => byte.toString(16).padStart(2, '0')).join('')
const cell = (value: number): number | string => (Number.isNaN(value) ? 'nan' : Number.isFinite(value) ? value : value > 0 ? 'inf' : '-inf')

describe.each(NAMES)('the frame %s', (name) => {
  const expected = EXPECTED[name]
  const frame = unpack(bytes(name))

  it('has the header and sections that were written', () => {
    const read = {
      kind: frame.kind, subscription: frame.subscription, sequence: frame.sequence, captured_unix_us: frame.capturedUnixUs,
      step: frame.step, microbatch: frame.microbatch, layer: frame.layer, dtype: frame.dtype, quantizer: frame.quantizer,
      codec: frame.codec, flags: frame.flags, missing_shards: frame.missingShards, dims: frame.dims, low: cell(frame.low),
      high: cell(frame.high), sections: Object.fromEntries([...frame.sections].map(([section, data]) => [section, hex(data)])),
    }
    const { values, payload, ...header } = expected
    expect([values, payload].filter(Boolean)).toHaveLength(1)
    expect(read).toEqual(header)
  })

  it('has the values that were written', async () => {
    const cells = await cellsOf(frame)
    if (!expected.values) return expect([...cells].map(Number)).toEqual(expected.payload)
    const { values, states } = valuesOf(frame, cells)
    const shown = [...values].map((value, i) => (states[i] === STATE.masked ? 'masked' : states[i] === STATE.missing ? 'missing' : cell(value)))
    expect(shown).toHaveLength(expected.values.length)
    shown.forEach((value, i) => {
      const wanted = expected.values![i]
      // Both compute in doubles and round to floats; sinh may differ in its last bit.
      if (typeof wanted === 'number') expect(Math.abs(Number(value) - wanted)).toBeLessThanOrEqual(2e-7 * Math.abs(wanted))
      else expect(value).toBe(wanted)
    })
  })

  it('is refused when it is cut off anywhere', async () => {
    const whole = bytes(name)
    for (const size of [0, 79, whole.byteLength - 1]) {
      await expect((async () => cellsOf(unpack(whole.slice(0, size))))()).rejects.toThrow(FrameError)
    }
  })
})

describe('bytes that are no frame', () => {
  const changed = (at: number, value: number): (() => unknown) => {
    const data = bytes('asinh')
    new DataView(data).setUint8(at, value)
    return () => unpack(data)
  }

  it.each([[0, 1], [2, 9], [3, 77], [32, 0], [33, 1], [34, 9], [35, 9], [40, 200], [52, 1], [59, 0x7f], [72, 8], [76, 1]])('are refused: byte %i as %i', (at, value) => {
    expect(changed(at, value)).toThrow(FrameError)
  })

  it('are refused or read, never anything else, whatever single byte is another', () => {
    for (const name of NAMES) {
      const data = bytes(name)
      const view = new Uint8Array(data)
      for (let at = 0; at < view.length; at += 1) {
        const before = view[at]
        view[at] = before ^ 0xff
        try {
          unpack(data)
        } catch (error) {
          expect(error).toBeInstanceOf(FrameError)
        }
        view[at] = before
      }
    }
  })

  it('are refused when they unfold to more than they say', async () => {
    const data = bytes('zlib')
    new DataView(data).setUint32(40, 1, true)
    await expect(cellsOf(unpack(data))).rejects.toThrow(FrameError)
  })
})
