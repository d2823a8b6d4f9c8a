// @vitest-environment happy-dom
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { perfettoUrl, setPerfettoTheme, showTime, showTrace, waitForPerfetto, waitForTrace } from '@/lib/perfetto'

const frame = { postMessage: vi.fn() }
const answer = (source: unknown, data: unknown, origin = window.location.origin): void => {
  const event = new MessageEvent('message', { data, origin })
  Object.defineProperty(event, 'source', { value: source })
  window.dispatchEvent(event)
}

beforeEach(() => {
  vi.useFakeTimers()
  frame.postMessage.mockReset()
})
afterEach(() => vi.useRealTimers())

describe('waitForPerfetto', () => {
  it('pings until the frame answers', async () => {
    const ready = waitForPerfetto(frame as unknown as Window, 5000, new AbortController().signal)
    vi.advanceTimersByTime(350)
    expect(frame.postMessage).toHaveBeenCalledTimes(3)
    expect(frame.postMessage).toHaveBeenCalledWith('PING', window.location.origin)
    answer(frame, 'PONG')
    await expect(ready).resolves.toBeUndefined()
    vi.advanceTimersByTime(1000)
    expect(frame.postMessage).toHaveBeenCalledTimes(3)
  })

  it('believes nobody else', async () => {
    const ready = waitForPerfetto(frame as unknown as Window, 500, new AbortController().signal)
    answer({}, 'PONG')
    answer(frame, 'PONG', 'https://elsewhere.example')
    vi.advanceTimersByTime(600)
    await expect(ready).rejects.toThrow('timeout')
  })

  it('stops when it is told to', async () => {
    const stop = new AbortController()
    const ready = waitForPerfetto(frame as unknown as Window, 5000, stop.signal)
    stop.abort()
    await expect(ready).rejects.toMatchObject({ name: 'AbortError' })
  })
})

describe('showTrace', () => {
  it('hands the buffer over without a copy', () => {
    const buffer = new ArrayBuffer(4)
    showTrace(frame as unknown as Window, buffer, 'title', 'file')
    expect(frame.postMessage).toHaveBeenCalledWith(
      { perfetto: { buffer, title: 'title', fileName: 'file', keepApiOpen: true } },
      window.location.origin,
      [buffer],
    )
  })
})

describe('what Perfetto opens with', () => {
  const patternOf = (url: string): RegExp => {
    const [{ id, args }] = JSON.parse(decodeURIComponent(url.split('startupCommands=')[1])) as [{ id: string; args: [string] }]
    expect(id).toBe('dev.perfetto.ExpandTracksByRegex')
    return new RegExp(args[0])
  }

  it('is the tracks of the clicked rank alone, and of all without one', () => {
    expect(['rank 3', 'rank 30', 'rank 13', 'rank 3 (node-0)'].map((name) => patternOf(perfettoUrl([3])).test(name))).toEqual([true, false, false, true])
    expect(['rank 3', 'rank 30', 'Counters'].map((name) => patternOf(perfettoUrl([])).test(name))).toEqual([true, true, false])
  })

  it('is the theme of the page, beside what a person has set', () => {
    localStorage.setItem('perfettoSettings', JSON.stringify({ theme: 'light', other: 1 }))
    setPerfettoTheme(localStorage, 'dark')
    expect(JSON.parse(localStorage.getItem('perfettoSettings')!)).toEqual({ theme: 'dark', other: 1 })
    localStorage.setItem('perfettoSettings', 'not JSON')
    setPerfettoTheme(localStorage, 'light')
    expect(JSON.parse(localStorage.getItem('perfettoSettings')!)).toEqual({ theme: 'light' })
  })

  it('is the selected step, once the trace is open', async () => {
    const opened = { location: { hash: '' }, postMessage: vi.fn() }
    const ready = waitForTrace(opened as unknown as Window, new AbortController().signal)
    vi.advanceTimersByTime(1000)
    opened.location.hash = '#!/viewer?local_cache_key=x'
    vi.advanceTimersByTime(300)
    await expect(ready).resolves.toBeUndefined()
    showTime(opened as unknown as Window, 100, 200)
    expect(opened.postMessage).toHaveBeenCalledWith({ perfetto: { timeStart: 98, timeEnd: 202, keepApiOpen: true } }, window.location.origin)
  })
})
