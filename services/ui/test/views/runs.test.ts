// @vitest-environment happy-dom
import { afterEach, describe, expect, it } from 'vitest'
import HealthView from '@/views/HealthView.vue'
import JobView from '@/views/JobView.vue'
import JobsView from '@/views/JobsView.vue'
import { FakeGateway } from '../support/gateway'
import type { Mounted } from '../support/mount'
import { mountPage } from '../support/mount'
import { World } from '../support/world'

const SLOW = [{ ranks: [3], since: 600, effect: 1.25 }]
let page: Mounted
afterEach(() => page.end())

const gatewayOf = (...worlds: World[]): FakeGateway => new FakeGateway(worlds)
const text = (): string => page.element.textContent.replace(/\s+/g, ' ')
const button = (name: string): HTMLButtonElement => {
  const found = [...page.element.querySelectorAll('button')].find((one) => one.textContent.trim() === name)
  if (!found) throw new Error(`no button ${name}`)
  return found
}

describe('a run page', () => {
  it('shows the curves that are known, where the time went and the recipe', async () => {
    page = await mountPage(JobView, gatewayOf(new World({ run: 'run-1', ranks: 8, steps: 900, pipeline: 2, faults: SLOW })), '/jobs/run-1')
    await page.until(() => page.element.querySelectorAll('.chart').length > 0 && text().includes('Where the time went') && text().includes('num-layers'))
    const titles = [...page.element.querySelectorAll('.chart h2')].map((one) => one.textContent)
    expect(titles).toEqual(['Loss', 'Step time', 'Tokens per second', 'TFLOP/s per GPU', 'Gradient norm', 'Learning rate', 'Bubble (share of the step)', 'Device memory (peak of the fullest rank)'])
    expect(text()).toMatch(/Compute\s?72 %/)
    expect(text()).toContain('Lost to findings: Rank 3: slow GPU')
  })

  it('compares runs, and says what their recipes differ in', async () => {
    const gateway = gatewayOf(new World({ run: 'run-1', ranks: 8, steps: 900 }), new World({ run: 'run-2', ranks: 8, steps: 700, settings: { lr: '0.1' } }))
    page = await mountPage(JobView, gateway, '/jobs/run-1?with=run-2&smooth=0.6&log=1&axis=time')
    await page.until(() => text().includes('what differs') && text().includes('0.0003'))
    expect(page.element.querySelectorAll('.key li')).toHaveLength(2)
    expect(gateway.asked.filter((one) => one.startsWith('GET /api/v1/history?')).at(0)).toContain('run=run-1&run=run-2&by=time')
    expect(text()).toContain('5 other settings and versions are equal.')
  })

  it.each([
    [null, ''],
    ['full', 'Attachedfull'],
    ['steps', 'Attachedsteps and collectives'],
    ['collectives', 'Attachedcollectives alone'],
  ] as const)('says how much of an attached program is seen: %s', async (attached, expected) => {
    const world = new World({ run: 'run-1', ranks: 2, steps: 20 })
    world.attached = attached
    page = await mountPage(JobView, gatewayOf(world), '/jobs/run-1')
    await page.until(() => text().includes('Ranks connected'))
    expect(text().includes('Attached')).toBe(attached !== null)
    expect(text()).toContain(expected)
  })

  it('opens a run that is no longer listed', async () => {
    const gateway = gatewayOf(new World({ run: 'run-old', ranks: 8, steps: 900, faults: SLOW, state: 'finished' }))
    gateway.unlisted.add('run-old')
    page = await mountPage(JobView, gateway, '/jobs/run-old')
    await page.until(() => page.element.querySelectorAll('.chart').length > 0)
    expect(text()).toContain('no longer listed')
    expect(text()).toContain('Rank 3: slow GPU')
  })

  it('says that there is no such run, and what failed', async () => {
    page = await mountPage(JobView, gatewayOf(), '/jobs/nobody')
    await page.until(() => text().includes('There is no job nobody'))
    expect(text()).toContain('There is no job nobody')
    page.end()

    const gateway = gatewayOf(new World({ run: 'run-1', ranks: 2, steps: 20 }))
    gateway.failing.set('/api/v1/history', 503)
    page = await mountPage(JobView, gateway, '/jobs/run-1')
    await page.until(() => page.element.querySelector('.charts [role=alert]'))
    expect(page.element.querySelector('.charts [role=alert]')?.textContent).toContain('made to answer 503')
  })

  it('has no curves before the first step', async () => {
    page = await mountPage(JobView, gatewayOf(new World({ run: 'run-1', ranks: 2, steps: 0 })), '/jobs/run-1')
    await page.until(() => text().includes('No step has ended yet'))
    expect(text()).toContain('No step has ended yet')
  })
})

