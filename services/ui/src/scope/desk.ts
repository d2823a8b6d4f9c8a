import type { Cut, ScopeState } from './connection'
import { ScopeConnection } from './connection'
import type { Frame } from './frame'
import type { ClientMessage, NumberedEvent, ServerMessage, Subscribe } from './messages'
import type { Picture } from './picture'
import { pictureOf, transferable } from './picture'

/** What the page tells its worker. */
export type WorkerOrder =
  | { readonly order: 'open'; readonly url: string; readonly run: string; readonly recording: string; readonly client: string }
  | { readonly order: 'subscribe'; readonly asked: Subscribe }
  | { readonly order: 'unsubscribe'; readonly id: number }
  | { readonly order: 'painted'; readonly id: number }
  | { readonly order: 'hidden'; readonly hidden: boolean }
  | { readonly order: 'say'; readonly message: ClientMessage }
  | { readonly order: 'close' }

/** What the worker tells its page. */
export type WorkerReport =
  | { readonly report: 'state'; readonly state: ScopeState; readonly cut: Cut }
  | { readonly report: 'frame'; readonly picture: Picture }
  | { readonly report: 'event'; readonly event: NumberedEvent }
  | { readonly report: 'message'; readonly message: ServerMessage }
  | { readonly report: 'gap'; readonly reason: string }

export type Tell = (report: WorkerReport, transfer?: Transferable[]) => void

/** What a worker does with its orders; without one, a test does the same. */
export function createDesk(tell: Tell): (order: WorkerOrder) => void {
  let connection: ScopeConnection | undefined
  /** Newer frames of a layer overtake older ones whose cells were slower to unfold. */
  const newest = new Map<string, number>()

  async function forward(frame: Frame): Promise<void> {
    const key = `${frame.subscription} ${frame.layer}`
    newest.set(key, frame.sequence)
    const picture = await pictureOf(frame)
    if (newest.get(key) === frame.sequence) tell({ report: 'frame', picture }, transferable(picture))
  }

  function open(url: string, run: string, recording: string, client: string): void {
    connection?.close()
    newest.clear()
    connection = new ScopeConnection(
      { run, recording, client, ticket, open: (protocols) => new WebSocket(url, [...protocols]) },
      {
        state: (state, cut) => tell({ report: 'state', state, cut }),
        // A payload that can't be unfolded counts as painted: the next one may come.
        frame: (frame) => void forward(frame).catch(() => connection?.painted(frame.subscription)),
        event: (event) => tell({ report: 'event', event }),
        message: (message) => tell({ report: 'message', message }),
        gap: (reason) => tell({ report: 'gap', reason }),
      },
    )
  }

  return (order) => {
    switch (order.order) {
      case 'open':
        return open(order.url, order.run, order.recording, order.client)
      case 'subscribe':
        return connection?.subscribe(order.asked)
      case 'unsubscribe':
        return connection?.unsubscribe(order.id)
      case 'painted':
        return connection?.painted(order.id)
      case 'hidden':
        return connection?.setHidden(order.hidden)
      case 'say':
        return connection?.say(order.message)
      case 'close':
        connection?.close()
        connection = undefined
    }
  }
}

const TICKET_MS = 10_000

async function ticket(): Promise<string> {
  const answer = await fetch('/api/v1/scope/tickets', { method: 'POST', credentials: 'same-origin', signal: AbortSignal.timeout(TICKET_MS) })
  if (!answer.ok) throw new Error(`no ticket: HTTP ${answer.status}`)
  return ((await answer.json()) as { ticket: string }).ticket
}
