// @vitest-environment happy-dom
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { FakeGateway } from '../support/gateway'
import { mountApp } from '../support/mount'
import { gatewayOf } from '../support/pages'
import { World } from '../support/world'

let page: Awaited<ReturnType<typeof mountApp>>
let gateway: FakeGateway
let made: { title: string; body?: string; tag?: string; onclick?: () => void; close: () => void }[]
let asked: number

/** The browser's notifications, with what the person answers when asked. */
function browser(permission: NotificationPermission, answer: NotificationPermission): void {
  class Notifications {
    static permission = permission
    static requestPermission(): Promise<NotificationPermission> {
      asked += 1
      Notifications.permission = answer
      return Promise.resolve(answer)
    }
    onclick?: () => void
    readonly close = (): void => undefined
    constructor(readonly title: string, options: NotificationOptions) {
      made.push(Object.assign(this, options))
    }
  }
  vi.stubGlobal('Notification', Notifications)
  window.Notification = Notifications as never
  Object.defineProperty(window, 'isSecureContext', { value: true, configurable: true })
}

const button = (name: string): HTMLButtonElement | null => page.element.querySelector(`nav button[aria-label="${name}"]`)
async function until(what: () => unknown): Promise<void> {
  for (let i = 0; i < 1000 && !what(); i += 1) await new Promise((resolve) => setTimeout(resolve, 10))
}

beforeEach(() => {
  localStorage.clear()
  made = []
  asked = 0
  gateway = gatewayOf(1)
})
afterEach(() => {
  page.end()
  Reflect.deleteProperty(window, 'Notification')
})

const another = new World({ run: 'run-9', name: 'team/nine', ranks: 8, steps: 90, faults: [{ ranks: [5], since: 60, effect: 1.4 }] })
const ON = 'Notify me of findings that alert'

describe('notifications of the browser', () => {
  it('are asked for by a click only, and tell of what is new alone, once', async () => {
    browser('default', 'granted')
    page = await mountApp(gateway, '/jobs')
    await until(() => button(ON) && page.element.querySelector('tbody tr'))
    expect(asked).toBe(0)

    button(ON)?.click()
    await until(() => button('Stop notifying me of findings'))
    expect(asked).toBe(1)
    expect(made).toEqual([])

    const [finding] = another.findings(1)
    gateway.say({ type: 'finding', finding })
    gateway.say({ type: 'finding', finding: { ...finding, updated_unix_ns: finding.updated_unix_ns + 1 } })
    gateway.say({ type: 'finding', finding: { ...finding, id: 'quiet', page: false } })
    await until(() => made.length)
    expect(made.map(({ title, body, tag }) => [title, body, tag])).toEqual([['Rank 5: slow GPU +40 %', 'team/nine', 'run-9-finding-0']])

    made[0].onclick?.()
    await until(() => page.router.currentRoute.value.name === 'health')
    expect(page.router.currentRoute.value.query.finding).toBe('run-9-finding-0')
  })

  it('that were refused are not asked for again', async () => {
    browser('default', 'denied')
    page = await mountApp(gateway, '/jobs')
    await until(() => button(ON))
    button(ON)?.click()
    await until(() => button('Notifications are blocked in this browser’s settings'))
    expect(button('Notifications are blocked in this browser’s settings')?.disabled).toBe(true)
    gateway.say({ type: 'finding', finding: another.findings(1)[0] })
    expect(made).toEqual([])
  })

  it('are not offered where there are none', async () => {
    page = await mountApp(gateway, '/jobs')
    await until(() => page.element.querySelector('tbody tr'))
    expect(button(ON)).toBeNull()
  })
})

describe('the time zone', () => {
  it('is chosen in the rail, kept on this device, and no part of the address', async () => {
    page = await mountApp(gateway, '/jobs')
    await until(() => page.element.querySelector('tbody time'))
    expect(page.element.querySelector('tbody time')?.textContent).not.toContain('UTC')
    button('Time zone: Times of this device')?.click()
    await until(() => page.element.querySelector('tbody time')?.textContent.includes('UTC'))
    expect(page.element.querySelector('tbody time')?.textContent).toMatch(/\d\d:\d\d UTC$/)
    expect(localStorage.getItem('megatronapp.zone')).toBe('utc')
    expect(page.router.currentRoute.value.fullPath).toBe('/jobs')
  })
})
