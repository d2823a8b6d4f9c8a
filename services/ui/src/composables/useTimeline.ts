import { useIntervalFn, useThrottleFn, watchDebounced } from '@vueuse/core'
import type { Ref, ShallowRef } from 'vue'
import { computed, onScopeDispose, shallowRef, watch } from 'vue'
import { getTimelineGrid } from '@/api/client'
import { useLive } from '@/api/live'
import type { GridColumns } from '@/draw/timeline/grid'
import { StepGrid } from '@/draw/timeline/grid'
import type { StepRange } from '@/draw/timeline/view'
import { pause } from '@/lib/turns'

const REFRESH_MS = 1000
/** So many cells are asked for at once, and buckets at most, since a picture has no more columns. */
const CELLS = 1 << 18
const MOST_BUCKETS = 1024
const FEWEST_BUCKETS = 32
const OVERVIEW_BUCKETS = 512
/** The ranks of a step report one after the other: so many of the newest steps are asked for again. */
const UNSETTLED_STEPS = 4
const WINDOW_MS = 80
const RETRY_MS = 3000

export interface TimelineFeed {
  /** The whole attempt, as coarsely as it needs to be. */
  readonly overview: ShallowRef<StepGrid | null>
  /** A stretch around the window, as finely as it can be seen; null: the overview is as fine. */
  readonly detail: ShallowRef<StepGrid | null>
  /** Grows with each change of a grid. */
  readonly version: Ref<number>
  readonly loaded: ShallowRef<boolean>
  readonly error: ShallowRef<Error | undefined>
  readonly refresh: () => Promise<void>
}

/**
 * Steps of all ranks of an attempt (null: the newest): the whole of it at once, and `wanted` as finely as it is looked
 * at. While the job runs both grow by what is new. Ranks of one group are compared with each other.
 */
