// @vitest-environment happy-dom
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import HealthView from '@/views/HealthView.vue'
import JobsView from '@/views/JobsView.vue'
import JobView from '@/views/JobView.vue'
import TimelineView from '@/views/TimelineView.vue'
import effects from '../data/effects.json'
import { FakeGateway } from '../support/gateway'
import type { Mounted } from '../support/mount'
import { mountPage } from '../support/mount'
import { World } from '../support/world'

/** The detector's words and metrics are held to the same table: tests/contract/test_one_number.py. */
const ID = 'run-fake-finding-0'
let page: Mounted | undefined
let copied = ''
vi.mock('@vueuse/core', async (original) => ({
  ...(await original<object>()),
  useClipboard: () => ({ copy: (said: string) => (copied = said), copied: false, isSupported: true }),
}))
beforeEach(() => {
  vi.spyOn(HTMLElement.prototype, 'offsetWidth', 'get').mockReturnValue(1200)
})
afterEach(() => page?.end())
const text = (selector: string): string => (page?.element.querySelector(selector)?.textContent ?? '').replace(/\s+/g, ' ')
const signed = (effect: string): string => (effect.endsWith('%') ? `+${effect}` : effect)

async function open(view: Parameters<typeof mountPage>[0], at: string, ratio: number, shown: string): Promise<void> {
  page = await mountPage(view, new FakeGateway([new World({ ranks: 4, steps: 90, perNode: 2, faults: [{ ranks: [3], since: 60, effect: ratio }] })]), at)
  await page.until(() => text(shown))
}

describe.each(effects)('an effect of $ratio', ({ ratio, text: effect }) => {
  it('is one number in the list of findings, in the finding, its sentence and its Markdown', async () => {
    await open(HealthView, `/health?finding=${ID}`, ratio, 'article .summary')
    expect(text('.lists .effect')).toBe(signed(effect))
    expect([...page!.element.querySelectorAll('article dd')].map((one) => one.textContent)).toContain(signed(effect))
    expect(text('article .summary')).toContain(`has computed ${effect} slower than its peers`)
    page!.element.querySelector<HTMLButtonElement>('article .copy')!.click()
    await page!.until(() => copied.includes(ID))
    expect(copied).toContain(`has computed ${effect} slower than its peers`)
    expect(copied).toMatch(new RegExp(`\\| Effect \\| ${signed(effect).replace('+', '\\+')} `))
  })

  it('is the same in the list of jobs, on the job’s page, and on the timeline, which says what its own numbers are', async () => {
    await open(JobsView, '/jobs', ratio, 'tbody a.chip, tbody td a[href*=finding]')
    expect(text('tbody')).toContain(`slow GPU ${signed(effect)}`)
    page!.end()
    await open(JobView, '/jobs/run-fake', ratio, 'article')
    expect(text('article')).toContain(signed(effect))
    page!.end()
    await open(TimelineView, '/jobs/run-fake/timeline?rank=3&step=70', ratio, 'aside table')
    expect(text('aside .finding')).toContain(`has computed ${effect} slower than its peers`)
    expect(text('aside')).toContain(`The finding: ${signed(effect)} over its expected time since step 60. The table is this one step alone.`)
  })
})
