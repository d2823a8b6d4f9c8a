// @vitest-environment happy-dom
import { createPinia } from 'pinia'
import { describe, expect, it } from 'vitest'
import { createApp, shallowRef } from 'vue'
import { createMemoryHistory, createRouter } from 'vue-router'
import type { Live } from '@/api/live'
import { LIVE } from '@/api/live'
import type { JobState, Rank } from '@/api/types'
import RankCell from '@/components/jobs/RankCell.vue'

const router = createRouter({ history: createMemoryHistory(), routes: [{ path: '/:run', name: 'timeline', component: RankCell }] })

function shown(state: JobState, rank: Partial<Rank>, lost = false): HTMLElement {
  const live = { jobs: new Map([['run', { state }]]), lostSince: shallowRef(lost ? 1 : null) } as unknown as Live
  const place = document.createElement('div')
  const props = { run: 'run', rank: { rank: 0, step: 90, activity: '', connected: false, ended: false, ...rank } }
  createApp(RankCell, props).use(createPinia()).use(router).provide(LIVE, live).mount(place)
  return place
}
const says = (...given: Parameters<typeof shown>): string | undefined => shown(...given).querySelector('.says')?.textContent

describe('a rank that is not connected', () => {
  it('of a finished job has finished, whether or not the platform is heard', () => {
    expect(says('finished', { ended: true })).toBe('finished')
    expect(says('finished', { ended: true }, true)).toBe('finished')
    expect(shown('finished', { ended: true }).querySelector('svg')?.getAttribute('aria-label')).toBe('ended')
  })

  it('of a job that failed or goes on has ended', () => {
    expect(['failed', 'running'].map((state) => says(state as JobState, { ended: true }))).toEqual(['ended', 'ended'])
  })

  it('and has not said that it ends is silent', () => {
    expect(['lost', 'running'].map((state) => says(state as JobState, {}))).toEqual(['silent', 'silent'])
  })
})
