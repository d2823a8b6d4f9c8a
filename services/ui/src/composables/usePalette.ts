import type { ShallowRef } from 'vue'
import { shallowRef, watch } from 'vue'
import type { Palette } from '@/draw/palette'
import { readPalette } from '@/draw/palette'
import { usePreferences } from '@/stores/preferences'

/** The canvases' colours under the theme in force. */
export function usePalette(): ShallowRef<Palette> {
  const preferences = usePreferences()
  const palette = shallowRef(readPalette(document.documentElement))
  // After the flush, when the document's theme attribute has changed.
  watch(() => preferences.shade, () => (palette.value = readPalette(document.documentElement)), { flush: 'post' })
  return palette
}
