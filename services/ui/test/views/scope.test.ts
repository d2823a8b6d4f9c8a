// @vitest-environment happy-dom
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import ScopeView from '@/views/ScopeView.vue'
import { FakeGateway } from '../support/gateway'
import type { Mounted } from '../support/mount'
import { mountPage } from '../support/mount'
import type { FakeScope } from '../support/scope'
import { World } from '../support/world'

let page: Mounted | undefined
let gateway: FakeGateway
let scope: FakeScope
beforeEach(() => {
  // happy-dom lays nothing out and draws nothing.
  vi.spyOn(HTMLElement.prototype, 'offsetWidth', 'get').mockReturnValue(1200)
  gateway = new FakeGateway([new World({ ranks: 2, steps: 30 })])
  scope = gateway.scope('run-fake')
})
afterEach(() => page?.end())

async function open(query = '', role = 'operator'): Promise<Mounted> {
  page = await mountPage(ScopeView, gateway, `/jobs/run-fake/scope${query}`, role)
  return page
}
const expressions = (...all: string[]): string => `?${all.map((one) => `p=${encodeURIComponent(one)}`).join('&')}`
const text = ({ element }: Mounted): string => element.textContent
const maps = ({ element }: Mounted): string[] => [...element.querySelectorAll('[role=application]')].map((one) => one.getAttribute('aria-label') ?? '')
const button = ({ element }: Mounted, name: string): HTMLButtonElement => [...element.querySelectorAll('button')].find((one) => one.textContent.trim() === name)!
const cards = ({ element }: Mounted): Element[] => [...element.querySelectorAll('section.card')]
const Q = 'layers[1].attn.q | batch(0) | head(2)'

