// @vitest-environment happy-dom
import { createPinia } from 'pinia'
import { beforeEach, describe, expect, it } from 'vitest'
import type { Component } from 'vue'
import { createApp, nextTick, shallowRef } from 'vue'
import type { Live } from '@/api/live'
import { LIVE } from '@/api/live'
import LostNote from '@/components/shell/LostNote.vue'
import StateMark from '@/components/StateMark.vue'

const lostSince = shallowRef<number | null>(null)
beforeEach(() => (lostSince.value = null))

function shown(component: Component, props = {}): HTMLElement {
  const place = document.createElement('div')
  createApp(component, props).use(createPinia()).provide(LIVE, { lostSince } as unknown as Live).mount(place)
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
    const running = shown(StateMark, { state: 'running' })
    const finished = shown(StateMark, { state: 'finished' })
    expect(running.querySelector('.running')).not.toBeNull()
    lostSince.value = 1
    await nextTick()
    expect(running.querySelector('.running')).toBeNull()
    expect(running.textContent.trim()).toBe('Was: Running')
    expect(finished.textContent.trim()).toBe('Finished')
  })
})
