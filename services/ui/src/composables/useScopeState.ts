import type { ComputedRef } from 'vue'
import { computed } from 'vue'
import { useLive } from '@/api/live'
import type { ScopeState } from '@/scope/connection'
import type { Scope } from './useScope'

/** `past`: it was live when the platform was heard last; `absent`: the platform knows of no model. */
export type ShownState = ScopeState | 'past' | 'absent'

const NO_MODEL = 4400

/** What the page says of the connection to the model: one truth with what it says of the platform. */
export function useScopeState(scope: Scope): ComputedRef<ShownState> {
  const live = useLive()
  return computed(() => {
    const { code, reason } = scope.cut.value
    if (scope.state.value === 'live') return live.lostSince.value === null ? 'live' : 'past'
    if (scope.state.value === 'refused') return 'refused'
    if (live.lostSince.value !== null || live.state.value === 'offline') return 'lost'
    if (code === NO_MODEL) return 'absent'
    return code || reason ? 'lost' : scope.state.value
  })
}
