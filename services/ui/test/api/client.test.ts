import { afterEach, describe, expect, it, vi } from 'vitest'
import { getTrace, traceUrl } from '@/api/client'

afterEach(() => vi.unstubAllGlobals())

describe('traceUrl', () => {
  it('escapes the run', () => {
    expect(traceUrl('a/b', { attempt: null, from: 3, to: 7 }, 'perfetto')).toBe('/api/v1/jobs/a%2Fb/trace?from_step=3&to_step=7&format=perfetto')
  })

  it('names ranks as ranges', () => {
    const url = traceUrl('r', { attempt: 2, from: 3, to: 3, ranks: [0, 1, 2, 8] }, 'chrome')
    expect(new URL(url, 'http://x').searchParams.toString()).toBe('from_step=3&to_step=3&format=chrome&attempt=2&ranks=0-2%2C8')
  })
})

describe('getTrace', () => {
  it('puts the pieces together and tells how far it is', async () => {
    vi.stubGlobal('fetch', () => Promise.resolve(new Response(new Blob(['abc', 'de']))))
    const seen: number[] = []
    const buffer = await getTrace('/x', (bytes) => seen.push(bytes), new AbortController().signal)
    expect(new TextDecoder().decode(buffer)).toBe('abcde')
    expect(seen.at(-1)).toBe(5)
  })

  it('gives the hint of a refusal', async () => {
    const body = { error: { code: 'not_found', message: 'no spans', hint: 'trace first' } }
    vi.stubGlobal('fetch', () => Promise.resolve(Response.json(body, { status: 404 })))
    await expect(getTrace('/x', () => undefined, new AbortController().signal)).rejects.toMatchObject({
      status: 404,
      code: 'not_found',
      message: 'no spans',
      hint: 'trace first',
    })
  })
})
