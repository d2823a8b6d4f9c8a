// @vitest-environment happy-dom
import { afterEach, describe, expect, it, vi } from 'vitest'
import HealthView from '@/views/HealthView.vue'
import { FakeGateway } from '../support/gateway'
import type { Mounted } from '../support/mount'
import { mountPage } from '../support/mount'
import { gatewayOf } from '../support/pages'
import { World } from '../support/world'

let page: Mounted | undefined
afterEach(() => page?.end())

describe('the nodes, which stand below the findings', () => {
  it('wait for them', async () => {
    const gateway = gatewayOf(1)
    gateway.condition = 'silent'
    page = await mountPage(HealthView, gateway, '/health')
    expect(page.element.querySelector('#grid-title')).toBeNull()
    expect(page.element.querySelector('[aria-busy=true]')).not.toBeNull()
  })

  it('wait without a second word for a finding that a link names', async () => {
    const gateway = gatewayOf(1)
    gateway.condition = 'silent'
    page = await mountPage(HealthView, gateway, '/health?finding=one')
    expect(page.element.querySelectorAll('[aria-busy=true]')).toHaveLength(1)
  })

  it('are shown with them', async () => {
    page = await mountPage(HealthView, gatewayOf(1), '/health')
    await page.until(() => page!.element.querySelector('#grid-title'))
    expect(page.element.querySelector('.lists a')).not.toBeNull()
  })

  it('of thousands are named at once, and their devices drawn when they come near the screen', async () => {
    const reached = new Map<Element, () => void>()
    vi.stubGlobal('IntersectionObserver', class {
      constructor(private readonly seen: (entries: readonly object[]) => void) {}
      observe(target: Element): void {
        reached.set(target, () => this.seen([{ target, isIntersecting: true }]))
      }
      unobserve(target: Element): void {
        reached.delete(target)
      }
      disconnect(): void {
        reached.clear()
      }
    })
    page = await mountPage(HealthView, new FakeGateway([new World({ ranks: 400, steps: 9 })]), '/health')
    const nodes = (): NodeListOf<HTMLElement> => page!.element.querySelectorAll<HTMLElement>('.nodes > li')
    await page.until(() => nodes().length === 50)
    expect(page.element.querySelectorAll('.cell')).toHaveLength(0)
    reached.get(nodes()[40])?.()
    await page.until(() => page!.element.querySelector('.cell'))
    expect(nodes()[40].querySelectorAll('.cell')).toHaveLength(8)
    expect(page.element.querySelectorAll('.cell')).toHaveLength(8)
  })

  it('are asked for once, however many jobs there are', async () => {
    const gateway = gatewayOf(40)
    page = await mountPage(HealthView, gateway, '/health')
    await page.until(() => page!.element.querySelectorAll('.nodes .cell').length === 40 * 8)
    expect(page.element.querySelectorAll('.nodes .cell')).toHaveLength(40 * 8)
    expect(gateway.asked.filter((asked) => /ranks/.test(asked))).toEqual(['GET /api/v1/ranks'])
  })
})
