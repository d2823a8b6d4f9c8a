// @vitest-environment happy-dom
import { afterEach, describe, expect, it } from 'vitest'
import JobView from '@/views/JobView.vue'
import JobsView from '@/views/JobsView.vue'
import { FakeGateway } from '../support/gateway'
import type { Mounted } from '../support/mount'
import { mountPage } from '../support/mount'
import { World } from '../support/world'

const WHY = 'no place for 2 of 2 pods: 0/3 nodes are available'
const pending = new World({ run: 'run-p', name: 'team/pending', ranks: 2, steps: 0, state: 'pending', unheard: true, reason: 'Unschedulable', message: WHY })
const suspended = new World({ run: 'run-s', name: 'team/paused', ranks: 2, steps: 40, state: 'suspended', reason: 'SuspendedByUser', message: 'spec.suspend is true; no pod runs' })

let page: Mounted
afterEach(() => page.end())
const text = (): string => page.element.textContent.replace(/\s+/g, ' ')

describe('a job that waits', () => {
  it('is listed with the reason, is not green, and nobody is asked for its ranks', async () => {
    const gateway = new FakeGateway([pending, suspended])
    page = await mountPage(JobsView, gateway, '/jobs')
    await page.until(() => page.element.querySelectorAll('tbody tr').length === 2)
    expect([...page.element.querySelectorAll('.state')].map((one) => one.textContent.trim()).sort()).toEqual(['Pending', 'Suspended'])
    expect(text()).toContain(WHY)
    expect(page.element.querySelectorAll('.running, .fine svg')).toHaveLength(0)
    expect(gateway.asked).toEqual([])
  })

  it('that nobody has heard of shows why, and no empty curves', async () => {
    page = await mountPage(JobView, new FakeGateway([pending]), '/jobs/run-p')
    await page.until(() => text().includes(WHY))
    expect(text()).toContain('Unschedulable')
    expect(text()).toContain('None of its ranks has reported yet')
    expect(page.element.querySelectorAll('.charts, .facts, [role=alert]')).toHaveLength(0)
  })

  it('that has trained keeps its curves', async () => {
    page = await mountPage(JobView, new FakeGateway([suspended]), '/jobs/run-s')
    await page.until(() => page.element.querySelectorAll('.chart').length > 0)
    expect(text()).toContain('Suspended: spec.suspend is true')
  })

  it('goes back to running when it is resumed', async () => {
    const world = new World({ run: 'run-s', name: 'team/paused', ranks: 2, steps: 40, state: 'suspended' })
    const gateway = new FakeGateway([world])
    page = await mountPage(JobsView, gateway, '/jobs')
    await page.until(() => text().includes('Suspended'))
    world.state = 'running'
    gateway.advance(world)
    await page.until(() => page.element.querySelector('.running'))
    expect(page.element.querySelector('tbody .state')?.textContent.trim()).toBe('Running')
  })
})
