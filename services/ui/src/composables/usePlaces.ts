import type { ComputedRef, Ref } from 'vue'
import { computed, shallowRef, watch } from 'vue'
import type { Rank } from '@/api/types'
import type { RankPlace } from '@/draw/timeline/rows'

/** Where each rank stands. It changes only when a rank has moved: ranks are asked for again and again. */
export function usePlaces(ranks: Ref<readonly Rank[] | undefined>): ComputedRef<(rank: number) => RankPlace> {
  const places = shallowRef(new Map<number, RankPlace>())
  let known = ''
  watch(
    ranks,
    (listed = []) => {
      const placed = listed.map(placeOf)
      const text = JSON.stringify(placed)
      if (text === known) return
      known = text
      places.value = new Map(placed.map((place) => [place.rank, place]))
    },
    { immediate: true },
  )
  return computed(() => {
    const all = places.value
    return (rank) => all.get(rank) ?? { rank, node: '', device: '', stage: 0, replica: 0, role: '' }
  })
}

function placeOf({ rank, node, gpu_uuid, placement, role }: Rank): RankPlace {
  return { rank, node, device: gpu_uuid, stage: placement.pipeline, replica: placement.data, role }
}
