// @vitest-environment happy-dom
import { describe, expect, it } from 'vitest'
import { HotkeyMatcher, isTyping } from '@/lib/hotkeys'

const run = (): void => undefined
const BINDINGS = [
  { keys: '?', run },
  { keys: 'g j', run },
  { keys: 'f', run },
]

describe('HotkeyMatcher', () => {
  it('finds a single key', () => expect(new HotkeyMatcher().match('?', 0, BINDINGS)?.keys).toBe('?'))

  it('finds two keys in a row', () => {
    const matcher = new HotkeyMatcher()
    expect(matcher.match('g', 0, BINDINGS)).toBeUndefined()
    expect(matcher.match('j', 300, BINDINGS)?.keys).toBe('g j')
  })

  it('forgets the first key after a while', () => {
    const matcher = new HotkeyMatcher()
    matcher.match('g', 0, BINDINGS)
    expect(matcher.match('j', 5000, BINDINGS)).toBeUndefined()
  })

  it('takes a single key after one that begins a sequence', () => {
    const matcher = new HotkeyMatcher()
    matcher.match('g', 0, BINDINGS)
    expect(matcher.match('f', 100, BINDINGS)?.keys).toBe('f')
  })
})

describe('isTyping', () => {
  it('is true in a text field alone', () => {
    expect(isTyping(document.createElement('input'))).toBe(true)
    expect(isTyping(document.createElement('button'))).toBe(false)
    expect(isTyping(null)).toBe(false)
  })
})
