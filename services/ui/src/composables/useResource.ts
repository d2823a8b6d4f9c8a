import type { ShallowRef, WatchSource } from 'vue'
import { onScopeDispose, shallowRef, watch } from 'vue'
import { ApiError } from '@/api/client'

const AGAIN_MS = 3000

export interface Resource<T> {
  /** The last good answer; it stays while a newer one is on its way or has failed. */
  readonly data: ShallowRef<T | undefined>
  readonly error: ShallowRef<Error | undefined>
  readonly refresh: () => Promise<void>
}

/** Whether the platform itself has refused: it would again. */
const isRefused = (failure: unknown): boolean => failure instanceof ApiError && failure.status < 500

/** Loads a value now and whenever `key` changes; an answer that was overtaken is thrown away, and one that does not come is asked for again. */
export function useResource<K, T>(key: WatchSource<K>, load: (key: K, signal: AbortSignal) => Promise<T>): Resource<T> {
  const data = shallowRef<T>()
  const error = shallowRef<Error>()
  let current: K
  let running: AbortController | undefined
  let again: ReturnType<typeof setTimeout> | undefined

  const stop = (): void => {
    clearTimeout(again)
    running?.abort()
  }
  const refresh = async (): Promise<void> => {
    stop()
    const { signal } = (running = new AbortController())
    try {
      const answer = await load(current, signal)
      if (signal.aborted) return
      data.value = answer
      error.value = undefined
    } catch (failure) {
      if (signal.aborted) return
      error.value = failure instanceof Error ? failure : new Error(String(failure))
      if (!isRefused(failure)) again = setTimeout(() => void refresh(), AGAIN_MS)
    }
  }

  watch(
    key,
    (value) => {
      current = value
      data.value = undefined
      void refresh()
    },
    { immediate: true },
  )
  onScopeDispose(stop)
  return { data, error, refresh }
}
