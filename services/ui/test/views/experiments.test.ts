// @vitest-environment happy-dom
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import GenerateView from '@/views/GenerateView.vue'
import { FakeGateway } from '../support/gateway'
import type { Mounted } from '../support/mount'
import { mountPage } from '../support/mount'
import { World } from '../support/world'

let page: Mounted | undefined
let gateway: FakeGateway
beforeEach(() => {
  gateway = new FakeGateway([new World({ ranks: 2, steps: 30 })])
  gateway.scope('run-fake')
})
afterEach(() => page?.end())

const part = (): HTMLElement => page!.element.querySelector<HTMLElement>('.experiment')!
const go = (): HTMLButtonElement => [...part().querySelectorAll('button')].find((one) => one.textContent.trim() === 'Run the experiment')!
function fill(label: string, value: string): void {
  const field = [...part().querySelectorAll('label')].find((one) => one.textContent.trim().startsWith(label))!.querySelector<HTMLInputElement>('input, select')!
  field.value = value
  field.dispatchEvent(new Event(field.tagName === 'SELECT' ? 'change' : 'input'))
}
async function open(kind: string, role = 'operator'): Promise<void> {
  page = await mountPage(GenerateView, gateway, '/scope/generate?q=The+king+is', role)
  await page.until(() => page!.element.textContent.includes('viewer'))
  fill('Kind', kind)
}
async function run(): Promise<void> {
  await page!.until(() => !go().disabled)
  go().click()
  await page!.until(() => part().querySelector('.result'))
}
const line = (row: number): (string | null)[] => [...part().querySelectorAll('.grid table:last-of-type tbody tr')[row].querySelectorAll('td')].map((one) => one.textContent)

describe('experiments', () => {
  it('tell how little each token of the prompt above is expected', async () => {
    await open('surprisal')
    await run()
    expect(line(0)).toEqual(['–', '7.25', '0.500'])
    expect([...part().querySelectorAll('thead th')].map((one) => one.textContent)).toEqual(['Token', 'The', ' king', ' is'])
  })

  it('trace causes, and mark the cell that brings the answer back', async () => {
    await open('trace')
    expect(go().disabled).toBe(true)
    fill('Corrupted prompt', 'The queen is')
    fill('Answer', ' he')
    await run()
    expect(part().querySelector('td.marked')?.textContent).toBe('1.00')
  })

  it('are saved as CSV, with the tokens of their columns', async () => {
    const saved: Blob[] = []
    vi.spyOn(URL, 'createObjectURL').mockImplementation((blob) => `blob:${saved.push(blob as Blob)}`)
    vi.spyOn(HTMLAnchorElement.prototype, 'click').mockReturnValue()
    await open('surprisal')
    await run()
    part().querySelector<HTMLButtonElement>('caption button')!.click()
    expect(await saved[0].text()).toBe('Token,The, king, is\r\nnats,,7.25,0.5\r\n')
  })

  it('compare without and with a change, and name the first layer that differs', async () => {
    await open('compare')
    fill('Layers', '2')
    expect(part().textContent).toContain('Say why')
    fill('Reason', 'which layer')
    await run()
    expect(part().querySelector('dl')?.textContent).toMatch(/First divergent tokenposition 4First layer that differs.*2/)
  })

  it('take values of another prompt', async () => {
    await open('compare')
    fill('Change', 'patch')
    fill('Reason', 'what it holds')
    await page!.until(() => part().textContent.includes('whose values are taken'))
    fill('Source prompt', 'The queen is')
    fill('Its tokens', '1')
    fill('Layers', '2')
    await run()
    expect(gateway.experiments.at(-1)).toMatchObject({ source: 'The queen is', baseline: null, interventions: [{ kind: 'patch', layers: '2', source_tokens: '1' }] })
  })

  it('sweep strengths and seeds', async () => {
    await open('sweep')
    fill('Coefficients', '0.5 1')
    fill('Reason', 'how far')
    await run()
    expect([...part().querySelectorAll('.result tbody tr')].map((one) => one.textContent)).toEqual(['0.50.75000.50000.5000 · 1.000', '11.5000.50001.000 · 2.000'])
  })

  it('attribute the answer’s logit to heads and MLPs', async () => {
    await open('attribution')
    fill('Answer', ' he')
    await run()
    expect(line(3)).toEqual(['3.00', '−3.00', '0', '12.0'])
    expect(part().querySelector('td.marked')?.textContent).toBe('12.0')
  })

  it('attribute the answer’s probability to the tokens of the prompt', async () => {
    await open('gradients')
    fill('Answer', ' he')
    await run()
    expect(line(0)).toEqual(['0.250', '−4.00', '0.500'])
    expect(part().querySelector('td.marked')?.textContent).toBe('−4.00')
  })

  it('are not for a viewer', async () => {
    await open('surprisal', 'viewer')
    expect(part().textContent).toContain('Operators can change this')
    expect(go().disabled).toBe(true)
  })

  it('say what the model refuses', async () => {
    gateway.failing.set('/api/v1/scope/runs', 503)
    await open('surprisal')
    await page!.until(() => !go().disabled)
    go().click()
    await page!.until(() => part().querySelector('[role=alert]'))
    expect(part().querySelector('[role=alert]')?.textContent).not.toBe('')
  })
})
