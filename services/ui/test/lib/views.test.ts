import { afterEach, describe, expect, it, vi } from 'vitest'
import type { Router } from 'vue-router'
import { createMemoryHistory, createRouter } from 'vue-router'
import { prefetchViews, reloadAfterUpgrade } from '@/lib/views'

const gone = (): Promise<never> => Promise.reject(new TypeError('Failed to fetch dynamically imported module'))
const view = { template: '<p />' }

function routerOf(lazy: () => Promise<typeof view>): Router {
  return createRouter({
    history: createMemoryHistory(),
    routes: [
      { path: '/', component: view },
      { path: '/lazy', component: lazy },
      { path: '/other', component: () => Promise.resolve(view) },
    ],
  })
}

async function open(router: Router, ...paths: string[]): Promise<void> {
  for (const path of paths) await router.push(path).catch(() => undefined)
  await new Promise((resolve) => setTimeout(resolve))
}

describe('the pages’ files', () => {
  afterEach(() => vi.restoreAllMocks())

  it('are there before a page is opened, also behind one that does not come', async () => {
    const asked: string[] = []
    const router = createRouter({
      history: createMemoryHistory(),
      routes: ['/a', '/b'].map((path) => ({ path, component: () => (asked.push(path), gone()) })),
    })
    await prefetchViews(router)
    expect(asked).toEqual(['/a', '/b'])
  })

  it('of a release before are a reason to load the page anew', async () => {
    const [router, load] = [routerOf(gone), vi.fn()]
    reloadAfterUpgrade(router, () => Promise.resolve(), load)
    await open(router, '/', '/lazy?rank=3')
    expect(load.mock.calls).toEqual([['/lazy?rank=3']])
  })

  it.each([
    ['the platform is gone', ['/', '/lazy'], gone],
    ['the page was just loaded', ['/lazy'], () => Promise.resolve()],
    ['they come', ['/', '/other'], () => Promise.resolve()],
  ] as const)('are no reason to load the page anew where %s', async (_, paths, answers) => {
    vi.spyOn(console, 'error').mockReturnValue()
    const [router, load] = [routerOf(gone), vi.fn()]
    reloadAfterUpgrade(router, answers, load)
    await open(router, ...paths)
    expect(load).not.toHaveBeenCalled()
  })
})
