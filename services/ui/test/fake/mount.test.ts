// @vitest-environment happy-dom
import { describe, expect, it } from 'vitest'
import HealthView from '@/views/HealthView.vue'
import { FakeGateway } from '../support/gateway'
import { mountPage } from '../support/mount'
import { World } from '../support/world'

describe('a page that a test mounts', () => {
  it('leaves no connection when it ends, whose timers would run on in other tests', async () => {
    const gateway = new FakeGateway([new World({ ranks: 2, steps: 4 })])
    const page = await mountPage(HealthView, gateway, '/health')
    expect(gateway.connectionCount).toBe(1)
    page.end()
    expect(gateway.connectionCount).toBe(0)
  })
})
