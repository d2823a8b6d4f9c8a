import { watchDebounced } from '@vueuse/core'
import type { Ref, ShallowRef } from 'vue'
import { computed, onScopeDispose, shallowRef, watch } from 'vue'
import { useRoute, useRouter } from 'vue-router'
import type { TimelineModel } from '@/draw/timeline/model'
import type { Axis, Window } from '@/draw/timeline/view'
import { extent, fit, pan, visibleSteps, windowOfSteps, zoom } from '@/draw/timeline/view'

const FIRST_STEPS = 60
const SMALLEST_STEPS = 2

export interface Selection {
  readonly rank: number
  readonly step: number
}

export interface TimelineView {
  readonly axis: Readonly<ShallowRef<Axis>>
  readonly window: Readonly<ShallowRef<Window>>
  /** The window stays at the newest step. */
  readonly following: Readonly<ShallowRef<boolean>>
  readonly selection: Readonly<ShallowRef<Selection | null>>
  /** First and last step in view; null: nothing to see. */
  readonly steps: Readonly<Ref<{ first: number; last: number } | null>>
  readonly setAxis: (axis: Axis) => void
  readonly select: (selection: Selection | null) => void
  readonly show: (window: Window) => void
  readonly showSteps: (first: number, last: number) => void
  readonly zoomBy: (factor: number, around?: number) => void
  readonly panBy: (share: number) => void
  readonly showAll: () => void
  readonly follow: () => void
}

/** Writes a view into the address, a while after it has changed. */
function useAddress(view: Pick<TimelineView, 'axis' | 'following' | 'selection' | 'steps'>): void {
  const { axis, following, selection, steps } = view
  const route = useRoute()
  const router = useRouter()
  // A replace while the next page's code still loads would call that navigation off.
  let leaving = false
  const hooks = [router.beforeEach((to, from) => void (leaving = to.path !== from.path)), router.onError(() => void (leaving = false))]
  onScopeDispose(() => hooks.forEach((remove) => remove()))
  watchDebounced(
    [steps, following, selection, axis],
    () => {
      if (leaving) return
      const place = steps.value && !following.value ? { from: steps.value.first, to: steps.value.last } : { from: undefined, to: undefined }
      const chosen = selection.value ?? { rank: undefined, step: undefined }
      void router.replace({ query: { ...route.query, ...place, ...chosen, axis: axis.value === 'time' ? 'time' : undefined } })
    },
    { debounce: 250 },
  )
}

const number = (text: unknown): number | null => (typeof text === 'string' && /^\d+$/.test(text) ? Number(text) : null)

/** Which stretch of the timeline is seen and what is selected; all of it is in the address, so that a link shows the same. */
export function useTimelineView(model: Readonly<Ref<TimelineModel>>): TimelineView {
  const route = useRoute()
  const asked = { from: number(route.query.from), to: number(route.query.to) }
  const rank = number(route.query.rank)

  const axis = shallowRef<Axis>(route.query.axis === 'time' ? 'time' : 'steps')
  const window = shallowRef<Window>({ from: 0, to: FIRST_STEPS })
  const following = shallowRef(asked.from === null)
  const selection = shallowRef<Selection | null>(null)
  const limits = computed(() => extent(model.value, axis.value))
  const smallest = computed(() => ((limits.value.to - limits.value.from) / Math.max(1, model.value.steps.length)) * SMALLEST_STEPS)

  const steps = computed(() => {
    const [first, end] = visibleSteps(model.value, axis.value, window.value)
    return end > first ? { first: model.value.steps[first], last: model.value.steps[end - 1] } : null
  })

  function begin(): void {
    const newest = model.value.steps[model.value.steps.length - 1]
    const last = asked.to ?? newest
    window.value = fit(windowOfSteps(model.value, axis.value, asked.from ?? last - FIRST_STEPS + 1, last), limits.value)
    if (rank !== null) selection.value = { rank, step: number(route.query.step) ?? newest }
  }
  function show(next: Window): void {
    window.value = fit(next, limits.value)
    following.value = window.value.to >= limits.value.to
  }

  watch(
    model,
    (now, before) => {
      if (now.steps.length === 0) return
      if (!before || before.steps.length === 0) begin()
      else if (following.value) window.value = pan(window.value, limits.value.to - window.value.to, limits.value)
    },
    { immediate: true },
  )
  watch(axis, (to, from) => {
    const [first, end] = visibleSteps(model.value, from, window.value)
    if (end > first) window.value = windowOfSteps(model.value, to, model.value.steps[first], model.value.steps[end - 1])
  })
  useAddress({ axis, following, selection, steps })

  return {
    axis,
    window,
    following,
    selection,
    steps,
    setAxis: (next) => (axis.value = next),
    select: (next) => (selection.value = next),
    show,
    showSteps: (first, last) => show(windowOfSteps(model.value, axis.value, first, last)),
    zoomBy: (factor, around) => {
      const anchor = around ?? (following.value ? window.value.to : (window.value.from + window.value.to) / 2)
      show(zoom(window.value, factor, anchor, limits.value, smallest.value))
    },
    panBy: (share) => show(pan(window.value, share * (window.value.to - window.value.from), limits.value)),
    showAll: () => show(limits.value),
    follow: () => {
      following.value = !following.value
      if (following.value) window.value = pan(window.value, limits.value.to - window.value.to, limits.value)
    },
  }
}
