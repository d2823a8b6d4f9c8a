// @vitest-environment happy-dom
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { clock, placeOf, viewOf } from '@/lib/recordings'
import GenerateView from '@/views/GenerateView.vue'
import RecordingLink from '@/views/RecordingLink.vue'
import RecordingsView from '@/views/RecordingsView.vue'
import ScopeView from '@/views/ScopeView.vue'
import { FakeGateway } from '../support/gateway'
import type { Mounted } from '../support/mount'
import { mountPage } from '../support/mount'
import type { FakeScope } from '../support/scope'
import { FakeRecording } from '../support/scopeRecordings'
import { World } from '../support/world'

let page: Mounted | undefined
let gateway: FakeGateway
let scope: FakeScope
beforeEach(() => {
  vi.spyOn(HTMLElement.prototype, 'offsetWidth', 'get').mockReturnValue(1200)
  gateway = new FakeGateway([new World({ ranks: 2, steps: 30 })])
  scope = gateway.scope('run-fake')
})
afterEach(() => page?.end())

const Q = 'layers[1].attn.q | batch(0) | head(2)'
const text = ({ element }: Mounted): string => element.textContent
const button = ({ element }: Mounted, name: string): HTMLButtonElement => [...element.querySelectorAll('button')].find((one) => one.textContent.trim().startsWith(name) || one.getAttribute('aria-label') === name)!
const facts = ({ element }: Mounted): string => element.querySelector('.card .facts')?.textContent ?? ''

/** A recording of four steps, made on the page. */
async function record(): Promise<string> {
  const shown = (page = await mountPage(ScopeView, gateway, `/jobs/run-fake/scope?p=${encodeURIComponent(Q)}`))
  await shown.until(() => shown.element.querySelector('.cost')?.textContent)
  await shown.until(() => !button(shown, 'Record').disabled)
  button(shown, 'Record').click()
  await shown.until(() => button(shown, 'Stop'))
  for (let i = 0; i < 4; i += 1) {
    scope.advance()
    await new Promise((resolve) => setTimeout(resolve, 40))
  }
  button(shown, 'Stop').click()
  await shown.until(() => text(shown).includes('Recorded.'))
  const link = shown.element.querySelector('.record a')?.getAttribute('href') ?? ''
  shown.end()
  return link.replace('/r/', '')
}

describe('recording', () => {
  it('keeps a session, with the address that shows it', async () => {
    const id = await record()
    const [kept] = scope.recordings
    expect(kept.id).toBe(id)
    expect(kept.entry()).toMatchObject({ run: 'run-fake', snapshot: false })
    expect(kept.entry().frames).toBeGreaterThan(1)
    expect(new URLSearchParams(kept.entry().view.split('?')[1]).get('p')).toBe(Q)
  })

  it('is for operators', async () => {
    page = await mountPage(ScopeView, gateway, '/jobs/run-fake/scope', 'viewer')
    await page.until(() => text(page!).includes('viewer'))
    expect(button(page, 'Record').disabled).toBe(true)
    expect(button(page, 'Snapshot').title).toBe('Operators can change this.')
  })

  it('of one moment is a click, and a link', async () => {
    page = await mountPage(ScopeView, gateway, `/jobs/run-fake/scope?p=${encodeURIComponent(Q)}`)
    await page.until(() => page!.element.querySelector('.cost')?.textContent)
    button(page, 'Snapshot').click()
    await page.until(() => text(page!).includes('Kept; its link is copied.'))
    expect(scope.recordings[0].entry()).toMatchObject({ snapshot: true, seconds: 0, frames: 2 })
  })
})

describe('a replay', () => {
  it('shows without a model what was seen, and no control of it', async () => {
    const id = await record()
    scope.connected = false
    const shown = (page = await mountPage(ScopeView, gateway, `/jobs/run-fake/scope?recording=${id}`))
    await shown.until(() => facts(shown).includes('step 4'))
    expect(facts(shown)).toContain('step 4')
    expect(button(shown, 'Pause')).toBeUndefined()
    expect(button(shown, 'Record')).toBeUndefined()
    expect([...shown.element.querySelectorAll('nav button')].map((one) => one.textContent)).toEqual([Q])
  })

  it('goes to a moment, and begins anew there', async () => {
    const id = await record()
    const shown = (page = await mountPage(ScopeView, gateway, `/jobs/run-fake/scope?recording=${id}`))
    await shown.until(() => facts(shown).includes('step 4'))
    const slider = shown.element.querySelector<HTMLInputElement>('.replay input')!
    slider.value = '1'
    slider.dispatchEvent(new Event('change'))
    await shown.until(() => !facts(shown).includes('step 4') && facts(shown).includes('step'))
    expect(facts(shown)).toMatch(/step [0-2]/)
  })

  it('says what was recorded where something else is asked for', async () => {
    const id = await record()
    const shown = (page = await mountPage(ScopeView, gateway, `/jobs/run-fake/scope?recording=${id}&p=embed`))
    await shown.until(() => text(shown).includes('was not recorded'))
    expect(text(shown)).toContain(`it has ${Q}`)
  })

  it('that is not there says so', async () => {
    const shown = (page = await mountPage(ScopeView, gateway, '/jobs/gone/scope?recording=0123456789abcdef'))
    await shown.until(() => text(shown).includes('This recording is not there'))
    expect(shown.element.querySelector('a[href="/recordings"]')).not.toBeNull()
  })

  it('of a generation has its texts again, token by token', async () => {
    const made = (page = await mountPage(GenerateView, gateway, '/scope/generate?q=The+king'))
    await made.until(() => button(made, 'Record') && !button(made, 'Record').disabled)
    button(made, 'Record').click()
    await made.until(() => button(made, 'Stop'))
    await made.until(() => !button(made, 'Generate').disabled)
    button(made, 'Generate').click()
    await made.until(() => made.element.querySelector('.strip'))
    scope.generation.advance()
    await made.until(() => text(made).includes('1 new tokens'))
    button(made, 'Stop').click()
    await made.until(() => text(made).includes('Recorded.'))
    const before = made.element.querySelector('.strip p')!.textContent
    made.end()
    const shown = (page = await mountPage(GenerateView, gateway, `/scope/generate?recording=${scope.recordings[0].id}`))
    await shown.until(() => shown.element.querySelector('.strip')?.textContent.includes(before))
    expect(shown.element.querySelector('.strip p')!.textContent).toBe(before)
    expect(shown.element.querySelector('textarea')).toBeNull()
  })
})

