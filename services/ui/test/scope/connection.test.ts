import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { ScopeConnection } from '@/scope/connection'
import type { ServerMessage } from '@/scope/messages'

const FRAME = readFileSync(fileURLToPath(new URL('../../../../tests/data/scope/asinh.mscope-frame', import.meta.url)))

class Socket {
  readyState = 0
  binaryType = ''
  readonly sent: Record<string, unknown>[] = []
  onopen?: () => void
  onmessage?: (event: { data: string | ArrayBuffer }) => void
  onclose?: (event: { code: number; reason: string }) => void
  constructor(readonly protocols: readonly string[]) {}
  send(text: string): void {
    this.sent.push(JSON.parse(text) as Record<string, unknown>)
  }
  close(code = 1000): void {
    this.readyState = 3
    this.onclose?.({ code, reason: '' })
  }
  open(): void {
    this.readyState = 1
    this.onopen?.()
  }
  text(message: ServerMessage): void {
    this.onmessage?.({ data: JSON.stringify(message) })
  }
  frame(subscription: number, sequence: number): void {
    const bytes = new Uint8Array(FRAME)
    const view = new DataView(bytes.buffer)
    view.setUint32(4, subscription, true)
    view.setBigUint64(8, BigInt(sequence), true)
    this.onmessage?.({ data: bytes.buffer })
  }
}

let sockets: Socket[]
let told: string[]
let tickets: number
let connection: ScopeConnection

beforeEach(async () => {
  vi.useFakeTimers()
  sockets = []
  told = []
  tickets = 0
  connection = new ScopeConnection(
    {
      run: 'run-1',
      client: 'page',
      ticket: () => Promise.resolve(`t${(tickets += 1)}`),
      open: (protocols) => {
        sockets.push(new Socket(protocols))
        return sockets[sockets.length - 1] as unknown as WebSocket
      },
    },
    {
      state: (state) => told.push(state),
      frame: ({ subscription, sequence }) => told.push(`frame ${subscription} ${sequence}`),
      event: ({ offset }) => told.push(`event ${offset}`),
      message: (message) => told.push(Object.keys(message)[0]),
      gap: (reason) => told.push(`gap ${reason}`),
    },
  )
  await vi.advanceTimersByTimeAsync(0)
})
afterEach(() => {
  connection.close()
  vi.useRealTimers()
})

function live(): Socket {
  const socket = sockets[sockets.length - 1]
  socket.open()
  socket.text({ welcome: { epoch: 'e1', offset: '5' } })
  return socket
}
const credits = (socket: Socket): unknown[] => socket.sent.flatMap(({ credit }) => (credit ? [credit] : []))

