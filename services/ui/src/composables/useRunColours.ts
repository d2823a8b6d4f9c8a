import type { ComputedRef } from 'vue'
import { computed } from 'vue'
import { usePalette } from './usePalette'

const COUNT = 8

/** A colour for each run of a comparison, under the theme in force. */
export function useRunColours(): ComputedRef<readonly string[]> {
  const palette = usePalette()
  return computed(() => {
    void palette.value // it changes with the theme
    const style = getComputedStyle(document.documentElement)
    return Array.from({ length: COUNT }, (_, i) => style.getPropertyValue(`--run-${i + 1}`).trim())
  })
}
