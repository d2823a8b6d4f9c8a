import { useTimeoutFn } from '@vueuse/core'
import type { ComputedRef } from 'vue'
import { computed, onScopeDispose, watch } from 'vue'
import type { LocationQuery, LocationQueryRaw } from 'vue-router'
import { useRoute, useRouter } from 'vue-router'
import type { Selection } from '@/lib/selection'
import { readSelection, selectionQuery } from '@/lib/selection'

const WRITE_MS = 250

export interface Address {
  readonly selection: ComputedRef<Selection>
  readonly query: ComputedRef<LocationQuery>
  /** A while after the last change, so that dragging writes once; `undefined` takes a value out. */
  readonly write: (patch: LocationQueryRaw) => void
  readonly select: (patch: Partial<Selection>) => void
  /** A step of the browser's history. */
  readonly push: (patch: LocationQueryRaw) => void
  /** Told when somebody else has changed it: the Back button, a link to the same page. */
  readonly onElsewhere: (listener: (selection: Selection) => void) => void
}

/** The address as the store of what is looked at. */
export function useAddress(): Address {
  const route = useRoute()
  const router = useRouter()
  let pending: LocationQueryRaw = {}
  let written = ''
  // A replace while the next page's code still loads would call that navigation off.
  let leaving = false
  const hooks = [router.beforeEach((to, from) => void (leaving = to.path !== from.path)), router.onError(() => void (leaving = false))]
  onScopeDispose(() => hooks.forEach((remove) => remove()))

  const selection = computed(() => readSelection(route.query))
  const merged = (): LocationQueryRaw => ({ ...route.query, ...pending })
  // Goes with the page: later there is no route to write into.
  const flush = useTimeoutFn(
    () => {
      if (leaving) return
      const query = merged()
      pending = {}
      written = textOf(query)
      if (written !== textOf(route.query)) void router.replace({ query })
    },
    WRITE_MS,
    { immediate: false },
  )
  const write = (patch: LocationQueryRaw): void => {
    pending = { ...pending, ...patch }
    flush.start()
  }
  return {
    selection,
    query: computed(() => route.query),
    write,
    select: (patch) => write(selectionQuery(patch)),
    push: (patch) => {
      const query = { ...merged(), ...patch }
      pending = {}
      written = textOf(query)
      void router.push({ query })
    },
    onElsewhere: (listener) =>
      watch(
        () => textOf(route.query),
        (text) => {
          if (text !== written && !leaving) listener(selection.value)
          written = text
        },
      ),
  }
}

function textOf(query: LocationQueryRaw): string {
  const known = Object.entries(query).filter(([, value]) => value !== undefined && value !== null)
  return JSON.stringify(known.map(([key, value]) => [key, String(value)]).sort())
}
