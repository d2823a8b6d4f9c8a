import { useThrottleFn } from '@vueuse/core'
import type { ShallowRef } from 'vue'
import { onScopeDispose, shallowRef, watch } from 'vue'
import { getMetrics } from '@/api/client'
import { useLive } from '@/api/live'
import type { Metrics } from '@/api/types'

const REFRESH_MS = 1000
const MAX_STEPS = 2000

export type StepRow = { [K in keyof Metrics]: Metrics[K][number] }

/** A step that is known already is replaced: the ranks of a step report one after the other. */
export function withRow(metrics: Metrics, row: StepRow, keep: number): Metrics {
  const at = metrics.step.findLastIndex((step) => step < row.step) + 1
  const known = metrics.step[at] === row.step ? 1 : 0
  const put = <T>(column: readonly T[], value: T): T[] => column.toSpliced(at, known, value).slice(-keep)
  return {
    step: put(metrics.step, row.step),
    unix_seconds: put(metrics.unix_seconds, row.unix_seconds),
    step_seconds: put(metrics.step_seconds, row.step_seconds),
    loss: put(metrics.loss, row.loss),
    learning_rate: put(metrics.learning_rate, row.learning_rate),
    grad_norm: put(metrics.grad_norm, row.grad_norm),
    tokens_per_second: put(metrics.tokens_per_second, row.tokens_per_second),
    tflops_per_gpu: put(metrics.tflops_per_gpu, row.tflops_per_gpu),
  }
}

export interface MetricsFeed {
  readonly metrics: ShallowRef<Metrics | undefined>
  readonly error: ShallowRef<Error | undefined>
  readonly refresh: () => Promise<void>
}

/** A job's series over its newest steps, kept up to date by the event stream. */
export function useMetrics(run: string, keep = MAX_STEPS): MetricsFeed {
  const live = useLive()
  const metrics = shallowRef<Metrics>()
  const error = shallowRef<Error>()

  const refresh = async (): Promise<void> => {
    try {
      metrics.value = await getMetrics(run, keep)
      error.value = undefined
    } catch (failure) {
      error.value = failure instanceof Error ? failure : new Error(String(failure))
    }
  }
  const refreshSoon = useThrottleFn(refresh, REFRESH_MS, true)

  const stop = live.onStep((event) => {
    if (event.run !== run || !metrics.value) return
    const newest = metrics.value.step.at(-1) ?? 0
    metrics.value = withRow(metrics.value, event.row, keep)
    // A slow viewer is not sent every step: the series has them all.
    if (event.row.step > newest + 1) void refreshSoon()
  })
  onScopeDispose(stop)
  watch(live.snapshots, refresh, { immediate: true })
  return { metrics, error, refresh }
}
