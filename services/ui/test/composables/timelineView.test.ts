// @vitest-environment happy-dom
import { afterEach, describe, expect, it, vi } from 'vitest'
import type { App } from 'vue'
import { createApp, defineComponent, h, shallowRef } from 'vue'
import type { Router } from 'vue-router'
import { createMemoryHistory, createRouter, RouterView } from 'vue-router'
import { useAddress } from '@/composables/useAddress'
import type { TimelineView } from '@/composables/useTimelineView'
import { useTimelineView } from '@/composables/useTimelineView'
import type { StepGrid } from '@/draw/timeline/grid'
import type { StepRange } from '@/draw/timeline/view'
import { columnsOf, gridOf } from '../support/grids'
import { World } from '../support/world'

const apps: App[] = []
afterEach(() => {
  for (const app of apps.splice(0)) app.unmount()
  vi.useRealTimers()
})

interface Opened {
  readonly router: Router
  readonly view: TimelineView
  readonly grow: (steps: number) => void
  readonly wanted: () => StepRange | null
}

async function open(address: string, steps = 1000, health: () => Promise<unknown> = () => Promise.resolve(defineComponent(() => () => h('main')))): Promise<Opened> {
  vi.useFakeTimers()
  const world = new World({ ranks: 2, steps, oldestStep: 100 })
  const grid = gridOf(world, { buckets: 2000 }, 4000)
  const overview = shallowRef<StepGrid | null>(grid)
  const version = shallowRef(0)
  const wanted = shallowRef<StepRange | null>(null)
  let view: TimelineView | undefined
  const Timeline = defineComponent(() => {
    view = useTimelineView(overview, version, useAddress(), wanted)
    return () => h('main')
  })
  const router = createRouter({
    history: createMemoryHistory(),
    routes: [
      { path: '/timeline', component: Timeline },
      { path: '/health', component: health as never },
    ],
  })
  await router.push(address)
  const app = createApp(RouterView)
  app.use(router).mount(document.createElement('div'))
  apps.push(app)
  const grow = (newest: number): void => {
    world.newestStep = newest
    grid.put(columnsOf(world, { from: newest - 2, bucketSteps: grid.bucketSteps }))
    version.value += 1
  }
  return { router, view: view!, grow, wanted: () => wanted.value }
}
const written = async (router: Router): Promise<string> => {
  await vi.advanceTimersByTimeAsync(300)
  return router.currentRoute.value.fullPath
}

describe('at first', () => {
  it('shows the newest steps, and follows them', async () => {
    const { view, grow, wanted } = await open('/timeline')
    expect(view.steps.value).toEqual({ first: 941, last: 1000 })
    grow(1010)
    await vi.advanceTimersByTimeAsync(1)
    expect(view.steps.value).toEqual({ first: 951, last: 1010 })
    expect(wanted()).toEqual({ first: 951, last: 1010 })
  })

  it.each([
    ['?from=300&to=340', { first: 300, last: 340 }],
    ['?rank=1&step=500', { first: 470, last: 529 }],
    ['?time=1790000700', { first: 670, last: 730 }],
  ])('shows what a link asks for: %s', async (query, steps) => {
    const { view, grow } = await open(`/timeline${query}`)
    expect(view.steps.value).toEqual(steps)
    grow(1010)
    await vi.advanceTimersByTimeAsync(1)
    expect(view.steps.value).toEqual(steps)
  })

  it('says so when the steps that a link asks for are not stored', async () => {
    const { view } = await open('/timeline?from=50&to=90')
    expect(view.missing.value).toEqual({ first: 50, last: 90 })
    expect(view.steps.value?.first).toBe(100)
    view.showSteps(200, 300)
    expect(view.missing.value).toBeNull()
  })
})

describe('the address', () => {
  it('keeps what is selected', async () => {
    const { router, view } = await open('/timeline')
    view.select({ rank: 1, step: 990 })
    expect(await written(router)).toBe('/timeline?rank=1&step=990')
  })

  it('keeps the window once it does not follow, and an axis that is not the first', async () => {
    const { router, view } = await open('/timeline?keep=this')
    view.showSteps(200, 260)
    view.setAxis('time')
    expect(await written(router)).toMatch(/^\/timeline\?keep=this&from=(199|200)&to=26[01]&axis=time$/)
  })

  it('moves the view when somebody else changes it, and not when the view did', async () => {
    const { router, view } = await open('/timeline?from=300&to=340')
    view.showSteps(400, 440)
    await written(router)
    expect(view.steps.value).toEqual({ first: 400, last: 440 })
    await router.push('/timeline?from=600&to=650&rank=0&step=610')
    await vi.advanceTimersByTimeAsync(1)
    expect(view.steps.value).toEqual({ first: 600, last: 650 })
    expect(view.selection.value).toEqual({ rank: 0, step: 610 })
  })

  it('is let go when another page has been asked for, however long that one loads', async () => {
    const { router, view } = await open('/timeline', 1000, () => new Promise((resolve) => setTimeout(() => resolve(defineComponent(() => () => h('main'))), 1000)))
    view.select({ rank: 1, step: 990 })
    void router.push('/health')
    await vi.advanceTimersByTimeAsync(1500)
    expect(router.currentRoute.value.fullPath).toBe('/health')
  })

  it('is not written any more once the page is gone', async () => {
    const { router, view } = await open('/timeline')
    const replace = vi.spyOn(router, 'replace')
    view.select({ rank: 1, step: 990 })
    await vi.advanceTimersByTimeAsync(1)
    apps.pop()?.unmount()
    await vi.advanceTimersByTimeAsync(300)
    expect(replace).not.toHaveBeenCalled()
  })

  it('goes on when the other page does not load', async () => {
    const { router, view } = await open('/timeline', 1000, () => Promise.reject(new Error('no connection')))
    view.select({ rank: 1, step: 990 })
    await expect(router.push('/health')).rejects.toThrow('no connection')
    view.select({ rank: 1, step: 991 })
    expect(await written(router)).toBe('/timeline?rank=1&step=991')
  })
})
