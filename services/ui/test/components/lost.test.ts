// @vitest-environment happy-dom
import { createPinia } from 'pinia'
import { beforeEach, describe, expect, it } from 'vitest'
import type { Component } from 'vue'
import { createApp, nextTick, shallowRef } from 'vue'
import type { Live } from '@/api/live'
import { LIVE } from '@/api/live'
import type { Job } from '@/api/types'
import LostNote from '@/components/shell/LostNote.vue'
import StateMark from '@/components/StateMark.vue'

const lostSince = shallowRef<number | null>(null)
const collectorLostSince = shallowRef<number | null>(null)
const quiet = shallowRef<number | null>(null)
beforeEach(() => (lostSince.value = collectorLostSince.value = quiet.value = null))
const live = { lostSince, collectorLostSince, quietFor: ({ state }: Job) => (state === 'finished' ? null : quiet.value) } as unknown as Live

function shown(component: Component, props = {}): HTMLElement {
  const place = document.createElement('div')
  createApp(component, props).use(createPinia()).provide(LIVE, live).mount(place)
  return place
}

describe('without the platform', () => {
  it('the page says since when', async () => {
    const place = shown(LostNote)
    expect(place.textContent.trim()).toBe('')
    lostSince.value = new Date(2026, 10, 23, 14, 3, 5).getTime()
    await nextTick()
    expect(place.querySelector('[role=alert]')?.textContent).toContain('not been heard since 14:03:05')
  })

  it('no job stays green', async () => {
    const running = shown(StateMark, { job: { state: 'running' } })
    const finished = shown(StateMark, { job: { state: 'finished' } })
    expect(running.querySelector('.running')).not.toBeNull()
    lostSince.value = 1
    quiet.value = 9
    await nextTick()
    expect(running.querySelector('.running')).toBeNull()
    expect(running.textContent.trim()).toBe('Was: Running')
    expect(finished.textContent.trim()).toBe('Finished')
  })
})

describe('while something does not answer', () => {
  it('the page names the trace-collector', async () => {
    const place = shown(LostNote)
    collectorLostSince.value = new Date(2026, 10, 23, 14, 3, 5).getTime()
    await nextTick()
    expect(place.querySelector('[role=alert]')?.textContent).toContain('trace-collector has not answered since 14:03:05')
  })

  it('a job of which nothing is heard says for how long, and is not green', async () => {
    const running = shown(StateMark, { job: { state: 'running' } })
    quiet.value = 6
    await nextTick()
    expect(running.querySelector('.running')).toBeNull()
    expect(running.textContent).toContain('no word for 6 s')
    quiet.value = null
    await nextTick()
    expect(running.querySelector('.running')).not.toBeNull()
  })
})
