import { describe, expect, it } from 'vitest'
import { wrapped } from '@/lib/export'

describe('wrapped', () => {
  const fits = (line: string): boolean => line.length <= 9

  it.each([
    ['Loss', ['Loss']],
    ['one two three four', ['one two', 'three', 'four']],
    ['unbreakable name', ['unbreakable', 'name']],
  ])('breaks %s at spaces where a line is full', (text, lines) => expect(wrapped(text, fits)).toEqual(lines))
})
