import { useEventListener } from '@vueuse/core'
import { onScopeDispose, shallowReactive } from 'vue'
import type { Hotkey } from '@/lib/hotkeys'
import { HotkeyMatcher, isTyping } from '@/lib/hotkeys'
import { usePreferences } from '@/stores/preferences'

const active = shallowReactive(new Set<Hotkey>())

/** Binds keys as long as the calling component lives. */
export function useHotkeys(bindings: readonly Hotkey[]): void {
  for (const binding of bindings) active.add(binding)
  onScopeDispose(() => {
    for (const binding of bindings) active.delete(binding)
  })
}

/** The one listener; the shell installs it. */
export function listenForHotkeys(): void {
  const matcher = new HotkeyMatcher()
  const preferences = usePreferences()
  useEventListener(document, 'keydown', (event: KeyboardEvent) => {
    if (!preferences.hotkeys || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return
    if (isTyping(event.target) || document.querySelector('dialog[open]')) return
    const binding = matcher.match(event.key, event.timeStamp, [...active])
    if (!binding) return
    event.preventDefault()
    binding.run()
  })
}
