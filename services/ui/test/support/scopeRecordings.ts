import type { Description, ReplayOrder, ServerMessage, Subscribe, Subscribed } from '@/scope/messages'
import type { Send } from './scope'

/** Of the gateway's answers. */
export interface RecordingEntry {
  readonly id: string
  readonly name: string
  readonly run: string
  readonly job: string
  readonly by: string
  readonly view: string
  readonly snapshot: boolean
  readonly recorded_unix_seconds: number
  readonly seconds: number
  readonly frames: number
  readonly events: number
  readonly bytes: number
  readonly expires_unix_seconds: number | null
}

type Sent = string | Uint8Array<ArrayBuffer>
const subscriptionOf = (frame: Uint8Array<ArrayBuffer>): number => new DataView(frame.buffer, frame.byteOffset).getUint32(4, true)

/** What a viewer was sent, by what it had asked for; each thing that was sent is half a second of the recording. */
export class FakeRecording {
  readonly sent: Sent[] = []
  finished = false
  private readonly asked = new Map<number, Subscribe>()
  private readonly answers = new Map<string, Subscribed>()

  constructor(
    readonly id: string,
    private readonly about: { readonly view: string; readonly snapshot: boolean; readonly at: number },
    readonly description: Description,
  ) {}

  ask(asked: Subscribe, answer: Subscribed): void {
    this.asked.set(asked.id, asked)
    this.answers.set(asked.expression, answer)
  }

  take(sent: Sent): void {
    if (!this.finished && (typeof sent !== 'string' || sent.startsWith('{"event"'))) this.sent.push(sent)
  }

  get seconds(): number {
    return this.about.snapshot ? 0 : this.sent.length / 2
  }

  entry(): RecordingEntry {
    const frames = this.sent.filter((one) => typeof one !== 'string').length
    return {
      id: this.id, name: '', run: this.description.run ?? '', job: this.description.job ?? '', by: 'operator ann', view: this.about.view, snapshot: this.about.snapshot,
      recorded_unix_seconds: this.about.at, seconds: this.seconds, frames, events: this.sent.length - frames,
      bytes: this.sent.reduce((sum, one) => sum + one.length, 4096), expires_unix_seconds: this.about.at + 90 * 86_400,
    }
  }

  /** One viewer of it. It stands still until it is told to play, which shows the rest at once. */
  replay(send: Send): (text: string) => void {
    let epoch = 0
    let seconds = this.seconds
    let playing = false
    const subscribed = new Map<number, Subscribe>()
    const tell = (message: ServerMessage): void => send(JSON.stringify(message))
    const state = (): void => tell({ replay: { seconds, durationSeconds: this.seconds, playing, speed: 1, subscriptions: [...new Map([...this.asked.values()].map((one) => [one.expression, one])).values()], recordedUnixSeconds: this.about.at } })
    const until = (): Sent[] => this.sent.slice(0, this.about.snapshot ? undefined : Math.round(seconds * 2))
    const begin = (): void => {
      subscribed.clear()
      tell({ welcome: { viewer: 'me', epoch: `replay-${(epoch += 1)}`, offset: '0', role: 'viewer' } })
      state()
      tell({ description: { ...this.description, controller: '', replay: true } })
      for (const sent of until()) if (typeof sent === 'string') send(sent)
    }
    const frames = (asked: Subscribe): void => {
      let sequence = 0
      for (const sent of until()) {
        if (typeof sent === 'string' || this.asked.get(subscriptionOf(sent))?.expression !== asked.expression) continue
        const frame = sent.slice()
        const view = new DataView(frame.buffer)
        view.setUint32(4, asked.id, true)
        view.setBigUint64(8, BigInt((sequence += 1)), true)
        send(frame)
      }
    }
    return (text) => {
      const message = JSON.parse(text) as { join?: unknown; subscribe?: Subscribe; replay?: ReplayOrder }
      if (message.join) return begin()
      if (message.subscribe) {
        const answer = this.answers.get(message.subscribe.expression)
        if (!answer) return tell({ refused: { id: message.subscribe.id, code: 'not_recorded', message: `${message.subscribe.expression} was not recorded`, hint: `it has ${[...this.answers.keys()].join('; ')}` } })
        subscribed.set(message.subscribe.id, message.subscribe)
        tell({ subscribed: { ...answer, id: message.subscribe.id } })
        return frames(message.subscribe)
      }
      if (!message.replay) return
      const { do: what, seconds: to = 0 } = message.replay
      playing = what === 'play' && seconds < this.seconds
      if (what !== 'seek') return state()
      seconds = Math.min(to, this.seconds)
      begin()
    }
  }
}
