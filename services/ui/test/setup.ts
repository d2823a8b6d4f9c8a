import { loadLocale } from '@/composables/useText'

await loadLocale('en')
await loadLocale('zh')
