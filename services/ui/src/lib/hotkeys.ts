/** Keys that work anywhere outside text fields. A binding is one key ("?") or two in a row ("g j"). */
export interface Hotkey {
  readonly keys: string
  readonly run: () => void
}

const SEQUENCE_MS = 1200

export class HotkeyMatcher {
  private pending = ''
  private pressedAt = 0

  /** The binding that a key press completes, if any. */
  match(key: string, now: number, bindings: readonly Hotkey[]): Hotkey | undefined {
    const started = now - this.pressedAt < SEQUENCE_MS ? this.pending : ''
    const sequence = started ? `${started} ${key}` : key
    this.pressedAt = now
    const found = bindings.find((binding) => binding.keys === sequence) ?? bindings.find((binding) => binding.keys === key)
    this.pending = found ? '' : key
    return found
  }
}

export function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName))
}
