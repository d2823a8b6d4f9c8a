import { loadLocale } from '@/composables/useText'

await loadLocale('en')
await loadLocale('zh')

/** happy-dom lays nothing out: all there is is on screen. */
class AllSeen {
  constructor(private readonly seen: (entries: readonly { target: Element; isIntersecting: boolean }[]) => void) {}
  observe(target: Element): void {
    this.seen([{ target, isIntersecting: true }])
  }
  unobserve(): void {
    // It is told once.
  }
  disconnect(): void {
    // It watches nothing.
  }
}
Object.assign(globalThis, { IntersectionObserver: AllSeen })
