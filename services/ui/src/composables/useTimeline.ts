import { useThrottleFn } from '@vueuse/core'
import type { Ref, ShallowRef } from 'vue'
import { computed, onScopeDispose, shallowRef, watch } from 'vue'
import { getTimeline } from '@/api/client'
import { useLive } from '@/api/live'
import type { TimelineColumns, TimelineModel } from '@/draw/timeline/model'
import { buildModel, EMPTY_COLUMNS, mergeColumns } from '@/draw/timeline/model'

const REFRESH_MS = 1000
/** Rows (step × rank) that the page keeps. */
const MAX_ROWS = 400_000
const MAX_STEPS = 2000
/** The ranks of a step report one after the other: so many of the newest steps are asked for again. */
const UNSETTLED_STEPS = 4

export interface TimelineFeed {
  readonly model: Readonly<Ref<TimelineModel>>
  readonly loaded: ShallowRef<boolean>
  readonly error: ShallowRef<Error | undefined>
  readonly refresh: () => Promise<void>
}

/** The newest steps of all ranks, kept up to date while the job runs. */
export function useTimeline(run: string): TimelineFeed {
  const live = useLive()
  const columns = shallowRef<TimelineColumns>(EMPTY_COLUMNS)
  const loaded = shallowRef(false)
  const error = shallowRef<Error>()
  const stop = new AbortController()

  const refresh = async (): Promise<void> => {
    const world = Math.max(1, live.jobs.get(run)?.sizes.world ?? 1)
    const keep = Math.min(MAX_STEPS, Math.max(50, Math.floor(MAX_ROWS / world)))
    const known = columns.value.step.at(-1)
    try {
      const fresh = await getTimeline(run, known === undefined ? 0 : Math.max(0, known - UNSETTLED_STEPS), keep, stop.signal)
      columns.value = mergeColumns(columns.value, fresh, keep)
      error.value = undefined
    } catch (failure) {
      if (!stop.signal.aborted) error.value = failure instanceof Error ? failure : new Error(String(failure))
    }
    loaded.value = true
  }

  const refreshSoon = useThrottleFn(refresh, REFRESH_MS, true)
  const unlisten = live.onStep((event) => void (event.run === run && !document.hidden && refreshSoon()))
  onScopeDispose(() => {
    unlisten()
    stop.abort()
  })
  watch(live.snapshots, refresh, { immediate: true })
  return { model: computed(() => buildModel(columns.value)), loaded, error, refresh }
}