describe('scope of a training', () => {
  it('says how MegaScope is turned on where no rank has it, and goes on trying', async () => {
    gateway.scopes.clear()
    const shown = await open()
    await shown.until(() => text(shown).includes('Nobody can look into this run'))
    expect(text(shown)).toContain('--scope')
    expect(text(shown)).toContain('does not know this run’s model yet')
    expect(text(shown)).toContain('No model yet, trying again')
    expect(text(shown)).not.toContain('Connection lost')
    expect([...shown.element.querySelectorAll('.head button')].map((one) => one.textContent.trim())).toEqual(['Copy link'])
  })

  it.each([[true, false], [false, true]])('on a phone (%s) shows the pictures first: sites unfolded %s', async (phone, unfolded) => {
    vi.spyOn(window, 'matchMedia').mockReturnValue({ matches: phone, addEventListener: () => undefined, removeEventListener: () => undefined } as unknown as MediaQueryList)
    const shown = await open()
    await shown.until(() => cards(shown).length === 2)
    expect(shown.element.querySelector<HTMLDetailsElement>('.tree .all')!.open).toBe(unfolded)
  })

  it('says that no rank is connected', async () => {
    scope.connected = false
    const shown = await open()
    await shown.until(() => text(shown).includes('No rank is connected'))
    expect(cards(shown)).toHaveLength(0)
  })

  it('shows first a head’s attention and the stream’s statistics, and they are in the address', async () => {
    const shown = await open()
    await shown.until(() => cards(shown).length === 2)
    await shown.until(() => shown.router.currentRoute.value.query.p)
    expect(shown.router.currentRoute.value.query.p).toEqual(['layers[0].attn.probs | batch(0) | head(0)', 'layers[*].resid_post | stats(mean,std,absmax,p01,p50,p99,zero,nonfinite)'])
    expect(text(shown)).toContain('Waiting for the next step…')
  })

  it('shows what the address asks for, with its step, microbatch, layer and ranks', async () => {
    const shown = await open(expressions(Q))
    await shown.until(() => shown.element.querySelector('.cost')?.textContent)
    scope.advance()
    await shown.until(() => maps(shown).length)
    expect(maps(shown)).toEqual([`${Q}: 16 × 8 values, token down, chan across. Arrows walk, plus and minus zoom.`])
    expect(shown.element.querySelector('.facts')?.textContent).toContain('step 1microbatch 0layer 1from 2 ranks')
    expect(shown.element.querySelector('.facts')?.textContent).not.toContain('partial')
  })

  it('names rows and columns by the texts of the microbatch that is shown', async () => {
    const shown = await open(`${expressions('layers[1].attn.probs | batch(0) | head(0)')}&cell=7,1`)
    await shown.until(() => shown.element.querySelector('.cost')?.textContent)
    await shown.until(() => scope.asked.includes('tokens | batch(0)'))
    scope.advance()
    await shown.until(() => maps(shown).length)
    await shown.until(() => shown.element.querySelector('.chosen')?.textContent.startsWith('query 7 ·evil · key 1 cat:'))
  })

  it('asks for no texts where nothing has positions', async () => {
    const shown = await open(expressions('layers[*].resid_post | stats(mean)'))
    await shown.until(() => shown.element.querySelector('.cost')?.textContent)
    expect(scope.asked).toEqual(['layers[*].resid_post | stats(mean)'])
  })

  it('says where an expression is wrong and what to write, and shows the next one', async () => {
    const shown = await open(expressions('layers[1].attn.q | fold(3)'))
    await shown.until(() => shown.element.querySelector('[role=alert]'))
    expect(shown.element.querySelector('[role=alert] mark')?.textContent).toBe('fold(3)')
    expect(shown.element.querySelector('[role=alert]')?.textContent).toContain('there is no operation fold')
    const field = shown.element.querySelector<HTMLInputElement>('input.mono')!
    expect(field.getAttribute('aria-invalid')).toBe('true')
    field.value = Q
    field.dispatchEvent(new Event('input'))
    field.form!.dispatchEvent(new Event('submit', { cancelable: true }))
    await shown.until(() => !shown.element.querySelector('[role=alert]') && shown.element.querySelector('.cost')?.textContent)
    scope.advance()
    await shown.until(() => maps(shown).length)
    expect(maps(shown)[0]).toContain(Q)
  })

  it('shows how far apart the data-parallel replicas are, and offers that only where there are some', async () => {
    const views = (shown: Mounted): string[] => [...shown.element.querySelectorAll('nav .views button')].map((one) => one.textContent)
    const alone = await open()
    await alone.until(() => views(alone).length)
    expect(views(alone)).not.toContain('DP')
    alone.end()
    scope.replicas = 2
    const shown = await open(expressions('layers[*].resid_post | stats(mean,absmax) | replicas'))
    await shown.until(() => shown.element.querySelector('.cost')?.textContent)
    scope.advance()
    await shown.until(() => text(shown).includes('Farthest apart'))
    expect(views(shown)).toContain('DP')
    expect(shown.element.querySelector('.replicas [role=status]')?.textContent).toMatch(/33.*layer 1$/)
    expect(shown.element.querySelectorAll('.replicas tbody tr').length).toBeGreaterThan(1)
  })

  it('says aloud that replicas hold different weights', async () => {
    scope.replicas = 2
    const shown = await open(expressions('layers[*].weight.mlp.linear_fc1.weight | stats(l2) | replicas'))
    await shown.until(() => shown.element.querySelector('.cost')?.textContent)
    scope.advance()
    await shown.until(() => shown.element.querySelector('.replicas [role=alert]'))
    expect(shown.element.querySelector('.replicas [role=alert]')?.textContent).toContain('Replicas hold different values')
  })

  it('says what is no number, what is masked, and that shards are late', async () => {
    scope.broken = [1]
    scope.late = 3
    const shown = await open(expressions('layers[1].attn.probs | batch(0) | head(0)'))
    await shown.until(() => shown.element.querySelector('.cost')?.textContent)
    scope.advance()
    await shown.until(() => maps(shown).length)
    const card = shown.element.querySelector('section.card')!.textContent
    expect(card).toMatch(/\d NaN or infinite/)
    expect(card).toContain('120 masked')
    expect(card).toContain('partial: 3 shards late')
  })

  it('reads a value under the arrows, and the cell is in the address', async () => {
    const shown = await open(expressions(Q))
    await shown.until(() => shown.element.querySelector('.cost')?.textContent)
    scope.advance()
    await shown.until(() => maps(shown).length)
    const canvas = shown.element.querySelector('[role=application]')!
    for (const key of ['ArrowDown', 'ArrowDown', 'ArrowRight']) {
      canvas.dispatchEvent(new KeyboardEvent('keydown', { key }))
      await shown.until(() => shown.element.querySelector('.chosen'))
      await new Promise((resolve) => setTimeout(resolve))
    }
    expect(shown.element.querySelector('.chosen')?.textContent).toMatch(/^token 1 cat · chan 1: −?[\d.]+$/)
    await shown.until(() => shown.router.currentRoute.value.query.cell === '1,1')
    expect(shown.router.currentRoute.value.query.cell).toBe('1,1')
  })

  it('draws statistics of every layer, and names the first one with NaN', async () => {
    scope.broken = [2, 3]
    const shown = await open(expressions('layers[*].resid_post | stats(mean,absmax,nonfinite)'))
    await shown.until(() => shown.element.querySelector('.statistics'))
    scope.advance()
    await shown.until(() => text(shown).includes('NaN or infinite values from layer 2 on, in 2 layers'))
    expect([...shown.element.querySelectorAll('.plots [role=img]')].map((one) => one.getAttribute('aria-label'))).toEqual(['Mean over 4 layers', 'Largest magnitude over 4 layers', 'NaN or infinite over 4 layers'])
    button(shown, 'Table').click()
    await shown.until(() => shown.element.querySelectorAll('tbody tr').length)
    expect(shown.element.querySelectorAll('tbody tr')).toHaveLength(4)
  })

  it('lists the likeliest tokens with the model’s own probabilities', async () => {
    const shown = await open(expressions('logits | batch(0) | last(2) | topk(5)'))
    await shown.until(() => shown.element.querySelector('.cost')?.textContent)
    scope.advance()
    await shown.until(() => shown.element.querySelectorAll('.top li').length)
    expect(shown.element.querySelectorAll('.top li')).toHaveLength(10)
    expect(shown.element.querySelector('.top li')?.textContent).toMatch(/^\d+ [\d.]+ %$/)
  })

  it.each([
    ['layers[1].sae.mid | batch(0) | last(2) | topk(5)', 'Strongest features', 'Feature ', 'the SAE’s features'],
    ['layers[1].mlp.act | batch(0) | last(2) | topk(5)', 'Largest values', 'Entry ', 'along the last axis'],
  ])('names what a top-k is of where it is not of tokens: %s', async (expression, named, entry, note) => {
    const shown = await open(expressions(expression))
    await shown.until(() => shown.element.querySelector('.cost')?.textContent)
    scope.advance()
    await shown.until(() => shown.element.querySelectorAll('.top li').length)
    const first = shown.element.querySelector('.top li')!
    expect(shown.element.querySelector('.top')!.getAttribute('aria-label')).toBe(named)
    expect(first.getAttribute('title')).toMatch(new RegExp(`^${entry}\\d+$`))
    expect(first.textContent).toMatch(/^\d+ [\d.]+$/)
    expect(text(shown)).toContain(note)
    expect(text(shown)).not.toContain('tokenizer')
  })

  it('asks for a site of the tree in place of the active panel, and beside it with Shift', async () => {
    const shown = await open(expressions(Q))
    await shown.until(() => shown.element.querySelectorAll('.tree li').length)
    const site = [...shown.element.querySelectorAll<HTMLButtonElement>('.tree .name')].find((one) => one.textContent === 'mlp.act')!
    site.click()
    await shown.until(() => cards(shown)[0].getAttribute('aria-label')?.includes('mlp.act'))
    expect(cards(shown).map((card) => card.getAttribute('aria-label'))).toEqual(['layers[1].mlp.act | batch(0)'])
    site.dispatchEvent(new MouseEvent('click', { shiftKey: true }))
    await shown.until(() => cards(shown).length === 2)
    expect(cards(shown)).toHaveLength(2)
  })

  it('pauses, steps and resumes, and shows the lease', async () => {
    const shown = await open(expressions(Q))
    await shown.until(() => button(shown, 'Pause') && !button(shown, 'Pause').disabled)
    scope.advance()
    button(shown, 'Pause').click()
    await shown.until(() => text(shown).includes('Paused after step 1'))
    expect(text(shown)).toMatch(/held while this page is open \(\d+ s\)/)
    await shown.until(() => !button(shown, 'Step').disabled)
    button(shown, 'Step').click()
    await shown.until(() => text(shown).includes('Paused after step 2'))
    await shown.until(() => !button(shown, 'Resume').disabled)
    button(shown, 'Resume').click()
    await shown.until(() => button(shown, 'Pause'))
    expect(scope.commands.map(({ train }) => (train as { do: string }).do)).toEqual(['pause', 'step', 'resume'])
    expect(text(shown)).toContain('You control')
  })

  it('lets nobody steer who only looks, or while somebody else does', async () => {
    scope.controller = 'somebody'
    const shown = await open(expressions(Q))
    await shown.until(() => text(shown).includes('Somebody else controls'))
    expect(button(shown, 'Pause').disabled).toBe(true)
    shown.end()
    const looking = await open(expressions(Q), 'viewer')
    await looking.until(() => text(looking).includes('Live'))
    expect(button(looking, 'Pause').disabled).toBe(true)
  })

  it('tells what is conspicuous, and shows it', async () => {
    const shown = await open(expressions(Q))
    await shown.until(() => shown.element.querySelector('.cost')?.textContent)
    scope.say({ alert: { kind: 'outlier_channel', site: 'mlp.out', layer: 2, step: '5', detail: 'channels 3' } }, 1)
    await shown.until(() => text(shown).includes('Outlier channels'))
    expect(shown.element.querySelector('.feed li')?.textContent).toContain('layers[2].mlp.outstep 5 · rank 1')
    shown.element.querySelector<HTMLButtonElement>('.feed li button')!.click()
    await shown.until(() => cards(shown).length === 2)
    expect(cards(shown)[1].getAttribute('aria-label')).toBe('layers[2].mlp.out | batch(0)')
  })

  it.each([['left_out', 'some is left out: it is too large'], ['overrun', 'some is lost on the way']])('says beside the picture what is missing in it: %s', async (reason, said) => {
    const shown = await open(expressions(Q))
    await shown.until(() => shown.element.querySelector('.cost')?.textContent)
    scope.advance()
    await shown.until(() => maps(shown).length)
    scope.stall(Q, reason)
    scope.stall(Q, reason)
    await shown.until(() => text(shown).includes(said))
    expect([...shown.element.querySelectorAll('.card .facts .partial')].map((one) => one.textContent.includes(said))).toEqual([true])
    expect(maps(shown)).toHaveLength(1)
  })

  it('marks what is shown while a plan disturbs the run', async () => {
    scope.plans.set('noise', { plan: 'noise', perturbations: [] })
    const shown = await open(expressions(Q))
    await shown.until(() => text(shown).includes('Disturbed by noise'))
    scope.advance()
    await shown.until(() => shown.element.querySelector('.disturbed'))
    expect(shown.element.querySelector('.disturbed')?.textContent).toBe('disturbed')
  })

  it.each([
    ['layers[*].resid_post | stats(mean,absmax)', /^step,layer,mean,absmax\r\n1,0,[\d.]+,[\d.]+\r\n1,1,/],
    ['layers[1].resid_post | hist(8,asinh)', /^step,layer,from,to,count\r\n1,1,-10000.*,\d+\r\n/],
    ['layers[*].attn.probs | batch(0)', /^layer,head,entropy,previous,sink,induction\r\n0,0,[\d.]+,[\d.]+,[\d.]+,/],
    ['layers[0].resid_post | pca(2)', /^step,entry,position,token,component 1 \(62.0 %\),component 2 \(21.0 %\)\r\n\d+,0,0,,-?[\d.]+,-?[\d.]+\r\n/],
    ['logits | batch(0) | last(2) | topk(5)', /^step,layer,row,rank,id,value,probability\r\n1,,0,1,\d+,[\d.]+,0\.\d+\r\n/],
  ])('saves the numbers of every view as CSV: %s', async (expression, written) => {
    const saved: Blob[] = []
    vi.spyOn(URL, 'createObjectURL').mockImplementation((blob) => `blob:${saved.push(blob as Blob)}`)
    vi.spyOn(HTMLAnchorElement.prototype, 'click').mockReturnValue()
    const shown = await open(expressions(expression))
    await shown.until(() => shown.element.querySelector('.cost')?.textContent)
    expect(shown.element.querySelector('.card header button[title="Save as CSV"]')).toBeNull()
    scope.advance()
    const save = (): HTMLButtonElement | null => shown.element.querySelector('.card header button[title="Save as CSV"]')
    await shown.until(save)
    save()!.click()
    await shown.until(() => saved.length)
    expect(await saved[0].text()).toMatch(written)
  })

  it('shows all heads side by side, sorted by what they do, and compares two', async () => {
    const shown = await open(expressions('layers[*].attn.probs | batch(0)'))
    await shown.until(() => shown.element.querySelector('.cost')?.textContent)
    scope.advance()
    await shown.until(() => shown.element.querySelectorAll('.wall li').length)
    expect(shown.element.querySelectorAll('.wall li')).toHaveLength(16)
    const by = shown.element.querySelector<HTMLSelectElement>('.wall select')!
    expect([...by.options].find(({ value }) => value === 'induction')?.disabled).toBe(false)
    by.value = 'sink'
    by.dispatchEvent(new Event('change'))
    await shown.until(() => text(shown).includes('Mean share that goes to the first token.'))
    const tiles = [...shown.element.querySelectorAll<HTMLButtonElement>('.wall li button')]
    tiles[0].click()
    tiles[1].click()
    await shown.until(() => shown.element.querySelector('[aria-label="Two heads"]'))
    expect(shown.element.querySelectorAll('[aria-label="Two heads"] figure')).toHaveLength(2)
  })
})
