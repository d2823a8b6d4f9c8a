// @vitest-environment happy-dom
import { createPinia } from 'pinia'
import { describe, expect, it } from 'vitest'
import { createApp, shallowRef } from 'vue'
import { createMemoryHistory, createRouter } from 'vue-router'
import type { Live } from '@/api/live'
import { LIVE } from '@/api/live'
import type { JobState, Rank } from '@/api/types'
import RankCell from '@/components/jobs/RankCell.vue'
import RankStrip from '@/components/jobs/RankStrip.vue'

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

describe('the ranks of a job', () => {
  function strip(...ranks: [role: string, stage: number][]): string[] {
    const live = { jobs: new Map([['run', { state: 'running' }]]), lostSince: shallowRef(null) } as unknown as Live
    const given = ranks.map(([role, pipeline], rank) => ({ rank, role, placement: { pipeline }, step: 9, activity: '' }))
    const place = document.createElement('div')
    createApp(RankStrip, { run: 'run', ranks: given, clocks: [], findings: [] }).use(createPinia()).use(router).provide(LIVE, live).mount(place)
    return [...place.querySelectorAll('.stage')].map((stage) => {
      const inside = [...stage.querySelectorAll('.rank')].map((rank) => rank.textContent)
      return `${stage.querySelector('h3')?.textContent}: ${inside.join(' ')}`
    })
  }

  it('stand by stage', () => {
    expect(strip(['', 0], ['', 1], ['', 0], ['', 1])).toEqual(['Stage 0: 0 2', 'Stage 1: 1 3'])
  })

  it('of two roles stand apart, forward above backward, however they are numbered', () => {
    const titles = ['Forward, stage 0: 2', 'Backward, stage 0: 0', 'Forward, stage 1: 3', 'Backward, stage 1: 1']
    expect(strip(['backward', 0], ['backward', 1], ['forward', 0], ['forward', 1])).toEqual(titles)
  })
})
