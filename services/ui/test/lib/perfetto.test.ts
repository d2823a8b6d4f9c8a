// @vitest-environment happy-dom
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { showTrace, waitForPerfetto } from '@/lib/perfetto'

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
