import { afterEach, describe, expect, it, vi } from 'vitest'
import { getTrace, traceUrl } from '@/api/client'

afterEach(() => vi.unstubAllGlobals())

describe('traceUrl', () => {
  it('escapes the run', () => {
    expect(traceUrl('a/b', 3, 7, 'perfetto')).toBe('/api/v1/jobs/a%2Fb/trace?from_step=3&to_step=7&format=perfetto')
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
