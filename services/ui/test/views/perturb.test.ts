// @vitest-environment happy-dom
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import PerturbView from '@/views/PerturbView.vue'
import { FakeGateway } from '../support/gateway'
import type { Mounted } from '../support/mount'
import { mountPage } from '../support/mount'
import type { FakeScope } from '../support/scope'
import { World } from '../support/world'

let page: Mounted | undefined
let gateway: FakeGateway
let scope: FakeScope
beforeEach(() => {
  gateway = new FakeGateway([new World({ ranks: 2, steps: 30 })])
  scope = gateway.scope('run-fake')
})
afterEach(() => page?.end())

async function open(role = 'operator'): Promise<Mounted> {
  page = await mountPage(PerturbView, gateway, '/jobs/run-fake/perturb', role)
  await page.until(() => text(page!).includes('Live'))
  return page
}
const text = ({ element }: Mounted): string => element.textContent
const button = ({ element }: Mounted, name: string): HTMLButtonElement => [...element.querySelectorAll('button')].find((one) => one.textContent.trim() === name)!
async function type({ element, until }: Mounted, label: string, value: string): Promise<void> {
  const field = [...element.querySelectorAll('label')].find((one) => one.textContent.trim().startsWith(label))!.querySelector('input')!
  field.value = value
  field.dispatchEvent(new Event('input'))
  await until(() => true)
}

describe('perturbation', () => {
  it('is not done without a reason', async () => {
    const shown = await open()
    await shown.until(() => text(shown).includes('Say why'))
    expect(button(shown, 'Disturb the run').disabled).toBe(true)
    await type(shown, 'Reason', '   ')
    await shown.until(() => true)
    expect(button(shown, 'Disturb the run').disabled).toBe(true)
    expect(scope.commands).toEqual([])
  })

  it('suggests the weights that the ranks hold, where weights are disturbed', async () => {
    const shown = await open()
    const suggested = (): string[] => [...shown.element.querySelectorAll('datalist option')].map((one) => one.getAttribute('value') ?? '')
    expect(suggested()).toContain('mlp.out')
    button(shown, 'Noise on weights').click()
    await shown.until(() => suggested().length === 1)
    expect(suggested()).toEqual(['layers.*.mlp.linear_fc1.weight'])
  })

  it('sends the plan, says from which step it holds, who did it and why, and is cleared by one click', async () => {
    const shown = await open()
    expect(text(shown)).toContain('Nothing disturbs this run.')
    button(shown, 'Zeroed heads').click()
    await shown.until(() => text(shown).includes('layers[0].attn.context'))
    await type(shown, 'Heads', '0,2')
    await type(shown, 'Steps', '10:')
    await type(shown, 'Seed', '7')
    await type(shown, 'Reason', 'which head copies')
    await shown.until(() => !button(shown, 'Disturb the run').disabled)
    button(shown, 'Disturb the run').click()
    await shown.until(() => text(shown).includes('plan-1 is in force from step 1 on.'))
    const plan = { plan: 'plan-1', seed: '7', perturbations: [{ place: 'calculation', kind: 'zero', site: 'attn.context', layers: '0', heads: '0,2', steps: '10:' }] }
    expect(scope.commands).toMatchObject([{ reason: 'which head copies', perturb: plan }])
    await shown.until(() => button(shown, 'Clear'))
    expect(text(shown)).toContain('layers[0].attn.context · zero · heads 0,2 · steps 10:')
    expect(text(shown)).toMatch(/by operator ann, .*“which head copies”/)
    button(shown, 'Clear').click()
    await shown.until(() => text(shown).includes('Nothing disturbs this run.'))
    expect([...scope.plans]).toEqual([])
    expect(scope.commands.at(-1)).toMatchObject({ perturbClear: { plan: 'plan-1' } })
  })

  it('offers weights neither heads nor tokens, and refuses a range that is none', async () => {
    const shown = await open()
    button(shown, 'Noise on weights').click()
    await shown.until(() => text(shown).includes('Weights, by name'))
    const labels = [...shown.element.querySelectorAll('.form .fields label')].map((one) => one.firstChild!.textContent!.trim())
    expect(labels).toEqual(['Weights, by name', 'What happens', 'Deviation c', 'Layers', 'Channels', 'Steps'])
    await type(shown, 'Layers', '3-5')
    await shown.until(() => text(shown).includes('Ranges are written'))
    expect(button(shown, 'Disturb the run').disabled).toBe(true)
  })

  it('shows several plans, and clears all', async () => {
    for (const name of ['a', 'b']) scope.plans.set(name, { plan: name, perturbations: [] })
    const shown = await open()
    await shown.until(() => button(shown, 'Clear all'))
    expect(text(shown)).toContain('set before what the gateway remembers')
    button(shown, 'Clear all').click()
    await shown.until(() => scope.plans.size === 0)
    expect(scope.commands).toMatchObject([{ perturbClear: {} }])
  })

  it('says why it was refused', async () => {
    const shown = await open()
    scope.controller = 'somebody'
    await type(shown, 'Reason', 'a test')
    await shown.until(() => !button(shown, 'Disturb the run').disabled)
    button(shown, 'Disturb the run').click()
    await shown.until(() => shown.element.querySelector('.problem'))
    expect(text(shown)).toContain('Somebody else controls this run: somebody else controls this run; wait until it is released')
  })

  it('is nothing for who only looks', async () => {
    const shown = await open('viewer')
    await type(shown, 'Reason', 'a test')
    await shown.until(() => text(shown).includes('Operators can change this.'))
    expect(button(shown, 'Disturb the run').disabled).toBe(true)
  })
})
