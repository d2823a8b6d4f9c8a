/**
 * Talks to an embedded Perfetto: it answers PING with PONG once it is ready, and then takes a trace by message.
 * https://perfetto.dev/docs/visualization/embedding-the-ui
 */
export const PERFETTO_URL = '/perfetto/#!/viewer?mode=embedded'

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
