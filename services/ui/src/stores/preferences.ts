import { usePreferredDark, useStorage } from '@vueuse/core'
import { defineStore } from 'pinia'
import { computed } from 'vue'
import type { Zone } from '@/lib/format'

export type Theme = 'system' | 'light' | 'dark'
export type Locale = 'en' | 'zh'

/** What a person has chosen on this device. */
export const usePreferences = defineStore('preferences', () => {
  const theme = useStorage<Theme>('megatronapp.theme', 'system')
  const locale = useStorage<Locale>('megatronapp.locale', navigator.language.startsWith('zh') ? 'zh' : 'en')
  /** Of times on the page: the device's, or that of machines' logs. */
  const zone = useStorage<Zone>('megatronapp.zone', 'local')
  const alerts = useStorage('megatronapp.alerts', false)
  const hotkeys = useStorage('megatronapp.hotkeys', true)
  const prefersDark = usePreferredDark()
  const shade = computed(() => (theme.value === 'system' ? (prefersDark.value ? 'dark' : 'light') : theme.value))
  return { theme, locale, zone, alerts, hotkeys, shade }
})
