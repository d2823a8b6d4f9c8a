import type { ShallowRef, WatchSource } from 'vue'
import { onScopeDispose, shallowRef, watch } from 'vue'

export interface Resource<T> {
  /** The last good answer; it stays while a newer one is on its way or has failed. */
  readonly data: ShallowRef<T | undefined>
  readonly error: ShallowRef<Error | undefined>
  readonly refresh: () => Promise<void>
}

/** Loads a value now and whenever `key` changes; an answer that was overtaken is thrown away. */
export function useResource<K, T>(key: WatchSource<K>, load: (key: K, signal: AbortSignal) => Promise<T>): Resource<T> {
  const data = shallowRef<T>()
  const error = shallowRef<Error>()
  let current: K
  let running: AbortController | undefined

  const refresh = async (): Promise<void> => {
    running?.abort()
    const { signal } = (running = new AbortController())
    try {
      const answer = await load(current, signal)
      if (signal.aborted) return
      data.value = answer
      error.value = undefined
    } catch (failure) {
      if (!signal.aborted) error.value = failure instanceof Error ? failure : new Error(String(failure))
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
  onScopeDispose(() => running?.abort())
  return { data, error, refresh }
}