describe('joining', () => {
  it('shows a ticket, says for which run, and asks for what was subscribed before', () => {
    connection.subscribe({ id: 1, expression: 'loss' })
    const socket = live()
    expect(socket.protocols).toEqual(['mscope.v1', 'ticket.t1'])
    expect(socket.sent).toEqual([{ join: { client: 'page', run: 'run-1' } }, { subscribe: { id: 1, expression: 'loss', credits: 2 } }])
    expect(told).toEqual(['connecting', 'live', 'welcome'])
  })

  it('leaves a platform that takes the connection and never answers', async () => {
    await vi.advanceTimersByTimeAsync(50_000)
    expect(told).toContain('lost')
    await vi.advanceTimersByTimeAsync(5_000)
    expect(sockets.length).toBeGreaterThan(1)
  })

  it('comes back after a cut with a new ticket, to where it was', async () => {
    connection.subscribe({ id: 1, expression: 'loss' })
    live().text({ event: { offset: '8', event: {} } })
    sockets[0].close(1006)
    expect(told.at(-1)).toBe('lost')
    await vi.advanceTimersByTimeAsync(1000)
    sockets[1].open()
    expect(sockets[1].protocols[1]).toBe('ticket.t2')
    expect(sockets[1].sent[0]).toEqual({ join: { client: 'page', run: 'run-1', resume: { epoch: 'e1', offset: '8' } } })
    sockets[1].text({ welcome: { epoch: 'e1', offset: '10' } })
    for (const offset of ['7', '8', '9', '10']) sockets[1].text({ event: { offset, event: {} } })
    expect(told.filter((what) => what.startsWith('event'))).toEqual(['event 8', 'event 9', 'event 10'])
    expect(sockets[1].sent[1]).toMatchObject({ subscribe: { id: 1 } })
  })

  it('tells that events were lost when the gateway says so, or has forgotten all', async () => {
    live().close(1006)
    await vi.advanceTimersByTimeAsync(1000)
    sockets[1].open()
    sockets[1].text({ welcome: { epoch: 'e2', offset: '0' } })
    sockets[1].text({ gap: { reason: 'too old' } })
    expect(told.filter((what) => what.startsWith('gap '))).toEqual(['gap another epoch', 'gap too old'])
    sockets[1].text({ event: { offset: '1', event: {} } })
    expect(told.at(-1)).toBe('event 1')
  })

  it('goes when it is sent away, and comes back when it was told to', async () => {
    live().text({ goAway: { retryMilliseconds: 300 } })
    await vi.advanceTimersByTimeAsync(299)
    expect(sockets).toHaveLength(1)
    await vi.advanceTimersByTimeAsync(1)
    expect(sockets).toHaveLength(2)
  })

  it('does not try again where that changes nothing', async () => {
    live().close(4403)
    await vi.advanceTimersByTimeAsync(60_000)
    expect([told.at(-1), sockets.length]).toEqual(['refused', 1])
  })

  it('closes a connection on which nothing is heard', async () => {
    const socket = live()
    await vi.advanceTimersByTimeAsync(30_000)
    expect(socket.sent.filter(({ ping }) => ping)).toHaveLength(2)
    await vi.advanceTimersByTimeAsync(20_000)
    expect(sockets).toHaveLength(2)
  })
})

describe('credits', () => {
  it('are given when a frame has been painted, and not before', () => {
    connection.subscribe({ id: 3, expression: 'loss' })
    const socket = live()
    socket.frame(3, 1)
    expect(credits(socket)).toEqual([])
    connection.painted(3)
    connection.painted(3)
    expect(credits(socket)).toEqual([{ id: 3, frames: 1 }])
  })

  it('are given for a frame that a newer one replaces, and for one that comes late', () => {
    connection.subscribe({ id: 3, expression: 'loss' })
    const socket = live()
    socket.frame(3, 1)
    socket.frame(3, 4)
    expect(credits(socket)).toHaveLength(1)
    socket.frame(3, 2)
    expect(credits(socket)).toHaveLength(2)
    expect(told.filter((what) => what.startsWith('frame'))).toEqual(['frame 3 1', 'frame 3 4'])
  })

  it('wait while the page is hidden', () => {
    connection.subscribe({ id: 3, expression: 'loss' })
    const socket = live()
    connection.setHidden(true)
    socket.frame(3, 1)
    connection.painted(3)
    socket.frame(3, 2)
    connection.painted(3)
    expect(credits(socket)).toEqual([])
    connection.setHidden(false)
    expect(credits(socket)).toEqual([{ id: 3, frames: 2 }])
  })

  it('are none of a subscription that has ended', () => {
    connection.subscribe({ id: 3, expression: 'loss' })
    const socket = live()
    socket.frame(3, 1)
    connection.unsubscribe(3)
    connection.painted(3)
    socket.frame(3, 2)
    expect(credits(socket)).toEqual([])
    expect(told).not.toContain('frame 3 2')
  })
})

describe('what the gateway should not say', () => {
  it('ends neither the connection nor what comes after', () => {
    connection.subscribe({ id: 3, expression: 'loss' })
    const socket = live()
    socket.onmessage?.({ data: '{ no json' })
    socket.onmessage?.({ data: new ArrayBuffer(12) })
    socket.frame(3, 1)
    expect(told.at(-1)).toBe('frame 3 1')
  })
})
