// @vitest-environment happy-dom
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { nextTick } from 'vue'
import * as layout from '@/draw/timeline/layout'
import TimelineView from '@/views/TimelineView.vue'
import { FakeGateway } from '../support/gateway'
import type { Mounted } from '../support/mount'
import { mountPage } from '../support/mount'
import { World } from '../support/world'

let page: Mounted | undefined
beforeEach(() => {
  // happy-dom lays nothing out and draws nothing.
  vi.spyOn(HTMLElement.prototype, 'offsetWidth', 'get').mockReturnValue(1200)
})
afterEach(() => page?.end())

vi.mock('@/draw/timeline/layout', async (original) => {
  const real = await original<typeof layout>()
  return { ...real, layoutRows: vi.fn(real.layoutRows) }
})

const many = (): World => new World({ ranks: 128, steps: 1200, pipeline: 4, faults: [{ ranks: [77], since: 1150, effect: 1.22 }] })
const few = (): World => new World({ ranks: 4, steps: 90, pipeline: 2, faults: [{ ranks: [3], since: 60, effect: 1.25 }] })

async function open(gateway: FakeGateway, query = ''): Promise<Mounted> {
  page = await mountPage(TimelineView, gateway, `/jobs/run-fake/timeline${query}`)
  return page
}
const text = ({ element }: Mounted): string => element.textContent
const summary = ({ element }: Mounted): string => element.querySelector('[role=application]')?.getAttribute('aria-label') ?? ''
const grids = (gateway: FakeGateway): string[] => gateway.asked.filter((asked) => asked.includes('timeline/grid'))

