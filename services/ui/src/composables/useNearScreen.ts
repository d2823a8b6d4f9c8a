import type { Ref, ShallowRef } from 'vue'
import { onScopeDispose, shallowRef, watch } from 'vue'

/** What is drawn before it is scrolled to, and before the keyboard reaches it. */
const NEAR_PIXELS = 600

/**
 * Names of the elements of a list, from their `data-name`, that are or have been near the screen: the others can be
 * drawn when they come. Looked at again whenever `items` changes.
 */
export function useNearScreen(list: Readonly<Ref<HTMLElement | null>>, items: () => unknown): ShallowRef<ReadonlySet<string>> {
  const near = shallowRef<ReadonlySet<string>>(new Set())
  const watcher = new IntersectionObserver(
    (seen) => {
      const come = seen.filter(({ isIntersecting }) => isIntersecting).map(({ target }) => target)
      for (const element of come) watcher.unobserve(element)
      const names = come.map((element) => (element as HTMLElement).dataset.name ?? '')
      if (names.some((name) => !near.value.has(name))) near.value = new Set([...near.value, ...names])
    },
    { rootMargin: `${NEAR_PIXELS}px` },
  )
  watch(
    [list, items],
    () => {
      for (const element of list.value?.children ?? []) if (!near.value.has((element as HTMLElement).dataset.name ?? '')) watcher.observe(element)
    },
    { flush: 'post', immediate: true },
  )
  onScopeDispose(() => watcher.disconnect())
  return near
}
