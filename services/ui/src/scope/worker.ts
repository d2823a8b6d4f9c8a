/// <reference lib="webworker" />
import { ScopeConnection } from './connection'
import type { Cells, Frame } from './frame'
import { cellsOf } from './frame'
import type { ClientMessage, NumberedEvent, ServerMessage, Subscribe } from './messages'
import type { ScopeState } from './connection'

/** What the page tells its worker. */
export type WorkerOrder =
  | { readonly order: 'open'; readonly url: string; readonly run: string; readonly client: string }
  | { readonly order: 'subscribe'; readonly asked: Subscribe }
  | { readonly order: 'unsubscribe'; readonly id: number }
  | { readonly order: 'painted'; readonly id: number }
  | { readonly order: 'hidden'; readonly hidden: boolean }
  | { readonly order: 'say'; readonly message: ClientMessage }
  | { readonly order: 'close' }

/** What the worker tells its page. */
export type WorkerReport =
  | { readonly report: 'state'; readonly state: ScopeState; readonly reason: string }
  | { readonly report: 'frame'; readonly frame: Frame; readonly cells: Cells }
  | { readonly report: 'event'; readonly event: NumberedEvent }
  | { readonly report: 'message'; readonly message: ServerMessage }
  | { readonly report: 'gap'; readonly reason: string }

const scope = self as unknown as DedicatedWorkerGlobalScope
const tell = (report: WorkerReport, transfer: Transferable[] = []): void => scope.postMessage(report, transfer)
let connection: ScopeConnection | undefined

async function ticket(): Promise<string> {
  const answer = await fetch('/api/v1/scope/tickets', { method: 'POST', credentials: 'same-origin' })
  if (!answer.ok) throw new Error(`no ticket: HTTP ${answer.status}`)
  return ((await answer.json()) as { ticket: string }).ticket
}

/** Newer frames overtake older ones whose cells were slower to unfold. */
const newest = new Map<number, number>()

async function forward(frame: Frame): Promise<void> {
  newest.set(frame.subscription, frame.sequence)
  const cells = await cellsOf(frame)
  if (newest.get(frame.subscription) === frame.sequence) tell({ report: 'frame', frame, cells }, [cells.buffer])
}

scope.onmessage = ({ data }: MessageEvent<WorkerOrder>): void => {
  switch (data.order) {
    case 'open':
      connection?.close()
      connection = new ScopeConnection(
        { run: data.run, client: data.client, ticket, open: (protocols) => new WebSocket(data.url, [...protocols]) },
        {
          state: (state, reason) => tell({ report: 'state', state, reason }),
          // A payload that can't be unfolded counts as painted: the next one may come.
          frame: (frame) => void forward(frame).catch(() => connection?.painted(frame.subscription)),
          event: (event) => tell({ report: 'event', event }),
          message: (message) => tell({ report: 'message', message }),
          gap: (reason) => tell({ report: 'gap', reason }),
        },
      )
      break
    case 'subscribe':
      newest.delete(data.asked.id)
      connection?.subscribe(data.asked)
      break
    case 'unsubscribe':
      newest.delete(data.id)
      connection?.unsubscribe(data.id)
      break
    case 'painted':
      connection?.painted(data.id)
      break
    case 'hidden':
      connection?.setHidden(data.hidden)
      break
    case 'say':
      connection?.say(data.message)
      break
    case 'close':
      connection?.close()
      connection = undefined
      break
  }
}
