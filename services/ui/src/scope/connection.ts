import { backoffMs } from '@/lib/backoff'
import type { Frame } from './frame'
import { FrameError, unpack } from './frame'
import type { ClientMessage, NumberedEvent, ServerMessage, Subscribe } from './messages'

export const PROTOCOL = 'mscope.v1'
const FIRST_CREDITS = 2
const PING_MS = 15_000
const SILENT_MS = 40_000
/** Close codes that trying again does not mend: no right, too big. A run that is not known (4400) may yet start. */
const FINAL = new Set([4403, 4413])
const NO_CUT: Cut = { code: 0, reason: '' }

export type ScopeState = 'connecting' | 'live' | 'lost' | 'refused'

/** Why a connection is not there: the socket's close code, 0 where there was none, and what the gateway said. */
export interface Cut {
  readonly code: number
  readonly reason: string
}

export interface ScopeListener {
  readonly state: (state: ScopeState, cut: Cut) => void
  /** A frame to paint; it replaces the one before of its subscription. Call `painted` when it is on screen. */
  readonly frame: (frame: Frame) => void
  /** What happened, each once and in order. */
  readonly event: (event: NumberedEvent) => void
  /** Everything else that the gateway says. */
  readonly message: (message: ServerMessage) => void
  /** Events were lost: what was built from them is to be asked for anew. */
  readonly gap: (reason: string) => void
}

export interface ScopeOptions {
  readonly run: string
  /** In place of a run; "": none. */
  readonly recording?: string
  readonly client: string
  /** A socket on the address with these subprotocols. */
  readonly open: (protocols: readonly string[]) => WebSocket
  /** A ticket for one connection (POST /api/v1/scope/tickets). */
  readonly ticket: () => Promise<string>
}

interface Subscription {
  readonly asked: Subscribe
  sequence: number
  /** Frames that were painted while the page was hidden: their credits wait. */
  owed: number
}

/** `fetch` fails with a TypeError where nobody answers, and ends in time where nobody goes on: as a socket that is cut. */
function cutOf(error: unknown): Cut {
  const { name, message } = error instanceof Error || error instanceof DOMException ? error : { name: '', message: String(error) }
  return name === 'TypeError' || name === 'TimeoutError' ? { code: 1006, reason: '' } : { code: 0, reason: message }
}

/**
 * A viewer's end of `mscope.v1`: it keeps a connection open, asks for what is subscribed, and hands frames on.
 *
 * The gateway sends no more frames of a subscription than it has credits for, and a credit is given back when a frame
 * has been painted, or replaced by a newer one before that: so what is on screen is never older than what a browser
 * can draw, and a hidden page asks for nothing. After a cut it joins again where it was: events are repeated from the
 * offset that it has seen, or a gap is told.
 */
export class ScopeConnection {
  private socket: WebSocket | null = null
  private readonly subscriptions = new Map<number, Subscription>()
  private readonly unpainted = new Set<number>()
  private resume: { epoch: string; offset: number } | undefined
  private attempt = 0
  /** Why it was not there the last time: still true while it is tried again. */
  private why = NO_CUT
  private timer: ReturnType<typeof setTimeout> | undefined
  private pinging: ReturnType<typeof setInterval> | undefined
  private heardAt = 0
  private hidden = false
  private closed = false
  private joined = false

  constructor(
    private readonly options: ScopeOptions,
    private readonly listener: ScopeListener,
  ) {
    void this.connect()
  }

  subscribe(asked: Subscribe): void {
    this.subscriptions.set(asked.id, { asked, sequence: -1, owed: 0 })
    this.unpainted.delete(asked.id)
    if (this.joined) this.ask(asked)
  }

  unsubscribe(id: number): void {
    this.unpainted.delete(id)
    if (this.subscriptions.delete(id)) this.say({ unsubscribe: { id } })
  }

  /** The newest frame of a subscription is on screen. */
  painted(id: number): void {
    if (this.unpainted.delete(id)) this.credit(id)
  }

  /** A page that nobody sees gives no credits. */
  setHidden(hidden: boolean): void {
    this.hidden = hidden
    if (hidden) return
    for (const [id, subscription] of this.subscriptions) {
      const { owed } = subscription
      subscription.owed = 0
      if (owed) this.say({ credit: { id, frames: owed } })
    }
  }

  say(message: ClientMessage): void {
    if (this.socket?.readyState === 1) this.socket.send(JSON.stringify(message))
  }

  close(): void {
    this.closed = true
    clearTimeout(this.timer)
    clearInterval(this.pinging)
    this.socket?.close()
  }

