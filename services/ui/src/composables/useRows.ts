import { watchDebounced } from '@vueuse/core'
import type { ComputedRef, Ref } from 'vue'
import { computed, shallowRef, watch } from 'vue'
import type { Address } from '@/composables/useAddress'
import type { StepGrid } from '@/draw/timeline/grid'
import type { Quantity } from '@/draw/timeline/heat'
import type { Grouping, RankPlace, RowGroup, Sorting } from '@/draw/timeline/rows'
import { groupRows, rankFilter, slownessOf } from '@/draw/timeline/rows'
import type { Axis, Window } from '@/draw/timeline/view'
import { visibleBuckets } from '@/draw/timeline/view'

export const GROUPINGS: readonly Grouping[] = ['stage', 'replica', 'node', 'none']
export const SORTINGS: readonly Sorting[] = ['rank', 'slowest']
export const QUANTITIES: readonly Quantity[] = ['peers', 'duration', 'compute', 'wait', 'host']
const SETTLED_MS = 500

/** Which rows are shown, in which order, and what their colours tell: from the address, and changed through it. */
export interface Rows {
  readonly grouping: ComputedRef<Grouping>
  readonly sorting: ComputedRef<Sorting>
  readonly quantity: ComputedRef<Quantity>
  readonly filter: ComputedRef<string>
  readonly bars: ComputedRef<boolean>
  readonly groups: ComputedRef<readonly RowGroup[]>
  readonly change: (patch: { group?: Grouping; sort?: Sorting; colour?: Quantity; q?: string; rows?: 'bars' }) => void
}

export function useRows(
  grid: Ref<StepGrid | null>,
  placeOf: Ref<(rank: number) => RankPlace>,
  address: Address,
  view: { readonly axis: Ref<Axis>; readonly window: Ref<Window>; readonly following: Ref<boolean> },
): Rows {
  const one = <T extends string>(name: string, known: readonly T[]): ComputedRef<T> =>
    computed(() => known.find((value) => value === address.query.value[name]) ?? known[0])
  const grouping = one('group', GROUPINGS)
  const sorting = one('sort', SORTINGS)
  const quantity = one('colour', QUANTITIES)
  // What is typed is seen at once, and in the address a moment later.
  const typed = shallowRef(String(address.query.value.q ?? ''))
  watch(() => address.query.value.q, (text) => (typed.value = String(text ?? '')))

  /** Rows don't hop while they are looked at: they are sorted again when another stretch is shown. */
  const slowness = shallowRef<Float32Array>()
  const sort = (): void => {
    const shown = grid.value
    slowness.value = sorting.value === 'slowest' && shown ? slownessOf(shown, ...visibleBuckets(shown, view.axis.value, view.window.value)) : undefined
  }
  watch([sorting, () => grid.value?.ranks], sort, { immediate: true })
  watchDebounced(view.window, () => void (view.following.value || sort()), { debounce: SETTLED_MS })

  const groups = computed(() => {
    if (!grid.value) return []
    const known = slowness.value?.length === grid.value.ranks.length ? slowness.value : undefined
    return groupRows(grid.value, placeOf.value, grouping.value, rankFilter(typed.value), known)
  })
  return {
    grouping,
    sorting,
    quantity,
    filter: computed(() => typed.value),
    bars: computed(() => address.query.value.rows === 'bars'),
    groups,
    change: (patch) => {
      if ('q' in patch) typed.value = patch.q ?? ''
      // What is as it is at first is not in the address.
      const { group, sort: order, colour, q } = patch
      address.write({
        ...patch,
        ...('group' in patch && group === GROUPINGS[0] ? { group: undefined } : {}),
        ...('sort' in patch && order === SORTINGS[0] ? { sort: undefined } : {}),
        ...('colour' in patch && colour === QUANTITIES[0] ? { colour: undefined } : {}),
        ...('q' in patch ? { q: q || undefined } : {}),
      })
    },
  }
}
