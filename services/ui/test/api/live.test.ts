// @vitest-environment happy-dom
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { effectScope } from 'vue'
import { createLive, eventsUrl } from '@/api/live'
import type { Job } from '@/api/types'

class Socket {
  static all: Socket[] = []
  static readonly CONNECTING = 0
  static readonly OPEN = 1
  readyState = 0
  onopen?: () => void
  onclose?: (event: unknown) => void
  onerror?: () => void
  onmessage?: (event: { data: string }) => void
  constructor(readonly url: string) {
    Socket.all.push(this)
  }
  open(): void {
    this.readyState = 1
    this.onopen?.()
  }
  say(event: object): void {
    this.onmessage?.({ data: JSON.stringify(event) })
  }
  close(): void {
    this.readyState = 3
    this.onclose?.({})
  }
  send(): void {
    throw new Error('the page only listens')
  }
}

const scope = (): { live: ReturnType<typeof createLive>; end: () => void } => {
  const effects = effectScope()
  const live = effects.run(() => createLive('ws://x/api/v1/events'))!
  return { live, end: () => effects.stop() }
}

beforeEach(() => {
  vi.useFakeTimers()
  Socket.all = []
  vi.stubGlobal('WebSocket', Socket)
})
afterEach(() => {
  vi.useRealTimers()
  vi.unstubAllGlobals()
})

describe('createLive', () => {
  it('takes the snapshot, then what changes', () => {
    const { live, end } = scope()
    const socket = Socket.all[0]
    socket.open()
    expect(live.ready.value).toBe(false)
    socket.say({ type: 'snapshot', jobs: [{ run: 'a' }, { run: 'b' }], findings: [{ id: 'f', state: 'open' }], annotations: [] })
    socket.say({ type: 'job', job: { run: 'a', step: 7 } })
    socket.say({ type: 'job_gone', run: 'b' })
    socket.say({ type: 'finding', finding: { id: 'f', state: 'resolved' } })
    expect(live.ready.value).toBe(true)
    expect([...live.jobs]).toEqual([['a', { run: 'a', step: 7 }]])
    expect(live.findings.get('f')).toEqual({ id: 'f', state: 'resolved' })
    end()
  })

  it('hands steps to who listens, and no longer', () => {
    const { live, end } = scope()
    const heard: string[] = []
    const stop = live.onStep((event) => heard.push(event.run))
    Socket.all[0].open()
    Socket.all[0].say({ type: 'step', run: 'a', row: { step: 1 } })
    stop()
    Socket.all[0].say({ type: 'step', run: 'a', row: { step: 2 } })
    expect(heard).toEqual(['a'])
    end()
  })

  it('says that the picture is old when the gateway falls silent', () => {
    const { live, end } = scope()
    Socket.all[0].open()
    Socket.all[0].say({ type: 'ping', unix_seconds: 0, collector_lost_unix_seconds: null })
    expect(live.state.value).toBe('live')
    vi.advanceTimersByTime(4000)
    expect(live.state.value).toBe('live')
    vi.advanceTimersByTime(1000)
    expect(live.state.value).toBe('stale')
    expect(live.silence.value).toBe(5)
    expect(live.lostSince.value).toBe(Date.now() - 5000)
    end()
  })

  it('opens the connection anew when nothing is heard of it for long', () => {
    const { end } = scope()
    Socket.all[0].open()
    Socket.all[0].say({ type: 'ping', unix_seconds: 0, collector_lost_unix_seconds: null })
    vi.advanceTimersByTime(11_000)
    expect(Socket.all).toHaveLength(2)
    end()
  })

  it('tells a collector that is lost from a gateway that is, by the gateway’s clock', () => {
    const { live, end } = scope()
    Socket.all[0].open()
    const unix = 1_790_000_000
    Socket.all[0].say({ type: 'ping', unix_seconds: unix, collector_lost_unix_seconds: unix - 7 })
    expect(live.state.value).toBe('partial')
    expect(live.collectorLostSince.value).toBe(Date.now() - 7000)
    Socket.all[0].say({ type: 'ping', unix_seconds: unix + 1, collector_lost_unix_seconds: null })
    expect([live.state.value, live.collectorLostSince.value]).toEqual(['live', null])
    end()
  })

  it('knows of a job for how long nobody has heard of it, unless it has ended', () => {
    const { live, end } = scope()
    const unix = 1_790_000_000
    Socket.all[0].open()
    Socket.all[0].say({ type: 'ping', unix_seconds: unix, collector_lost_unix_seconds: null })
    const quiet = (state: string, age: number): number | null => live.quietFor({ state, updated_unix_seconds: unix - age } as Job)
    expect([quiet('running', 2), quiet('running', 5), quiet('finished', 500)]).toEqual([null, 5, null])
    Socket.all[0].close()
    expect(quiet('running', 2)).toBe(2)
    end()
  })

  it('comes back after a cut, and a new snapshot replaces the old', () => {
    const { live, end } = scope()
    Socket.all[0].open()
    Socket.all[0].say({ type: 'snapshot', jobs: [{ run: 'old' }], findings: [], annotations: [] })
    Socket.all[0].close()
    expect(live.state.value).toBe('offline')
    expect(live.lostSince.value).toBe(Date.now())
    expect(live.jobs.has('old')).toBe(true)
    vi.advanceTimersByTime(1000)
    expect(Socket.all).toHaveLength(2)
    Socket.all[1].open()
    Socket.all[1].say({ type: 'snapshot', jobs: [{ run: 'new' }], findings: [], annotations: [] })
    expect([...live.jobs.keys()]).toEqual(['new'])
    expect(live.lostSince.value).toBe(null)
    expect(live.state.value).toBe('live')
    end()
  })
})

describe('eventsUrl', () => {
  it('follows the scheme of the page', () => {
    expect(eventsUrl({ protocol: 'https:', host: 'h:1' } as Location)).toBe('wss://h:1/api/v1/events')
    expect(eventsUrl({ protocol: 'http:', host: 'h:1' } as Location)).toBe('ws://h:1/api/v1/events')
  })
})