  private async connect(): Promise<void> {
    this.listener.state('connecting', this.why)
    let ticket: string
    try {
      ticket = await this.options.ticket()
    } catch (error) {
      return this.again(cutOf(error))
    }
    if (this.closed) return
    const socket = (this.socket = this.options.open([PROTOCOL, `ticket.${ticket}`]))
    socket.binaryType = 'arraybuffer'
    socket.onopen = () => this.opened()
    socket.onmessage = ({ data }: MessageEvent<string | ArrayBuffer>) => this.heard(data)
    socket.onclose = ({ code, reason }: CloseEvent) => socket === this.socket && this.cut(code, reason)
    this.watch()
  }

  /** A platform that is there and says nothing is left, whether it has answered before or not. */
  private watch(): void {
    this.heardAt = Date.now()
    clearInterval(this.pinging)
    this.pinging = setInterval(() => {
      if (Date.now() - this.heardAt > SILENT_MS) this.socket?.close()
      else this.say({ ping: { time: Date.now() / 1000 } })
    }, PING_MS)
  }

  private opened(): void {
    this.heardAt = Date.now()
    const { client, run, recording } = this.options
    const resume = this.resume && { resume: { epoch: this.resume.epoch, offset: String(this.resume.offset) } }
    this.say({ join: recording ? { client, recording } : { client, run, ...resume } })
  }

  private cut(code: number, reason: string): void {
    this.joined = false
    this.unpainted.clear()
    clearInterval(this.pinging)
    if (this.closed) return
    if (FINAL.has(code)) this.listener.state('refused', { code, reason })
    else this.again({ code, reason })
  }

  private again(cut: Cut, pauseMs = backoffMs((this.attempt += 1))): void {
    this.why = cut
    this.listener.state('lost', cut)
    clearTimeout(this.timer)
    this.timer = setTimeout(() => void this.connect(), pauseMs)
  }

  private heard(data: string | ArrayBuffer): void {
    this.heardAt = Date.now()
    try {
      if (typeof data === 'string') this.read(JSON.parse(data) as ServerMessage)
      else this.receive(unpack(data))
    } catch (error) {
      // One that can't be read is as good as lost; the next may be fine.
      if (!(error instanceof SyntaxError || error instanceof FrameError)) throw error
    }
  }

  private read(message: ServerMessage): void {
    const { welcome, event, resumed, gap, goAway } = message
    if (welcome) this.welcome(welcome.epoch, Number(welcome.offset ?? 0))
    if (resumed && this.resume) this.resume.offset = Math.max(this.resume.offset, Number(resumed.offset ?? 0))
    if (gap) this.listener.gap(gap.reason ?? '')
    if (goAway) this.leave(goAway.retryMilliseconds ?? 1000)
    if (event) this.happened(event)
    else this.listener.message(message)
  }

  /** Joined: events go on from where they were, and every subscription is asked for again. */
  private welcome(epoch: string, offset: number): void {
    this.attempt = 0
    this.why = NO_CUT
    this.joined = true
    if (this.resume && this.resume.epoch !== epoch) this.listener.gap('another epoch')
    if (this.resume?.epoch !== epoch) this.resume = { epoch, offset }
    this.listener.state('live', NO_CUT)
    for (const subscription of this.subscriptions.values()) {
      subscription.sequence = -1
      subscription.owed = 0
      this.ask(subscription.asked)
    }
  }

  private happened(event: NumberedEvent): void {
    const offset = Number(event.offset)
    if (!this.resume || offset <= this.resume.offset) return
    this.resume.offset = offset
    this.listener.event(event)
  }

  private leave(pauseMs: number): void {
    const { socket } = this
    this.socket = null
    this.joined = false
    this.unpainted.clear()
    clearInterval(this.pinging)
    socket?.close()
    this.again({ code: 4503, reason: '' }, pauseMs)
  }

  private receive(frame: Frame): void {
    const id = frame.subscription
    const subscription = this.subscriptions.get(id)
    if (!subscription) return
    // One that comes late, or replaces what was not painted yet, gives its credit back at once.
    if (frame.sequence <= subscription.sequence) return this.credit(id)
    subscription.sequence = frame.sequence
    if (this.unpainted.has(id)) this.credit(id)
    this.unpainted.add(id)
    this.listener.frame(frame)
  }

  private credit(id: number): void {
    const subscription = this.subscriptions.get(id)
    if (!subscription) return
    if (this.hidden) subscription.owed += 1
    else this.say({ credit: { id, frames: 1 } })
  }

  private ask(asked: Subscribe): void {
    this.say({ subscribe: { credits: FIRST_CREDITS, ...asked } })
  }
}
