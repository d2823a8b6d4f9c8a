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

  it('draws its rows a few at a time, so that none is felt', async () => {
    gateway = new FakeGateway(Array.from({ length: 100 }, (_, i) => new World({ run: `run-${i}`, name: `team/job-${i}`, ranks: 2, steps: 3 })))
    page = await mountPage(JobsView, gateway, '/jobs')
    const rows = (): string[] => [...page!.element.querySelectorAll('tbody .name')].map(({ textContent }) => textContent)
    await page.until(() => rows().length === 50)
    const [first] = rows()
    const drawn = new Set<number>()
    new MutationObserver(() => drawn.add(rows().length)).observe(page.element, { childList: true, subtree: true })
    await page.router.push('/jobs?page=2')
    await page.until(() => rows().length === 50 && rows()[0] !== first)
    expect([...drawn]).toEqual([8, 16, 24, 32, 40, 48, 50])
  })

  it('says how to begin where there is none', async () => {
    gateway = new FakeGateway([])
    page = await mountPage(JobsView, gateway, '/jobs')
    await page.until(() => text().includes('megatronapp run'))
    expect(text()).not.toContain('No job matches')
  })
})