describe('the list', () => {
  const open = async (role = 'operator'): Promise<Mounted> => {
    page = await mountPage(RecordingsView, gateway, '/recordings', role)
    return page
  }

  it('says what to do where there is none, while it loads, and when it fails', async () => {
    const shown = await open()
    expect(shown.element.querySelector('[aria-busy]')).not.toBeNull()
    await shown.until(() => text(shown).includes('Nothing has been recorded'))
    expect(text(shown)).toContain('Snapshot keeps one moment')
    shown.end()
    gateway.failing.set('/api/v1/scope/recordings', 503)
    const failed = await open()
    await failed.until(() => failed.element.querySelector('[role=alert]'))
    gateway.failing.clear()
    button(failed, 'Try again').click()
    await failed.until(() => text(failed).includes('Nothing has been recorded'))
  })

  it('has one, with what it is of, and deletes it when asked twice', async () => {
    const id = await record()
    const shown = await open()
    await shown.until(() => shown.element.querySelector('tbody tr'))
    expect(shown.element.querySelector('tbody a')?.getAttribute('href')).toBe(`/r/${id}`)
    expect(shown.element.querySelector('tbody')?.textContent).toContain('operator ann')
    expect(shown.element.querySelector('a[download]')?.getAttribute('href')).toBe(`/api/v1/scope/recordings/${id}/file`)
    button(shown, 'Delete team/fake').click()
    await shown.until(() => text(shown).includes('Delete?'))
    expect(gateway.deleted.size).toBe(0)
    button(shown, 'Really delete team/fake').click()
    await shown.until(() => text(shown).includes('Nothing has been recorded'))
    expect([...gateway.deleted]).toEqual([id])
  })

  it('has many, and finds among them', async () => {
    for (let i = 0; i < 12; i += 1) scope.recordings.push(new FakeRecording(String(i).padStart(16, '0'), { view: '', snapshot: false, at: i }, scope.description()))
    const shown = await open('viewer')
    await shown.until(() => shown.element.querySelectorAll('tbody tr').length === 12)
    expect(button(shown, 'Delete team/fake')).toBeUndefined()
    const search = shown.element.querySelector<HTMLInputElement>('input[type=search]')!
    search.value = 'nobody'
    search.dispatchEvent(new Event('input'))
    await shown.until(() => text(shown).includes('No recording matches.'))
  })

  it('says why a file is refused', async () => {
    gateway.bad = true
    const shown = await open()
    await shown.until(() => text(shown).includes('Nothing has been recorded'))
    const field = shown.element.querySelector<HTMLInputElement>('input[type=file]')!
    Object.defineProperty(field, 'files', { value: [new Blob(['x'])] })
    field.dispatchEvent(new Event('change'))
    await shown.until(() => shown.element.querySelector('.problem'))
    expect(shown.element.querySelector('.problem')?.textContent).toContain('made to answer 422')
  })
})

describe('a short link', () => {
  it('leads to where the recording was made', async () => {
    const id = await record()
    const shown = (page = await mountPage(RecordingLink, gateway, `/r/${id}`))
    await shown.until(() => shown.router.currentRoute.value.path !== `/r/${id}`)
    expect(shown.router.currentRoute.value.path).toBe('/jobs/run-fake/scope')
    expect(shown.router.currentRoute.value.query).toMatchObject({ p: Q, recording: id })
  })

  it('to what is gone says so', async () => {
    const shown = (page = await mountPage(RecordingLink, gateway, '/r/0123456789abcdef'))
    await shown.until(() => text(shown).includes('This recording is not there'))
  })

  it('of somebody else’s file leads to pages of this one alone', () => {
    const elsewhere = ['//evil.example/x', 'https://evil.example', 'javascript:alert(1)', '/api/v1/session', '/jobs/../api', '']
    for (const view of elsewhere) expect(placeOf({ id: 'a', run: 'r/1', view })).toMatchObject({ path: '/jobs/r%2F1/scope', query: { recording: 'a' } })
    expect(placeOf({ id: 'a', run: '', view: '/scope/generate?p=x&p=y&at=1' })).toEqual({ path: '/scope/generate', query: { p: ['x', 'y'], at: '1', recording: 'a' } })
  })

  it('is made of an address without what is the viewer’s own', () => {
    expect(viewOf('/scope/generate', '?p=a&t=3&recording=x')).toBe('/scope/generate?p=a')
    expect([clock(0), clock(83.4), clock(3725)]).toEqual(['0:00', '1:23', '1:02:05'])
  })
})
