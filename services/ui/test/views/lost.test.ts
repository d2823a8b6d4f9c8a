// @vitest-environment happy-dom
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { FakeGateway } from '../support/gateway'
import { mountApp } from '../support/mount'
import { gatewayOf, VIEWS } from '../support/pages'

/** Whatever is drawn in the colour of what is well. */
const GREEN = '.running, .health-mark.ok, .badge.live svg, .state.live svg, .fine svg, .none svg'
const SHOWN_MS = 5000
/** Longer than the longest pause between two attempts to connect. */
const BACK_MS = 40_000
const PING_MS = 2000

let page: Awaited<ReturnType<typeof mountApp>>
let gateway: FakeGateway
let pings: ReturnType<typeof setInterval>
beforeEach(() => {
  vi.useFakeTimers()
  vi.spyOn(HTMLElement.prototype, 'offsetWidth', 'get').mockReturnValue(1200)
  gateway = gatewayOf(2)
  pings = setInterval(() => {
    gateway.say(gateway.ping())
    for (const world of gateway.worlds) gateway.say({ type: 'job', job: world.job(gateway.now()) })
  }, PING_MS)
})
afterEach(() => {
  page.end()
  clearInterval(pings)
  vi.useRealTimers()
})
const text = (): string => page.element.textContent.replace(/\s+/g, ' ')
const alert = (): string => page.element.querySelector('.place [role=alert]')?.textContent ?? ''
const green = (): string[] => [...page.element.querySelectorAll(GREEN)].filter((one) => !one.closest('.legend')).map((one) => one.outerHTML.slice(0, 80))

/** Until it is so; a minute of the page's clock, which takes no time here. */
async function until(what: () => unknown): Promise<void> {
  for (let i = 0; i < 3000 && !what(); i += 1) await vi.advanceTimersByTimeAsync(20)
}

const NAMES = Object.keys(VIEWS).filter((name) => name !== 'not-found')
/** Where something is well as long as the platform is there, beside its own mark. */
const WELL = ['jobs', 'job', 'health', 'scope', 'perturb', 'generate']

describe.each(NAMES)('%s', (name) => {
  it.each(['down', 'silent'] as const)('of a platform that is %s says so within five seconds, shows nothing as well, and recovers by itself', async (condition) => {
    page = await mountApp(gateway, VIEWS[name].at)
    await until(() => page.element.querySelector('main h1') && green().length >= (WELL.includes(name) ? 2 : 1))
    expect(alert()).toBe('')
    expect(green().length).toBeGreaterThanOrEqual(WELL.includes(name) ? 2 : 1)
    const before = text()

    gateway.turn(condition)
    await vi.advanceTimersByTimeAsync(SHOWN_MS)
    expect(alert()).toContain('has not been heard since')
    expect(green()).toEqual([])
    expect(page.element.querySelector('main h1')).not.toBeNull()

    gateway.turn('up')
    await vi.advanceTimersByTimeAsync(BACK_MS)
    expect(alert()).toBe('')
    expect(green().length).toBeGreaterThanOrEqual(WELL.includes(name) ? 2 : 1)
    expect(text().length).toBeGreaterThan(before.length / 2)
  })
})

describe('scope opened of a platform that is away', () => {
  it('does not say for ever that it connects and loads', async () => {
    gateway.turn('down')
    page = await mountApp(gateway, VIEWS.scope.at)
    await until(() => page.element.querySelector('main .status'))
    for (let seconds = 0; seconds < 60; seconds += 5) {
      await vi.advanceTimersByTimeAsync(SHOWN_MS)
      const main = page.element.querySelector('main')?.textContent ?? ''
      expect(main).not.toMatch(/Connecting|Loading/)
      expect(main).toContain('Connection lost, trying again')
    }
  })
})

describe('what is known', () => {
  it('stays on the page while the platform is away', async () => {
    page = await mountApp(gateway, '/health')
    await until(() => page.element.querySelectorAll('.nodes .cell').length === 16)
    gateway.turn('down')
    await vi.advanceTimersByTimeAsync(60_000)
    expect(page.element.querySelectorAll('.nodes .cell')).toHaveLength(16)
    expect(text()).not.toMatch(/No job is running|Nothing found/)
  })

  it('is not made up by a page that is opened while the platform is away', async () => {
    gateway.turn('down')
    page = await mountApp(gateway, '/health')
    await until(() => text().includes('can’t be reached'))
    expect(text()).not.toMatch(/No job is running|Nothing found/)
    gateway.turn('up')
    await vi.advanceTimersByTimeAsync(BACK_MS)
    expect(text()).toContain('Rank 3: slow GPU')
  })
})