describe('a finding', () => {
  const world = new World({ run: 'run-1', ranks: 8, steps: 900, faults: SLOW })
  const id = 'run-1-finding-0'

  it('that only the store still has is shown', async () => {
    const gateway = gatewayOf(world)
    gateway.archived.push({ ...world.findings(1)[0], id: 'old', ranks: [5], state: 'resolved', resolved_step: 700 })
    page = await mountPage(HealthView, gateway, '/health?finding=old')
    await page.until(() => page.element.querySelector('article h2')?.textContent === 'Rank 5: slow GPU')
    expect(page.element.querySelector('article h2')?.textContent).toBe('Rank 5: slow GPU')
  })

  it('that nobody knows says so, and no other is shown in its place', async () => {
    page = await mountPage(HealthView, gatewayOf(world), '/health?finding=nope')
    await page.until(() => text().includes('The finding nope is not known'))
    expect(text()).toContain('kept for 30 days')
    expect(page.element.querySelector('article')).toBeNull()
  })

  it('tells what else was found of its device, its rank and its node, each once', async () => {
    const gateway = gatewayOf(world)
    const [now] = world.findings(1)
    gateway.archived.push({ ...now, id: 'same-device', run: 'run-0', ranks: [6] }, { ...now, id: 'same-node', run: 'run-0', ranks: [1], gpu_uuid: 'GPU-other' })
    page = await mountPage(HealthView, gateway, `/health?finding=${id}`)
    await page.until(() => page.element.querySelectorAll('.past li').length === 2)
    expect([...page.element.querySelectorAll('.past h4')].map((one) => one.textContent)).toEqual(['of this device', 'on node-0'])
    expect([...page.element.querySelectorAll('.past li')].map((one) => one.textContent.match(/Rank \d/)?.[0])).toEqual(['Rank 6', 'Rank 1'])
  })

  it('is acknowledged and commented, and what fails is said', async () => {
    const gateway = gatewayOf(world)
    page = await mountPage(HealthView, gateway, `/health?finding=${id}`)
    await page.until(() => page.element.querySelector('.handling textarea'))
    button('Acknowledge').click()
    await page.until(() => text().includes('Acknowledged by ann'))
    expect(gateway.annotations.map(({ kind }) => kind)).toEqual(['acknowledge'])
    expect(page.element.querySelectorAll('.handling li')).toHaveLength(1)

    gateway.failing.set(`/api/v1/findings/${id}/annotations`, 503)
    const field = page.element.querySelector<HTMLTextAreaElement>('.handling textarea')
    if (!field) throw new Error('no field')
    field.value = 'a cable'
    field.dispatchEvent(new Event('input'))
    await page.until(() => !button('Comment').disabled)
    button('Comment').click()
    await page.until(() => page.element.querySelector('.handling [role=alert]'))
    expect(page.element.querySelector('.handling [role=alert]')?.textContent).toContain('Not saved.')
    expect(field.value).toBe('a cable')
  })

  it('that somebody else acknowledges is so on this page too', async () => {
    const gateway = gatewayOf(world)
    page = await mountPage(HealthView, gateway, `/health?finding=${id}`)
    await page.until(() => text().includes('Nobody has acknowledged'))
    gateway.say({ type: 'annotation', annotation: { id: 'x', finding: id, kind: 'acknowledge', by: 'bob', unix_ns: 1e18, text: '', until_unix_ns: 0, silence: '' } })
    await page.until(() => text().includes('Acknowledged by bob'))
    expect(text()).toContain('Acknowledged by bob')
  })
})

describe('the list of jobs', () => {
  const many = Array.from({ length: 1000 }, (_, i) => new World({ run: `run-${i}`, name: `team/job-${i}`, ranks: 2, steps: 30, state: i % 10 ? 'running' : 'failed' }))

  it('shows a thousand jobs by pages, with one request for none of them', async () => {
    const gateway = gatewayOf(...many)
    page = await mountPage(JobsView, gateway, '/jobs')
    await page.until(() => page.element.querySelectorAll('tbody tr').length === 50)
    expect(text()).toContain('1 to 50 of 1000')
    expect(gateway.asked).toEqual([])
  })

  it('keeps filter, order and page in the address', async () => {
    page = await mountPage(JobsView, gatewayOf(...many), '/jobs?state=failed&sort=-name&page=2')
    await page.until(() => page.element.querySelectorAll('tbody tr').length > 0)
    expect(text()).toContain('51 to 100 of 100')
    expect(page.element.querySelector('th[aria-sort=descending]')?.textContent).toContain('Job')
  })

  it('says that none matches', async () => {
    page = await mountPage(JobsView, gatewayOf(many[0]), '/jobs?search=nothing')
    await page.until(() => text().includes('No job matches'))
    expect(text()).toContain('No job matches')
  })
})
