// @vitest-environment happy-dom
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import GenerateView from '@/views/GenerateView.vue'
import { FakeGateway } from '../support/gateway'
import type { Mounted } from '../support/mount'
import { mountPage } from '../support/mount'
import type { FakeScope } from '../support/scope'
import { World } from '../support/world'
import measured from '../../../../tests/data/scope/first_look.json'

let page: Mounted | undefined
let gateway: FakeGateway
let scope: FakeScope
beforeEach(() => {
  gateway = new FakeGateway([new World({ ranks: 2, steps: 30 })])
  scope = gateway.scope('run-fake')
})
afterEach(() => page?.end())

async function open(query = '', role = 'operator'): Promise<Mounted> {
  page = await mountPage(GenerateView, gateway, `/scope/generate${query}`, role)
  await page.until(() => text(page!).includes('viewer'))
  return page
}
const text = ({ element }: Mounted): string => element.textContent
const button = ({ element }: Mounted, name: string): HTMLButtonElement => [...element.querySelectorAll('button')].find((one) => one.textContent.trim() === name)!
const strips = ({ element }: Mounted): string[] => [...element.querySelectorAll('.strip p')].map((one) => one.textContent)
async function ask(shown: Mounted, prompts: string): Promise<void> {
  const field = shown.element.querySelector('textarea')!
  field.value = prompts
  field.dispatchEvent(new Event('input'))
  await shown.until(() => !button(shown, 'Generate').disabled)
  button(shown, 'Generate').click()
  await shown.until(() => strips(shown).length)
}

