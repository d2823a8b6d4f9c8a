// @vitest-environment happy-dom
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { router } from '@/router'
import type { FakeGateway } from '../support/gateway'
import type { Mounted } from '../support/mount'
import { mountPage } from '../support/mount'
import { gatewayOf, VIEWS } from '../support/pages'
import { FakeRecording } from '../support/scopeRecordings'
import { World } from '../support/world'

let page: Mounted | undefined
const problems: unknown[] = []
beforeEach(() => {
  // happy-dom lays nothing out and draws nothing.
  vi.spyOn(HTMLElement.prototype, 'offsetWidth', 'get').mockReturnValue(1200)
  problems.length = 0
  vi.spyOn(console, 'error').mockImplementation((...said) => void problems.push(said))
  vi.spyOn(console, 'warn').mockImplementation((...said) => void (String(said[0]).includes('[Vue Router') || problems.push(said)))
})
afterEach(() => {
  page?.end()
  expect(problems).toEqual([])
})

/** Of each view: what it says or has where there is nothing, while it waits, when it fails, of one and of many. */
interface States {
  readonly empty: string
  readonly loading: string
  readonly error: string
  readonly one: string
  readonly many: string
}
type Gateway = keyof States

const NOT_FOUND = 'text:Page not found'
const NO_TICKET = 'text:no ticket: HTTP 503'
const TABLE: Readonly<Record<string, States>> = {
  // It asks nothing by itself: the events bring what it shows.
  jobs: { empty: 'text:No job has reported yet', loading: 'busy', error: 'rows tbody tr:1', one: 'rows tbody tr:1', many: 'rows tbody tr:40' },
  job: { empty: 'text:There is no job run-0', loading: 'busy', error: 'alert', one: 'rows .chart:7', many: 'rows .chart:7' },
  timeline: { empty: 'text:There is no job run-0', loading: 'busy', error: 'alert', one: 'rows [role=application]:1', many: 'rows [role=application]:1' },
  scope: { empty: 'text:Nobody can look into this run', loading: 'busy', error: NO_TICKET, one: 'rows section.card:2', many: 'rows section.card:2' },
  perturb: { empty: 'text:does not know this run’s model yet', loading: 'text:Connecting to the model', error: NO_TICKET, one: 'text:Live1 viewer', many: 'text:Live1 viewer' },
  generate: { empty: 'text:No run is listed whose model could generate', loading: 'text:Connecting to the model', error: NO_TICKET, one: 'rows select option[value^=run]:1', many: 'rows select option[value^=run]:40' },
  recordings: { empty: 'text:Nothing has been recorded', loading: 'busy', error: 'alert', one: 'rows tbody tr:1', many: 'rows tbody tr:40' },
  recording: { empty: 'text:This recording is not there', loading: 'busy', error: 'alert', one: 'text:This recording is not there', many: 'text:This recording is not there' },
  health: { empty: 'text:Nothing found', loading: 'busy', error: 'alert', one: 'rows .lists a:1', many: 'rows .lists a:20' },
  report: { empty: 'text:Nothing happened', loading: 'busy', error: 'alert', one: 'text:Incidents1', many: 'text:Incidents40' },
  'not-found': { empty: NOT_FOUND, loading: NOT_FOUND, error: NOT_FOUND, one: NOT_FOUND, many: NOT_FOUND },
}

function gatewayIn(state: Gateway): FakeGateway {
  const count = { empty: 0, loading: 1, error: 1, one: 1, many: 40 }[state]
  const gateway = gatewayOf(count)
  if (state === 'one' || state === 'many') {
    gateway.incidents = count
    const scope = gateway.scopes.get('run-0')
    for (let i = 0; i < count; i += 1) scope?.recordings.push(new FakeRecording(String(i).padStart(16, '0'), { view: '', snapshot: false, at: i }, scope.description()))
  }
  if (state === 'loading') gateway.condition = 'silent'
  if (state === 'error') gateway.failing.set('/api/v1/', 503)
  return gateway
}

function holds(element: HTMLElement, expected: string): boolean {
  const text = element.textContent.replace(/\s+/g, ' ')
  if (expected === 'busy') return element.querySelector('[aria-busy=true]') !== null
  if (expected === 'alert') return [...element.querySelectorAll('[role=alert]')].some((one) => one.textContent.includes('made to answer 503'))
  if (expected.startsWith('text:')) return text.includes(expected.slice('text:'.length))
  const [, selector, count] = /^rows (.+):(\d+)$/.exec(expected) ?? []
  return element.querySelectorAll(selector).length === Number(count)
}

it('every view is in the table', () => {
  const names = router.getRoutes().flatMap(({ name }) => (name ? [String(name)] : []))
  expect(Object.keys(VIEWS).sort()).toEqual(names.sort())
  expect(Object.keys(TABLE).sort()).toEqual(names.sort())
})

describe.each(Object.keys(TABLE))('%s', (name) => {
  it.each(['empty', 'loading', 'error', 'one', 'many'] as const)('%s', async (state) => {
    const expected = TABLE[name][state]
    page = await mountPage(VIEWS[name].view, gatewayIn(state), VIEWS[name].at)
    await page.until(() => holds(page!.element, expected))
    expect(holds(page.element, expected), `${expected} in: ${page.element.textContent.replace(/\s+/g, ' ').slice(0, 500)}`).toBe(true)
    expect(page.element.querySelectorAll('h1')).toHaveLength(1)
    if (state === 'loading') expect(page.element.textContent).not.toMatch(/No job is running|Nothing found|No job has reported/)
  })
})

describe('with a job that nobody has heard of', () => {
  it('the timeline says what it waits for, which is no failure', async () => {
    const gateway = gatewayOf(0)
    page = await mountPage(VIEWS.timeline.view, gateway, VIEWS.timeline.at)
    await page.until(() => page!.element.textContent.includes('There is no job'))
    gateway.say({ type: 'job', job: new World({ run: 'run-0', ranks: 2, steps: 0, state: 'pending', unheard: true, message: 'no place for it' }).job(1) })
    await page.until(() => page!.element.textContent.includes('no place for it'))
    expect(page.element.textContent).toContain('no place for it')
    expect(page.element.querySelectorAll('[role=alert]')).toHaveLength(0)
  })
})
