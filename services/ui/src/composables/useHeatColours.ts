import type { ComputedRef, Ref } from 'vue'
import { computed, shallowRef, watch } from 'vue'
import type { HeatColours, Range } from '@/draw/scope/heat'
import { inksOf, isSigned, scaleOf, united } from '@/draw/scope/heat'
import { lut } from '@/draw/colourMap'
import { usePreferences } from '@/stores/preferences'
import { usePalette } from './usePalette'

/**
 * Colours of what is shown one frame after the other. The range grows with what comes and never shrinks by itself, so
 * that a colour means the same value in every frame of a panel; another `key` begins anew, as does `reset`.
 */
export function useHeatColours(
  shown: () => { readonly low: number; readonly high: number } | undefined,
  key: () => string,
): { readonly colours: ComputedRef<HeatColours>; readonly reset: () => void; readonly range: Readonly<Ref<Range>> } {
  const preferences = usePreferences()
  const palette = usePalette()
  const range = shallowRef<Range>({ low: 0, high: 0 })
  let known: Range | null = null
  let of = ''

  function reset(): void {
    known = null
    take()
  }
  function take(): void {
    const frame = shown()
    if (key() !== of) {
      of = key()
      known = null
    }
    known = frame ? united(known, frame.low, frame.high) : known
    const next = known ?? { low: 0, high: 0 }
    if (next.low !== range.value.low || next.high !== range.value.high) range.value = next
  }
  watch([shown, key], take, { immediate: true, flush: 'sync' })
  const colours = computed(() => ({
    scale: scaleOf(range.value),
    lut: lut(isSigned(range.value) ? 'diverging' : 'share', preferences.shade, palette.value.line),
    special: inksOf(palette.value),
  }))
  return { colours, reset, range }
}