describe('generation', () => {
  it('asks for a prompt first, and says when a model cannot generate', async () => {
    const shown = await open()
    expect(button(shown, 'Generate').disabled).toBe(true)
    shown.end()
    scope.roles = ['train']
    const training = await open()
    await training.until(() => text(training).includes('cannot generate'))
    expect(text(training)).toContain('mode: serve')
  })

  it('shows prompts side by side, growing token by token', async () => {
    const shown = await open()
    await ask(shown, 'The king\nA river')
    expect(strips(shown)).toEqual(['The king', 'A river'])
    expect(scope.generation.requests).toMatchObject([{ prompts: ['The king', 'A river'], max_new_tokens: 32, top_candidates: 10, sampling: { temperature: 0.8 } }])
    scope.generation.advance()
    scope.generation.advance()
    await shown.until(() => text(shown).includes('4 new tokens'))
    expect(strips(shown)[0]).toMatch(/^The king.+/)
    expect(text(shown)).toContain('Generating')
  })

  it('shows the drawn token’s probability and what else could have stood there', async () => {
    const shown = await open()
    await ask(shown, 'The king')
    scope.generation.advance()
    await shown.until(() => shown.element.querySelectorAll('.side li').length)
    expect(shown.element.querySelectorAll('.side li')).toHaveLength(10)
    expect(shown.element.querySelectorAll('.side li.drawn')).toHaveLength(1)
    expect(shown.element.querySelector('.side dl')?.textContent).toContain('Probability64 %')
    shown.element.querySelectorAll<HTMLButtonElement>('.strip p button')[0].click()
    await shown.until(() => text(shown).includes('Candidates were not asked for'))
    expect(shown.element.querySelector('.side')?.textContent).toContain('of the prompt')
  })

  it('keeps heatmaps in step with the text, and chooses rows and tokens together', async () => {
    const shown = await open(`?p=${encodeURIComponent('layers[0].resid_post')}`)
    await ask(shown, 'The king\nA river')
    await shown.until(() => shown.element.querySelector('.card .facts')?.textContent.includes('position'))
    for (let i = 0; i < 3; i += 1) scope.generation.advance()
    await shown.until(() => shown.element.querySelector('.card .facts')?.textContent.includes('position 4'))
    const second = shown.element.querySelectorAll<HTMLElement>('.strip')[1]
    second.querySelectorAll('button')[1].click()
    await shown.until(() => /^token 1 river · chan 1: −?[\d.]+$/.test(shown.element.querySelector('.card footer .chosen')?.textContent ?? ''))
    expect(shown.element.querySelector('.card footer .chosen')?.textContent).toMatch(/^token 1 river · chan 1: −?[\d.]+$/)
    expect(shown.element.querySelector('[role=application]')?.getAttribute('aria-label')).toContain('5 × 32 values')
    // Nothing is asked for anew: all prompts' rows are there.
    expect([shown.router.currentRoute.value.query.p].flat()).toEqual(['layers[0].resid_post'])
  })

  it('names the points of principal components by prompt and token, and a click chooses it', async () => {
    const shown = await open(`?p=${encodeURIComponent('layers[0].resid_post | pca(2)')}`)
    await ask(shown, 'The king\nA river')
    for (let i = 0; i < 2; i += 1) scope.generation.advance()
    await shown.until(() => shown.element.querySelector('.scatter canvas'))
    const canvas = shown.element.querySelector('.scatter canvas')!
    const press = (key: string): boolean => canvas.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))
    press('ArrowRight')
    press('ArrowRight')
    await shown.until(() => shown.element.querySelector('.scatter p')?.textContent.startsWith('prompt 1, position 1 · ␣king · '))
    press('Enter')
    await shown.until(() => shown.element.querySelector('.side h2')?.textContent.includes('king'))
    expect(shown.element.querySelector('.side dl')?.textContent).toContain('prompt 1, position 1')
    expect([...shown.element.querySelectorAll('.card header button')].map((one) => one.getAttribute('title'))).toContain('Save as PNG')
  })

  it('saves a heatmap as CSV with the tokens of its rows', async () => {
    const saved: Blob[] = []
    vi.spyOn(URL, 'createObjectURL').mockImplementation((blob) => `blob:${saved.push(blob as Blob)}`)
    vi.spyOn(HTMLAnchorElement.prototype, 'click').mockReturnValue()
    const shown = await open(`?p=${encodeURIComponent('layers[0].resid_post')}`)
    await ask(shown, 'The king\nA river')
    scope.generation.advance()
    await shown.until(() => shown.element.querySelector('.card .facts')?.textContent.includes('position 2'))
    shown.element.querySelector<HTMLButtonElement>('.card header button[title="Save as CSV"]')!.click()
    await shown.until(() => saved.length)
    const lines = (await saved[0].text()).split('\r\n')
    expect(lines[0]).toMatch(/^token \\ chan,0,1,/)
    expect(lines.slice(1, 3).map((one) => one.split(',')[0])).toEqual(['0 The', '1  king'])
  })

  it('looks first at what its cost is measured with', async () => {
    const shown = await open()
    await ask(shown, 'one\ntwo\nthree\nfour')
    await shown.until(() => scope.subscribed.length === 3)
    const { id: request } = scope.generation.requests[0] as { id: string }
    expect(scope.subscribed.every((one) => one.request === request)).toBe(true)
    expect(scope.subscribed.map(({ expression, width, height, maxFps, credits }) => ({ expression, width, height, maxFps, credits }))).toEqual(measured)
  })

  it('pauses, steps and cancels', async () => {
    const shown = await open()
    await ask(shown, 'The king')
    button(shown, 'Pause').click()
    await shown.until(() => text(shown).includes('Paused'))
    button(shown, 'Step').click()
    await shown.until(() => text(shown).includes('1 new tokens'))
    button(shown, 'Cancel').click()
    await shown.until(() => text(shown).includes('Cancelled'))
    expect(scope.generation.controls.map(({ action }) => action)).toEqual(['pause', 'step', 'cancel'])
    expect(button(shown, 'Generate')).toBeDefined()
  })

  it('hears nothing of what others generate', async () => {
    const shown = await open()
    await ask(shown, 'The king')
    scope.say({ generation: { request: 'another', event: JSON.stringify({ type: 'started', request: 'another', rows: [[], [], []] }) } })
    scope.generation.advance()
    await shown.until(() => text(shown).includes('1 new token'))
    expect(strips(shown)).toHaveLength(1)
    expect(strips(shown)[0]).toMatch(/^The king/)
  })

  it('takes prompts and settings from the address, and writes them there', async () => {
    const shown = await open('?q=The+king%0AA+river&temperature=0&beam=2&bos=1&stop=.%2C%5Cn')
    expect(shown.element.querySelector('textarea')?.value).toBe('The king\nA river')
    await shown.until(() => !button(shown, 'Generate').disabled)
    button(shown, 'Generate').click()
    await shown.until(() => scope.generation.requests.length)
    expect(scope.generation.requests).toMatchObject([{ prompts: ['The king', 'A river'], beam_width: 2, add_bos: true, stop_words: ['.', '\n'], sampling: { temperature: 0 } }])
    const field = shown.element.querySelector('textarea')!
    field.value = 'Once'
    field.dispatchEvent(new Event('input'))
    await shown.until(() => shown.router.currentRoute.value.query.q === 'Once')
    expect(shown.router.currentRoute.value.query).toMatchObject({ temperature: '0', beam: '2', stop: '., \\n' })
  })

  it('shows the beams of a search, the best first', async () => {
    const shown = await open('?q=The+king&beam=3')
    await shown.until(() => !button(shown, 'Generate').disabled)
    button(shown, 'Generate').click()
    await shown.until(() => strips(shown).length)
    scope.generation.advance()
    await shown.until(() => shown.element.querySelectorAll('[aria-label=Beams] li').length)
    expect([...shown.element.querySelectorAll('[aria-label=Beams] li')].map((one) => one.querySelector('.score')?.textContent)).toEqual(['-1.00', '-2.00', '-3.00'])
  })

  it('goes on from a token with another one, and keeps what it leaves', async () => {
    const shown = await open()
    await ask(shown, 'The king')
    scope.generation.advance()
    await shown.until(() => text(shown).includes('1 new tokens'))
    button(shown, 'Cancel').click()
    await shown.until(() => text(shown).includes('Cancelled'))
    const before = strips(shown)[0]
    const rival = [...shown.element.querySelectorAll<HTMLButtonElement>('.side li button')][1]
    expect(rival.getAttribute('aria-label')).toMatch(/^Go on with .+ here$/)
    rival.click()
    await shown.until(() => scope.generation.requests.length === 2)
    const prompts = scope.generation.requests[1].prompts as number[][]
    expect(prompts[0]).toHaveLength(3)
    await shown.until(() => shown.element.querySelector('.earlier button'))
    scope.generation.advance()
    button(shown, 'Cancel').click()
    await shown.until(() => text(shown).includes('Cancelled'))
    shown.element.querySelector<HTMLButtonElement>('.earlier button')!.click()
    await shown.until(() => strips(shown)[0] === before)
    expect(strips(shown)[0]).toBe(before)
  })

  it('re-weighs candidates as they would be drawn', async () => {
    const shown = await open('?temperature=0')
    await ask(shown, 'The king')
    scope.generation.advance()
    await shown.until(() => shown.element.querySelectorAll('.side li').length === 10)
    shown.element.querySelector<HTMLInputElement>('.side .switch input')!.click()
    await shown.until(() => shown.element.querySelectorAll('.side li.out').length)
    expect(shown.element.querySelectorAll('.side li.out')).toHaveLength(9)
    expect(shown.element.querySelector('.side li')?.textContent).toContain('100 %')
  })
})
