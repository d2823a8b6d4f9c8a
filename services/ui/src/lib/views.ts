// The pages' own files, which come when they are first needed.
import type { Router } from 'vue-router'
import { START_LOCATION } from 'vue-router'

// Safari has no requestIdleCallback.
const idle = (): Promise<void> =>
  new Promise((resolve) => ('requestIdleCallback' in globalThis ? requestIdleCallback(() => resolve(), { timeout: 5000 }) : setTimeout(resolve, 200)))

/** Gets all of them, one after the other, while the browser has nothing else to do: a page opens also when the platform is gone by then. */
export async function prefetchViews(router: Router): Promise<void> {
  for (const { components } of router.getRoutes()) {
    const view: unknown = components?.default
    if (typeof view !== 'function') continue
    await idle()
    await (view as () => Promise<unknown>)().catch(() => undefined)
  }
}

/** A file that does not come though the platform answers is of a release before this one: the page is loaded anew. */
export function reloadAfterUpgrade(router: Router, answers: () => Promise<unknown>, load: (address: string) => void): void {
  router.onError((_, to, from) => {
    if (from !== START_LOCATION) void answers().then(() => load(to.fullPath), () => undefined)
  })
}
