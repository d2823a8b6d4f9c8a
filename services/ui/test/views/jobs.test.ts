// @vitest-environment happy-dom
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import JobsView from '@/views/JobsView.vue'
import { FakeGateway } from '../support/gateway'
import type { Mounted } from '../support/mount'
import { mountPage } from '../support/mount'
import { World } from '../support/world'

let page: Mounted | undefined
let gateway: FakeGateway
beforeEach(() => (gateway = new FakeGateway([new World({ ranks: 2, steps: 30 })])))
afterEach(() => page?.end())
const text = (): string => page!.element.textContent

describe('the list of jobs', () => {
  it('says that nothing matches only when nothing does', async () => {
    const seen = new Set<string>()
    page = await mountPage(JobsView, gateway, '/jobs')
    const watcher = new MutationObserver(() => seen.add(text()))
    watcher.observe(page.element, { childList: true, subtree: true, characterData: true })
    await page.until(() => page!.element.querySelector('tbody tr'))
    await new Promise((resolve) => setTimeout(resolve, 50))
    expect([...seen, text()].filter((one) => one.includes('No job matches'))).toEqual([])
    await page.router.push('/jobs?search=nobody')
    await page.until(() => text().includes('No job matches'))
    expect(page.element.querySelector('table')).toBeNull()
  })

  it('says how to begin where there is none', async () => {
    gateway = new FakeGateway([])
    page = await mountPage(JobsView, gateway, '/jobs')
    await page.until(() => text().includes('megatronapp run'))
    expect(text()).not.toContain('No job matches')
  })
})
