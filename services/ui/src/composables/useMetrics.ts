import { onScopeDispose, shallowRef } from 'vue'
import type { ShallowRef } from 'vue'
import { getMetrics } from '@/api/client'
import { useLive } from '@/api/live'
import type { Metrics } from '@/api/types'

export type StepRow = { [K in keyof Metrics]: Metrics[K][number] }

/** A step that is known already is replaced: the ranks of a step report one after the other. */
export function withRow(metrics: Metrics, row: StepRow): Metrics {
  const at = metrics.step.findLastIndex((step) => step < row.step) + 1
  const drop = metrics.step[at] === row.step ? 1 : 0
  const put = <T>(column: readonly T[], value: T): T[] => column.toSpliced(at, drop, value)
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

/** A job's series, kept up to date by the event stream. */
export function useMetrics(run: string): { metrics: ShallowRef<Metrics | undefined>; error: ShallowRef<Error | undefined>; refresh: () => Promise<void> } {
  const live = useLive()
  const metrics = shallowRef<Metrics>()
  const error = shallowRef<Error>()
  const refresh = async (): Promise<void> => {
    try {
      metrics.value = await getMetrics(run)
      error.value = undefined
    } catch (failure) {
      error.value = failure as Error
    }
  }
  const stop = live.onStep((event) => {
    if (event.run === run && metrics.value) metrics.value = withRow(metrics.value, event.row)
  })
  onScopeDispose(stop)
  void refresh()
  return { metrics, error, refresh }
}
