import { readFile } from 'node:fs/promises'
import type { IncomingMessage, Server } from 'node:http'
import { createServer } from 'node:http'
import { extname, join, normalize } from 'node:path'
import { gzipSync } from 'node:zlib'
import { WebSocketServer } from 'ws'
import type { FakeGateway } from './gateway'

const TYPES: Record<string, string> = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml', '.woff2': 'font/woff2' }
const PING_MS = 2000
const POLICY = "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self' ws:; img-src 'self' data: blob:"

/** A fake gateway on a port of this machine, with the built page of `folder`. */
export async function serve(gateway: FakeGateway, folder: string, port = 0): Promise<{ readonly server: Server; readonly url: string }> {
  const server = createServer((request, response) => {
    const url = new URL(request.url ?? '/', 'http://fake')
    if (gateway.condition === 'down') return void request.socket.destroy()
    if (gateway.condition === 'silent') return
    if (url.pathname.startsWith('/api/')) {
      void bodyOf(request).then((sent) => {
        const { status, type, body } = gateway.answer(request.method ?? 'GET', url, sent)
        response.writeHead(status, { 'Content-Type': type }).end(body)
      })
      return
    }
    void file(folder, url.pathname).then(({ status, type, body }) => {
      const zipped = /text|javascript|svg/.test(type)
      const headers = { 'Content-Type': type, 'Content-Security-Policy': POLICY, ...(zipped ? { 'Content-Encoding': 'gzip' } : {}) }
      response.writeHead(status, headers).end(zipped ? gzipSync(body) : body)
    })
  })
  const sockets = new WebSocketServer({ noServer: true })
  const viewers = new WebSocketServer({ noServer: true, handleProtocols: () => 'mscope.v1' })
  server.on('upgrade', (request, socket, head) => {
    if (gateway.condition !== 'up') return void socket.destroy()
    const chosen = request.url?.startsWith('/api/v1/scope') ? viewers : sockets
    chosen.handleUpgrade(request, socket, head, (made) => chosen.emit('connection', made, request))
  })
  viewers.on('connection', (socket) => {
    const viewer = gateway.view((message) => socket.send(message), (code, reason) => socket.close(code, reason))
    socket.on('message', (data: Buffer) => viewer.hear(data.toString()))
    socket.on('close', () => viewer.leave())
  })
  sockets.on('connection', (socket) => {
    const say = (event: object): void => socket.send(JSON.stringify(event))
    for (const event of gateway.greeting()) say(event)
    const stop = gateway.listen(say)
    const pings = setInterval(() => gateway.condition === 'up' && say(gateway.ping()), PING_MS)
    const kept = gateway.connected(() => socket.terminate())
    socket.on('close', () => {
      stop()
      kept()
      clearInterval(pings)
    })
  })
  await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve))
  const address = server.address()
  return { server, url: `http://127.0.0.1:${typeof address === 'object' && address ? address.port : port}` }
}

async function bodyOf(request: IncomingMessage): Promise<unknown> {
  const chunks: Buffer[] = []
  for await (const chunk of request) chunks.push(chunk as Buffer)
  return chunks.length ? JSON.parse(Buffer.concat(chunks).toString()) : undefined
}

/** A file of the page; whatever is none of them is the page itself. */
async function file(folder: string, path: string): Promise<{ status: number; type: string; body: Buffer }> {
  const name = normalize(path).replace(/^(\.\.[/\\])+/, '')
  const wanted = extname(name) ? name : '/index.html'
  try {
    return { status: 200, type: TYPES[extname(wanted)] ?? 'application/octet-stream', body: await readFile(join(folder, wanted)) }
  } catch {
    return { status: 404, type: 'text/plain', body: Buffer.from('not found') }
  }
}
