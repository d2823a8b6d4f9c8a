import type { ComputedRef, WritableComputedRef } from 'vue'
import { computed } from 'vue'
import type { LocationQueryRaw } from 'vue-router'
import { useRoute, useRouter } from 'vue-router'
import type { Axis } from '@/lib/history'

export const MAX_RUNS = 8

export interface RunView {
  /** The page's run, then those beside it. */
  readonly runs: ComputedRef<string[]>
  readonly axis: WritableComputedRef<Axis>
  /** 0 to 0.99. */
  readonly smoothing: WritableComputedRef<number>
  readonly log: WritableComputedRef<boolean>
  /** Steps in view, inclusive; null: all. */
  readonly steps: WritableComputedRef<readonly [number, number] | null>
  readonly compare: (run: string) => void
  readonly leave: (run: string) => void
}

/** How the curves are looked at: it is in the address, so that a link shows the same. */
export function useRunView(run: () => string): RunView {
  const route = useRoute()
  const router = useRouter()
  const set = (patch: LocationQueryRaw): void => void router.replace({ query: { ...route.query, ...patch } })
  const number = (text: unknown): number => (typeof text === 'string' && /^\d+(\.\d+)?$/.test(text) ? Number(text) : 0)
  const others = computed(() => {
    const asked = typeof route.query.with === 'string' ? route.query.with.split(',') : []
    return [...new Set(asked)].filter((one) => one && one !== run()).slice(0, MAX_RUNS - 1)
  })
  const choose = (runs: readonly string[]): void => set({ with: runs.length ? runs.join(',') : undefined })
  return {
    runs: computed(() => [run(), ...others.value]),
    axis: computed({ get: () => (route.query.axis === 'time' ? 'time' : 'step'), set: (axis) => set({ axis: axis === 'time' ? axis : undefined, from: undefined, to: undefined }) }),
    smoothing: computed({ get: () => Math.min(0.99, number(route.query.smooth)), set: (weight) => set({ smooth: weight > 0 ? weight : undefined }) }),
    log: computed({ get: () => route.query.log === '1', set: (on) => set({ log: on ? 1 : undefined }) }),
    steps: computed({
      get: () => {
        const [from, to] = [number(route.query.from), number(route.query.to)]
        return to > 0 && to >= from ? ([from, to] as const) : null
      },
      set: (steps) => set({ from: steps?.[0], to: steps?.[1] }),
    }),
    compare: (other) => choose([...others.value, other]),
    leave: (other) => choose(others.value.filter((one) => one !== other)),
  }
}
