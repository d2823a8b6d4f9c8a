import { watch } from 'vue'
import { useRouter } from 'vue-router'
import type { Live } from '@/api/live'
import type { Finding } from '@/api/types'
import { useFindingText } from '@/composables/useFindingText'
import { usePreferences } from '@/stores/preferences'

const pages = ({ page, state }: Finding): boolean => page && state === 'open'

/** Whether this browser may be asked; over plain HTTP from elsewhere, and in some on phones, it may not. */
export const alertsPossible = (): boolean => 'Notification' in window && window.isSecureContext

/** Asks the person, once; after a click alone. True where they agreed. */
export async function askForAlerts(): Promise<boolean> {
  return (await Notification.requestPermission()) === 'granted'
}

/** A notification of the browser's for each finding that begins to page while the page is open, where a person wants them. */
export function useFindingAlerts(live: Live): void {
  const router = useRouter()
  const words = useFindingText()
  const preferences = usePreferences()
  /** Of these is nothing new to tell: those of before the page was opened among them. */
  let known: Set<string> | null = null

  function show(finding: Finding): void {
    // One of several tabs: the same tag replaces it without another sound.
    const shown = new Notification(`${words.title(finding)} ${words.effect(finding)}`.trim(), { body: finding.job, tag: finding.id })
    shown.onclick = () => {
      window.focus()
      shown.close()
      void router.push({ name: 'health', query: { finding: finding.id } })
    }
  }

  watch(
    () => (live.ready.value ? [...live.findings.values()].filter(pages) : null),
    (paging) => {
      if (!paging) return
      const fresh = known === null ? [] : paging.filter(({ id }) => !known?.has(id))
      known = new Set([...(known ?? []), ...paging.map(({ id }) => id)])
      if (!preferences.alerts || !alertsPossible() || Notification.permission !== 'granted') return
      for (const finding of fresh) {
        try {
          show(finding)
        } catch {
          // Browsers on phones have the class and refuse to make one.
          preferences.alerts = false
        }
      }
    },
    { immediate: true },
  )
}