export function useTimeline(
  run: string,
  attempt: Ref<number | null>,
  wanted: Ref<StepRange | null>,
  groupOf: Ref<(rank: number) => number>,
): TimelineFeed {
  const live = useLive()
  const overview = shallowRef<StepGrid | null>(null)
  const detail = shallowRef<StepGrid | null>(null)
  const version = shallowRef(0)
  const loaded = shallowRef(false)
  const error = shallowRef<Error>()
  let stop = new AbortController()
  let asking: AbortController | undefined

  const current = computed(() => attempt.value === null || attempt.value === live.jobs.get(run)?.attempt)
  const fail = (failure: unknown, signal: AbortSignal): void => {
    if (!signal.aborted) error.value = failure instanceof Error ? failure : new Error(String(failure))
  }
  const changed = (): void => void (version.value += 1)
  /** Reading an answer is a turn of its own, and so is laying it out. */
  async function gridOf(columns: GridColumns, capacity: number, origin: number | undefined, signal: AbortSignal): Promise<StepGrid> {
    await pause()
    const made = await StepGrid.inTurns(columns, capacity, { origin, groupOf: groupOf.value }, signal)
    made.setGroups(groupOf.value)
    return made
  }

  /** What is new behind a grid. */
  function newOf(grid: StepGrid, signal: AbortSignal): Promise<GridColumns> {
    const from = Math.max(grid.oldestStep, Math.min(grid.newestStep, grid.end * grid.bucketSteps - 1) - UNSETTLED_STEPS)
    return getTimelineGrid(run, { attempt: attempt.value, from, bucketSteps: grid.bucketSteps }, signal)
  }
  /** Puts it there; false: the grid has to be asked for anew. */
  function grow(grid: StepGrid, fresh: GridColumns): boolean {
    const grows = grid.fits(fresh) && bucketsBehind(grid, fresh) <= grid.capacity
    if (grows) grid.put(fresh)
    return grows
  }

  async function loadWhole(signal: AbortSignal): Promise<void> {
    const columns = await getTimelineGrid(run, { attempt: attempt.value, buckets: OVERVIEW_BUCKETS, cells: CELLS }, signal)
    if (signal.aborted) return
    if (columns.start_seconds.every(Number.isNaN)) return void (overview.value = null)
    const made = await gridOf(columns, 2 * bucketsOf(columns.rank.length, OVERVIEW_BUCKETS), undefined, signal)
    if (signal.aborted) return
    overview.value = made
    changed()
  }

  /** Both grids grow at once, so that one picture shows it. */
  async function load(signal: AbortSignal): Promise<void> {
    const whole = overview.value
    if (!whole || whole.end - whole.first >= whole.capacity) return loadWhole(signal)
    const close = detail.value && detail.value.end * detail.value.bucketSteps > detail.value.newestStep ? detail.value : null
    const [fresh, freshClose] = await Promise.all([newOf(whole, signal), close && newOf(close, signal)])
    if (signal.aborted) return
    if (close && freshClose && !grow(close, freshClose) && detail.value === close) detail.value = null
    if (!grow(whole, fresh)) return loadWhole(signal)
    changed()
  }

  /** One at a time: what comes meanwhile waits for the next. */
  let running: Promise<void> | null = null
  const refresh = (): Promise<void> => {
    const own = (running ??= attemptRefresh())
    return own.finally(() => void (running === own && (running = null)))
  }
  async function attemptRefresh(): Promise<void> {
    const { signal } = stop
    try {
      await load(signal)
      if (!signal.aborted) error.value = undefined
    } catch (failure) {
      fail(failure, signal)
    }
    if (!signal.aborted) loaded.value = true
  }

  /** The window as finely as cells and columns allow, with as much again on either side, so that moving finds it there. */
  async function look(range: StepRange | null): Promise<void> {
    const whole = overview.value
    if (!range || !whole) return
    const width = range.last - range.first + 1
    const first = Math.max(whole.oldestStep, range.first - width)
    const last = Math.min(whole.newestStep, range.last + width)
    const buckets = bucketsOf(whole.ranks.length, MOST_BUCKETS)
    const bucketSteps = finest(first, last, buckets)
    if (bucketSteps >= whole.bucketSteps) return void (detail.value = null)
    if (detail.value?.bucketSteps === bucketSteps && detail.value.covers(range.first, range.last)) return
    asking?.abort()
    const { signal } = (asking = new AbortController())
    try {
      const columns = await getTimelineGrid(run, { attempt: attempt.value, from: first, to: last, bucketSteps }, signal)
      if (signal.aborted) return
      // As much room again where there is more to come.
      const room = last >= whole.newestStep ? buckets : 0
      const made = await gridOf(columns, columns.start_seconds.length + room, whole.origin, signal)
      if (signal.aborted) return
      detail.value = made
      changed()
    } catch (failure) {
      fail(failure, signal)
    }
  }

  const refreshSoon = useThrottleFn(refresh, REFRESH_MS, true)
  const unlisten = live.onStep((event) => void (event.run === run && current.value && !document.hidden && refreshSoon()))
  watch(
    [live.snapshots, attempt],
    (_, before) => {
      if (before[1] !== attempt.value && before[1] !== undefined) {
        stop.abort()
        running = null
        stop = new AbortController()
        overview.value = detail.value = null
        loaded.value = false
      }
      void refresh()
    },
    { immediate: true },
  )
  watch(groupOf, () => {
    for (const grid of [overview.value, detail.value]) if (grid?.setGroups(groupOf.value)) changed()
  })
  watchDebounced([wanted, overview], () => void look(wanted.value), { debounce: WINDOW_MS, immediate: true })
  // A collector that is away comes back.
  useIntervalFn(() => void (error.value && !document.hidden && refresh()), RETRY_MS)
  onScopeDispose(() => {
    unlisten()
    stop.abort()
    asking?.abort()
  })
  return { overview, detail, version, loaded, error, refresh }
}

const bucketsBehind = (grid: StepGrid, fresh: GridColumns): number => fresh.first_step / fresh.bucket_steps - grid.end

/** So many buckets at most for so many ranks. */
export function bucketsOf(ranks: number, most: number): number {
  return Math.max(FEWEST_BUCKETS, Math.min(most, Math.floor(CELLS / Math.max(1, ranks))))
}

/** The smallest power of two with which steps [first, last] fill at most so many buckets. */
export function finest(first: number, last: number, buckets: number): number {
  let size = 1
  while (Math.floor(last / size) - Math.floor(first / size) + 1 > buckets) size *= 2
  return size
}
