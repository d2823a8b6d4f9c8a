/** Of the main thread: what takes longer is felt by a hand on the mouse. */
const TURN_MS = 8

/** Gives way to whatever waits: a task of its own, which no timer delays. */
export const pause = (): Promise<void> => new Promise((resolve) => {
  const { port1, port2 } = new MessageChannel()
  port1.onmessage = () => (port1.close(), resolve())
  port2.postMessage(null)
})

export interface Turns {
  readonly signal: AbortSignal
  /** Items of one turn, where what follows from them costs more than they do. */
  readonly most?: number
}

/** Does something with each item, in turns so short that the page stays smooth between them; `turned` hears of the end of each turn. */
export async function inTurns<T>(items: readonly T[], act: (item: T) => void, turned: () => void, { signal, most = Infinity }: Turns): Promise<void> {
  let until = performance.now() + TURN_MS
  for (const [index, item] of items.entries()) {
    act(item)
    if ((performance.now() < until && (index + 1) % most) || index === items.length - 1) continue
    turned()
    await pause()
    if (signal.aborted) return
    until = performance.now() + TURN_MS
  }
  turned()
}
