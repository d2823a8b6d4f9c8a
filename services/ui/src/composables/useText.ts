import { en } from '@/locales/en'
import { zh } from '@/locales/zh'
import type { Locale } from '@/stores/preferences'
import { usePreferences } from '@/stores/preferences'

export type Messages = Record<keyof typeof en, string>
export type MessageKey = keyof typeof en
export type Translate = (key: MessageKey, values?: Record<string, string | number>) => string

const DICTIONARIES: Record<Locale, Messages> = { en, zh }

/** Fills `{name}` in a message. */
export function fillIn(message: string, values: Record<string, string | number>): string {
  return message.replace(/\{(\w+)\}/g, (whole, name: string) => String(values[name] ?? whole))
}

export function useText(): Translate {
  const preferences = usePreferences()
  return (key, values = {}) => fillIn(DICTIONARIES[preferences.locale][key], values)
}

/** The message of a word from a closed vocabulary of the API; the word itself where the dictionary is older. */
export function useWord(): (prefix: string, word: string) => string {
  const preferences = usePreferences()
  return (prefix, word) => {
    const dictionary: Record<string, string> = DICTIONARIES[preferences.locale]
    return dictionary[`${prefix}.${word}`] ?? word.replaceAll('_', ' ')
  }
}
