// @vitest-environment happy-dom
import { afterEach, describe, expect, it } from 'vitest'
import HealthView from '@/views/HealthView.vue'
import type { Mounted } from '../support/mount'
import { mountPage } from '../support/mount'
import { gatewayOf } from '../support/pages'

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

  it('are asked for once, however many jobs there are', async () => {
    const gateway = gatewayOf(40)
    page = await mountPage(HealthView, gateway, '/health')
    await page.until(() => page!.element.querySelectorAll('.nodes .cell').length === 40 * 8)
    expect(page.element.querySelectorAll('.nodes .cell')).toHaveLength(40 * 8)
    expect(gateway.asked.filter((asked) => /ranks/.test(asked))).toEqual(['GET /api/v1/ranks'])
  })
})
