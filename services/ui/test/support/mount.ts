import { createPinia, setActivePinia } from 'pinia'
import { vi } from 'vitest'
import type { Component } from 'vue'
import { createApp, effectScope, nextTick } from 'vue'
import { createMemoryHistory, createRouter } from 'vue-router'
import type { Router } from 'vue-router'
import App from '@/App.vue'
import { createLive, LIVE } from '@/api/live'
import { createDesk } from '@/scope/desk'
import type { OpenLink } from '@/scope/link'
import { OPEN_LINK } from '@/scope/link'
import { ROLE } from '@/composables/useRole'
import { router as routes } from '@/router'
import type { FakeGateway } from './gateway'

export interface Mounted {
  readonly element: HTMLElement
  readonly router: Router
  /** Until it is so; throws after ten seconds. */
  readonly until: (true_: () => unknown) => Promise<void>
  readonly end: () => void
}

/** A page over a fake gateway, as the shell would show it at an address. */
export async function mountPage(page: Component, gateway: FakeGateway, address: string, role = 'operator'): Promise<Mounted> {
  vi.stubGlobal('fetch', (input: RequestInfo | URL, init?: RequestInit) => respond(gateway, input, init))
  vi.stubGlobal('WebSocket', socketOf(gateway))
  const router = createRouter({ history: createMemoryHistory(), routes: routes.getRoutes().map((route) => ({ ...route, components: undefined, component: page, children: [] })) })
  await router.push(address)
  const element = document.createElement('div')
  document.body.append(element)
  const pinia = createPinia()
  setActivePinia(pinia)
  const app = createApp(page, router.currentRoute.value.params)
  app.use(pinia).use(router)
  // Live's connection and timers end with the page: those of a page that is gone would open connections in later tests.
  const scope = effectScope(true)
  app.onUnmount(() => scope.stop())
  const live = scope.run(() => createLive('ws://fake/api/v1/events'))!
  app.provide(LIVE, live).provide(ROLE, { value: role } as never).provide(OPEN_LINK, openLink)
  app.mount(element)
  const until = async (holds: () => unknown): Promise<void> => {
    for (let i = 0; !holds(); i += 1) {
      if (i === 1000) throw new Error(`not so after ten seconds: ${String(holds)}`)
      await new Promise((resolve) => setTimeout(resolve, 10))
    }
    await nextTick()
  }
  return {
    element, router, until,
    end: () => unmount(app, element),
  }
}

/** The page as people have it, shell and all, at an address. Timers are the test's. */
export async function mountApp(gateway: FakeGateway, address: string): Promise<Omit<Mounted, 'until'>> {
  vi.stubGlobal('fetch', (input: RequestInfo | URL, init?: RequestInit) => respond(gateway, input, init))
  vi.stubGlobal('WebSocket', socketOf(gateway))
  const router = createRouter({ history: createMemoryHistory(), routes: routes.options.routes })
  await router.push(address)
  const element = document.createElement('div')
  document.body.append(element)
  const pinia = createPinia()
  setActivePinia(pinia)
  const app = createApp(App, { linkRefused: false })
  app.use(pinia).use(router).provide(OPEN_LINK, openLink)
  app.mount(element)
  return { element, router, end: () => unmount(app, element) }
}

const openLink: OpenLink = (hear) => ({ order: createDesk(hear), close: () => undefined })

function unmount(app: ReturnType<typeof createApp>, element: HTMLElement): void {
  app.unmount()
  element.remove()
  vi.unstubAllGlobals()
}

async function respond(gateway: FakeGateway, input: RequestInfo | URL, init?: RequestInit): Promise<Response> {
  const request = input instanceof Request ? input : new Request(new URL(String(input), 'http://fake'), init)
  const sent: unknown = request.method === 'POST' ? await request.json().catch(() => undefined) : undefined
  if (gateway.condition === 'down') throw new TypeError('nobody answers')
  if (gateway.condition === 'silent') return new Promise((_, reject) => request.signal.addEventListener('abort', () => reject(request.signal.reason as Error)))
  const { status, type, body } = gateway.answer(request.method, new URL(request.url), sent)
  return new Response(status === 204 ? null : body, { status, headers: { 'Content-Type': type } })
}

function socketOf(gateway: FakeGateway): unknown {
  return function (url: string) {
    return url.endsWith('/scope') ? new (scopeSocketOf(gateway))() : new (eventSocketOf(gateway))()
  }
}

/** Of MegaScope: what the page says is answered in the next turn. */
function scopeSocketOf(gateway: FakeGateway): new () => unknown {
  return class {
    readyState = 0
    binaryType = ''
    onopen?: () => void
    onclose?: (event: { code: number; reason: string }) => void
    onmessage?: (event: { data: string | ArrayBuffer }) => void
    private readonly viewer = gateway.view(
      (message) => queueMicrotask(() => this.readyState === 1 && gateway.condition === 'up' && this.onmessage?.({ data: typeof message === 'string' ? message : message.buffer })),
      (code, reason) => queueMicrotask(() => this.end(code, reason)),
    )
    private readonly leave = gateway.connected(() => this.end(1006, ''))
    constructor() {
      queueMicrotask(() => {
        if (gateway.condition === 'down') return this.end(1006, '')
        this.readyState = 1
        this.onopen?.()
      })
    }
    send(text: string): void {
      if (gateway.condition === 'up') this.viewer.hear(text)
    }
    close(): void {
      this.end(1000, '')
    }
    private end(code: number, reason: string): void {
      if (this.readyState === 3) return
      this.readyState = 3
      this.leave()
      this.viewer.leave()
      this.onclose?.({ code, reason })
    }
  }
}

function eventSocketOf(gateway: FakeGateway): new () => unknown {
  return class {
    static readonly CONNECTING = 0
    static readonly OPEN = 1
    readyState = 1
    onopen?: () => void
    onclose?: (event: unknown) => void
    onmessage?: (event: { data: string }) => void
    private readonly stop = gateway.listen((event) => this.onmessage?.({ data: JSON.stringify(event) }))
    private readonly leave = gateway.connected(() => this.close())
    constructor() {
      queueMicrotask(() => {
        if (gateway.condition === 'down') return this.close()
        this.onopen?.()
        if (gateway.condition === 'silent') return
        for (const event of gateway.greeting()) this.onmessage?.({ data: JSON.stringify(event) })
      })
    }
    close(): void {
      if (this.readyState === 3) return
      this.readyState = 3
      this.stop()
      this.leave()
      this.onclose?.({})
    }
    send(): void {
      throw new Error('the page only listens')
    }
  }
}
