import type { Ref, ShallowRef } from 'vue'
import { computed, shallowRef, watch } from 'vue'
import type { Address } from '@/composables/useAddress'
import type { StepGrid } from '@/draw/timeline/grid'
import type { Axis, StepRange, Window } from '@/draw/timeline/view'
import { extent, fit, pan, stepsOf, windowOfSteps, zoom } from '@/draw/timeline/view'
import type { Selection } from '@/lib/selection'

const FIRST_STEPS = 60
const SMALLEST_STEPS = 2

/** The cell that is selected. */
export interface CellSelection {
  readonly rank: number
  readonly step: number
}

export interface TimelineView {
  readonly axis: Readonly<ShallowRef<Axis>>
  readonly window: Readonly<ShallowRef<Window>>
  /** The window stays at the newest step. */
  readonly following: Readonly<ShallowRef<boolean>>
  readonly selection: Readonly<ShallowRef<CellSelection | null>>
  /** First and last step in view; null: nothing to see. */
  readonly steps: Readonly<Ref<StepRange | null>>
  /** The steps of the address, where none of them is stored; null: they are, or none was asked for. */
  readonly missing: Readonly<ShallowRef<StepRange | null>>
  readonly setAxis: (axis: Axis) => void
  readonly select: (selection: CellSelection | null) => void
  readonly show: (window: Window) => void
  readonly showSteps: (first: number, last: number) => void
  readonly zoomBy: (factor: number, around?: number) => void
  readonly panBy: (share: number) => void
  readonly showAll: () => void
  readonly follow: () => void
}

/**
 * Which stretch of the timeline is seen and what is selected; all of it is in the address, so that a link shows the
 * same. `wanted` is told which steps are looked at.
 */
export function useTimelineView(
  overview: Readonly<Ref<StepGrid | null>>,
  version: Readonly<Ref<number>>,
  address: Address,
  wanted: Ref<StepRange | null>,
): TimelineView {
  const axis = shallowRef<Axis>(address.query.value.axis === 'time' ? 'time' : 'steps')
  const window = shallowRef<Window>({ from: 0, to: FIRST_STEPS })
  const following = shallowRef(!asksForSteps(address.selection.value))
  const selection = shallowRef<CellSelection | null>(null)
  const missing = shallowRef<StepRange | null>(null)
  let begun = false

  const limits = computed<Window>(() => (void version.value, overview.value ? extent(overview.value, axis.value) : { from: 0, to: 1 }))
  const smallest = computed(() => {
    const steps = overview.value ? overview.value.newestStep + 1 - overview.value.oldestStep : 1
    return ((limits.value.to - limits.value.from) / steps) * SMALLEST_STEPS
  })
  const steps = computed(() => (void version.value, overview.value && begun ? stepsOf(overview.value, axis.value, window.value) : null))

  /** Shows what the address asks for. */
  function open(asked: Selection): void {
    const grid = overview.value
    if (!grid) return
    following.value = !asksForSteps(asked)
    const range = asked.steps ?? aroundStep(asked.step) ?? around(grid, asked.time) ?? { first: grid.newestStep - FIRST_STEPS + 1, last: grid.newestStep }
    const outside = range.last < grid.oldestStep || range.first > grid.newestStep
    missing.value = asked.steps && outside ? asked.steps : null
    window.value = fit(windowOfSteps(grid, axis.value, range), limits.value)
    const [rank] = asked.ranks
    selection.value = rank === undefined ? null : { rank, step: asked.step ?? grid.newestStep }
  }
  function show(next: Window): void {
    window.value = fit(next, limits.value)
    following.value = window.value.to >= limits.value.to
    missing.value = null
  }
  const toEnd = (): void => void (window.value = pan(window.value, limits.value.to - window.value.to, limits.value))

  watch(
    [overview, version],
    () => {
      if (!overview.value) return
      if (!begun) {
        begun = true
        open(address.selection.value)
      } else if (following.value) toEnd()
    },
    { immediate: true },
  )
  watch(axis, (to, from) => {
    const grid = overview.value
    const seen = grid && stepsOf(grid, from, window.value)
    if (seen) window.value = windowOfSteps(grid, to, seen)
  })
  watch([steps, following, selection, axis], () => {
    if (!begun) return
    const chosen = selection.value
    address.select({ steps: following.value ? null : steps.value, ranks: chosen ? [chosen.rank] : [], step: chosen?.step ?? null })
    address.write({ axis: axis.value === 'time' ? 'time' : undefined, time: undefined })
  })
  watch(steps, (range) => (wanted.value = range), { immediate: true })
  address.onElsewhere(open)

  return {
    axis,
    window,
    following,
    selection,
    steps,
    missing,
    setAxis: (next) => (axis.value = next),
    select: (next) => (selection.value = next),
    show,
    showSteps: (first, last) => overview.value && show(windowOfSteps(overview.value, axis.value, { first, last })),
    zoomBy: (factor, at) => {
      const anchor = at ?? (following.value ? window.value.to : (window.value.from + window.value.to) / 2)
      show(zoom(window.value, factor, anchor, limits.value, smallest.value))
    },
    panBy: (share) => show(pan(window.value, share * (window.value.to - window.value.from), limits.value)),
    showAll: () => show(limits.value),
    follow: () => {
      following.value = !following.value
      if (following.value) toEnd()
    },
  }
}

const asksForSteps = ({ steps, step, time }: Selection): boolean => steps !== null || step !== null || time !== null

function aroundStep(step: number | null): StepRange | null {
  return step === null ? null : { first: step - FIRST_STEPS / 2, last: step + FIRST_STEPS / 2 - 1 }
}

/** The steps around a time in seconds since 1970. */
function around(grid: StepGrid, unixSeconds: number | null): StepRange | null {
  if (unixSeconds === null) return null
  const at = unixSeconds - grid.origin
  const found = stepsOf(grid, 'time', { from: at, to: at + 1e-3 })
  return found && { first: found.first - FIRST_STEPS / 2, last: found.last + FIRST_STEPS / 2 }
}
