/**
 * Talks to an embedded Perfetto: it answers PING with PONG once it is ready, and then takes a trace by message.
 * https://perfetto.dev/docs/visualization/embedding-the-ui
 */
const VIEWER = '/perfetto/#!/viewer?mode=embedded'
/** Where Perfetto keeps what a person has set. */
const SETTINGS = 'perfettoSettings'

/** The viewer's address: it opens the tracks of these ranks, or of all, when the trace is there. */
export function perfettoUrl(ranks: readonly number[]): string {
  const tracks = ranks.length ? `rank (${ranks.join('|')})\\b` : 'rank \\d'
  const commands = [{ id: 'dev.perfetto.ExpandTracksByRegex', args: [tracks] }]
  return `${VIEWER}&startupCommands=${encodeURIComponent(JSON.stringify(commands))}`
}

/** Perfetto comes in the page's theme; it reads it when it starts. */
export function setPerfettoTheme(storage: Storage, theme: 'light' | 'dark'): void {
  let settings: Record<string, unknown> = {}
  try {
    settings = JSON.parse(storage.getItem(SETTINGS) ?? '{}') as Record<string, unknown>
  } catch {
    // Not ours: written anew.
  }
  storage.setItem(SETTINGS, JSON.stringify({ ...settings, theme }))
}

const OPENED = 'local_cache_key'
const OPEN_PING_MS = 200

/** Resolves when the frame's Perfetto has opened the trace: its address then names it. Not before, it forgets what it is asked for. */
export function waitForTrace(frame: Window, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const look = setInterval(() => {
      if (signal.aborted) reject(new DOMException('closed', 'AbortError'))
      else if (frame.location.hash.includes(OPENED)) resolve()
      else return
      clearInterval(look)
    }, OPEN_PING_MS)
  })
}

/** Moves the view to a stretch of job time, in seconds since 1970. */
export function showTime(frame: Window, from: number, to: number): void {
  const air = (to - from) * 0.02
  frame.postMessage({ perfetto: { timeStart: from - air, timeEnd: to + air, keepApiOpen: true } }, window.location.origin)
}

/**
 * Perfetto's own navigation replaces the frame's entry in the history instead of adding to it, so that the browser's
 * Back leaves it at once. Browsers without the Navigation API keep its entries.
 */
export function keepOutOfHistory(frame: Window): void {
  const { navigation } = frame as Window & { navigation?: EventTarget }
  navigation?.addEventListener('navigate', (event) => {
    const { navigationType, hashChange, destination } = event as Event & { navigationType: string; hashChange: boolean; destination: { url: string } }
    if (navigationType !== 'push' || !hashChange) return
    event.preventDefault()
    frame.location.replace(destination.url)
  })
}

const PING_MS = 100

/** Resolves when the frame's Perfetto has answered; rejects when it has not within the time or the signal aborts. */
export function waitForPerfetto(frame: Window, timeoutMs: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const end = (settle: () => void): void => {
      clearInterval(ping)
      clearTimeout(limit)
      window.removeEventListener('message', listen)
      signal.removeEventListener('abort', abort)
      settle()
    }
    const listen = (event: MessageEvent<unknown>): void => {
      if (event.source === frame && event.origin === window.location.origin && event.data === 'PONG') end(resolve)
    }
    const abort = (): void => end(() => reject(new DOMException('closed', 'AbortError')))
    const ping = setInterval(() => frame.postMessage('PING', window.location.origin), PING_MS)
    const limit = setTimeout(() => end(() => reject(new Error('timeout'))), timeoutMs)
    window.addEventListener('message', listen)
    signal.addEventListener('abort', abort)
  })
}

export function showTrace(frame: Window, buffer: ArrayBuffer, title: string, fileName: string): void {
  const perfetto = { buffer, title, fileName, keepApiOpen: true }
  frame.postMessage({ perfetto }, window.location.origin, [buffer])
}

/** Whether this server carries Perfetto: it comes with the gateway, but may be left out. */
export async function hasPerfetto(signal: AbortSignal): Promise<boolean> {
  const answer = await fetch('/perfetto/', { method: 'HEAD', signal }).catch(() => undefined)
  return answer?.ok ?? false
}
