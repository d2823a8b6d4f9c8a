import { useTitle } from '@vueuse/core'
import type { Ref } from 'vue'
import { computed, nextTick, onScopeDispose } from 'vue'
import { useRoute, useRouter } from 'vue-router'
import type { Live } from '@/api/live'
import { useText } from './useText'

/** The document's title: "Timeline · team/gpt – MegatronApp", with the number of alerts that are open. */
export function usePageTitle(live: Live): void {
  const route = useRoute()
  const t = useText()
  const title = computed(() => {
    const { title: page, ofJob } = route.meta
    const run = String(route.params.run)
    const parts = [page && t(page), ofJob && (live.jobs.get(run)?.job ?? run)].filter(Boolean).join(' · ')
    const open = [...live.findings.values()].filter((finding) => finding.state === 'open' && finding.page).length
    return `${open ? `(${open}) ` : ''}${parts ? `${parts} – ` : ''}MegatronApp`
  })
  useTitle(title)
}

/** After a navigation to another page the focus begins there: at its heading, else at the main region. */
export function useFocusOnNavigation(main: Readonly<Ref<HTMLElement | null>>): void {
  const remove = useRouter().afterEach(async (to, from, failure) => {
    if (failure || to.path === from.path || from.matched.length === 0) return
    await nextTick()
    const heading = main.value?.querySelector<HTMLElement>('h1')
    if (heading && !heading.hasAttribute('tabindex')) heading.tabIndex = -1
    ;(heading ?? main.value)?.focus({ preventScroll: true })
  })
  onScopeDispose(remove)
}
