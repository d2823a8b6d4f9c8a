// @vitest-environment happy-dom
import { afterEach, expect, it, vi } from 'vitest'
import { createApp, defineComponent, h, shallowRef } from 'vue'
import { createMemoryHistory, createRouter, RouterView } from 'vue-router'
import { useTimelineView } from '@/composables/useTimelineView'
import { buildModel, EMPTY_COLUMNS } from '@/draw/timeline/model'

afterEach(() => void vi.useRealTimers())

const Timeline = defineComponent(() => {
  const view = useTimelineView(shallowRef(buildModel(EMPTY_COLUMNS)))
  view.select({ rank: 1, step: 3 })
  return () => h('main')
})

const Health = defineComponent(() => () => h('main'))

async function open(health: () => Promise<typeof Health>) {
  const router = createRouter({
    history: createMemoryHistory(),
    routes: [
      { path: '/timeline', component: Timeline },
      { path: '/health', component: health },
    ],
  })
  await router.push('/timeline')
  createApp(RouterView).use(router).mount(document.createElement('div'))
  return router
}

it('keeps what is selected in the address', async () => {
  vi.useFakeTimers()
  const router = await open(() => Promise.resolve(Health))
  await vi.advanceTimersByTimeAsync(300)
  expect(router.currentRoute.value.fullPath).toBe('/timeline?rank=1&step=3')
})

it('lets go of the address when another page has been asked for, however long that one loads', async () => {
  vi.useFakeTimers()
  const router = await open(() => new Promise((resolve) => setTimeout(() => resolve(Health), 1000)))
  void router.push('/health')
  await vi.advanceTimersByTimeAsync(1500)
  expect(router.currentRoute.value.fullPath).toBe('/health')
})

it('goes on with the address when the other page does not load', async () => {
  vi.useFakeTimers()
  const router = await open(() => Promise.reject(new Error('no connection')))
  await expect(router.push('/health')).rejects.toThrow('no connection')
  await vi.advanceTimersByTimeAsync(300)
  expect(router.currentRoute.value.fullPath).toBe('/timeline?rank=1&step=3')
})