describe('the timeline', () => {
  it('says that it loads, then shows one rank', async () => {
    const shown = await open(new FakeGateway([new World({ ranks: 1, steps: 12 })]))
    expect(shown.element.querySelector('[aria-busy=true]')?.textContent).toContain('Loading')
    await shown.until(() => summary(shown))
    expect(summary(shown)).toContain('Steps 1 to 12 of 1 rank,')
    expect(summary(shown)).toContain('No rank is marked as slow.')
  })

  it('says nothing of a clock’s error that is not known', async () => {
    const world = few()
    const clock = world.clock.bind(world)
    vi.spyOn(world, 'clock').mockImplementation((rank) => ({ ...clock(rank), error_ns: rank === 3 ? 400 : -1 }))
    const shown = await open(new FakeGateway([world]))
    await shown.until(() => text(shown).includes('clocks aligned'))
    expect(text(shown)).toContain('clocks aligned to ±400 ns')
  })

  it('names the slow rank among many, and asks for no more than is shown', async () => {
    const gateway = new FakeGateway([many()])
    const shown = await open(gateway)
    await shown.until(() => summary(shown).includes('77') && grids(gateway).length > 1)
    expect(summary(shown)).toContain('Steps 1141 to 1200 of 128 ranks')
    expect(summary(shown)).toContain('Slow: rank 77.')
    const [whole, close] = grids(gateway)
    expect(whole).toContain('cells=262144')
    expect(close).toContain('from_step=1081&to_step=1200&bucket_steps=1')
  })

  it('keeps its rows where they are while steps come, so that only new cells are painted', async () => {
    const world = many()
    const gateway = new FakeGateway([world])
    const shown = await open(gateway)
    await shown.until(() => summary(shown).includes('77') && grids(gateway).length > 1)
    const laidOut = vi.mocked(layout.layoutRows)
    await shown.until(() => laidOut.mock.calls.at(-1)?.[2].length)
    let [known, quiet] = [0, 0] // what the page has asked for comes in pieces
    await shown.until(() => {
      quiet = laidOut.mock.calls.length === known ? quiet + 1 : 0
      known = laidOut.mock.calls.length
      return quiet > 20
    })
    laidOut.mockClear()
    gateway.advance(world)
    await shown.until(() => summary(shown).includes('to 1201'))
    expect(summary(shown)).toContain('Steps 1142 to 1201')
    expect(laidOut).not.toHaveBeenCalled()
  })

  it('shows the window that a link asks for, however old it is', async () => {
    const gateway = new FakeGateway([many()])
    const shown = await open(gateway, '?from=50&to=90&rank=77&step=60')
    await shown.until(() => summary(shown) && shown.element.querySelector('aside table'))
    expect(summary(shown)).toContain('Steps 50 to 90')
    expect(text(shown)).toContain('Rank 77 · step 60')
    expect(text(shown)).not.toContain('has not reported this step')
  })

  it('says so when that window is not stored any more', async () => {
    const shown = await open(new FakeGateway([new World({ ranks: 2, steps: 900, oldestStep: 500 })]), '?from=50&to=90')
    await shown.until(() => summary(shown))
    expect(text(shown)).toContain('Steps 50 to 90 are not stored: this attempt has steps 500 to 900.')
  })

  it('compares the selected rank with its peers in exact numbers', async () => {
    const shown = await open(new FakeGateway([few()]), '?rank=3&step=70')
    await shown.until(() => shown.element.querySelector('aside table'))
    const cells = [...shown.element.querySelectorAll('aside tbody tr')].map((row) => row.textContent)
    expect(cells[1]).toMatch(/Compute.*\+2\d %/)
    expect(text(shown)).toContain('Rank 3 has computed 25 % slower than its peers since step 60; each step takes 23 % longer.')
  })

  it('follows the newest step while the run goes on', async () => {
    const world = few()
    const gateway = new FakeGateway([world])
    const shown = await open(gateway)
    await shown.until(() => summary(shown))
    gateway.advance(world)
    await shown.until(() => summary(shown).includes('to 91 '))
    expect(summary(shown)).toContain('Steps 32 to 91')
  })

  it('shows no rows when no rank passes the filter, and says so', async () => {
    const shown = await open(new FakeGateway([few()]), '?q=nowhere')
    await shown.until(() => text(shown).includes('No rank matches.'))
    expect(shown.element.querySelector('[role=application]')).toBeNull()
  })

  it('tells that nothing has been reported', async () => {
    const world = new World({ ranks: 2, steps: 0 })
    const gateway = new FakeGateway([world])
    const shown = await open(gateway)
    await shown.until(() => text(shown).includes('No step has been reported yet'))
    expect(summary(shown)).toBe('')
    gateway.advance(world)
    await shown.until(() => summary(shown))
    expect(summary(shown)).toContain('Steps 1 to 1 of 2 ranks')
  })

  it('says what is wrong when the collector is away, and shows the picture when it is back', async () => {
    const gateway = new FakeGateway([few()])
    gateway.failing.set('/api/v1/jobs/run-fake/timeline', 503)
    const shown = await open(gateway)
    await shown.until(() => shown.element.querySelector('[role=alert]'))
    expect(text(shown)).toContain('made to answer 503')
    gateway.failing.clear()
    shown.element.querySelector<HTMLButtonElement>('[role=alert] button')!.click()
    await shown.until(() => summary(shown))
    expect(shown.element.querySelector('[role=alert]')).toBeNull()
  })

  it('is a table to whoever wants numbers', async () => {
    const shown = await open(new FakeGateway([few()]), '?from=60&to=61')
    await shown.until(() => summary(shown))
    const [button] = [...shown.element.querySelectorAll('button')].filter((one) => one.textContent.includes('Table'))
    button.click()
    await nextTick()
    expect(shown.element.querySelectorAll('tbody tr').length).toBeGreaterThanOrEqual(8)
  })

  it('opens the spans of the step on a page of their own', async () => {
    const shown = await open(new FakeGateway([few()]), '?rank=3&step=70&inside=70')
    await shown.until(() => shown.element.querySelector('[aria-busy=true]') === null)
    expect(text(shown)).toContain('Inside step 70')
    expect(shown.element.querySelector('[role=application]')?.getAttribute('aria-label')).toContain('ranks 0-3 in step 70')
  })
})
