import type { ShallowRef } from 'vue'
import { onScopeDispose, shallowRef, watch } from 'vue'
import { pause } from '@/lib/turns'

/** The first ones of a page that has just come take two milliseconds each. */
const AT_ONCE = 8

/** How many rows of a list are on the page: the first ones at once, the others in tasks of their own, so that none is felt; anew with each `list`. */
export function useDrawnRows(count: () => number, list: () => unknown): ShallowRef<number> {
  const drawn = shallowRef(AT_ONCE)
  let left = false
  watch(list, () => (drawn.value = AT_ONCE))
  watch(
    [count, drawn],
    async () => {
      if (drawn.value >= count()) return
      const before = drawn.value
      await pause()
      if (!left && drawn.value === before) drawn.value += AT_ONCE
    },
    { flush: 'post', immediate: true },
  )
  onScopeDispose(() => (left = true))
  return drawn
}
