import { shallowReactive } from 'vue'
import type { en } from '@/locales/en'
import type { Locale } from '@/stores/preferences'
import { usePreferences } from '@/stores/preferences'

export type Messages = Record<keyof typeof en, string>
export type MessageKey = keyof typeof en
export type Translate = (key: MessageKey, values?: Record<string, string | number>) => string

const LOADERS: Record<Locale, () => Promise<Messages>> = {
  en: async () => (await import('@/locales/en')).en,
  zh: async () => (await import('@/locales/zh')).zh,
}
/** Dictionaries are files of their own, fetched when they are needed. */
const loaded = shallowReactive(new Map<Locale, Messages>())

export async function loadLocale(locale: Locale): Promise<void> {
  if (!loaded.has(locale)) loaded.set(locale, await LOADERS[locale]())
}

/** That of the chosen language; while it is on its way, the one before. */
function dictionary(locale: Locale): Partial<Record<string, string>> {
  return loaded.get(locale) ?? loaded.values().next().value ?? {}
}

/** Fills `{name}` in a message. */
export function fillIn(message: string, values: Record<string, string | number>): string {
  return message.replace(/\{(\w+)\}/g, (whole, name: string) => String(values[name] ?? whole))
}

export function useText(): Translate {
  const preferences = usePreferences()
  return (key, values = {}) => fillIn(dictionary(preferences.locale)[key] ?? '', values)
}

/** The message of a word from a closed vocabulary of the API; the word itself where the dictionary is older. */
export function useWord(): (prefix: string, word: string) => string {
  const known = useKnownWord()
  return (prefix, word) => known(prefix, word) ?? word.replaceAll('_', ' ')
}

/** The same, or undefined. */
export function useKnownWord(): (prefix: string, word: string, values?: Record<string, string | number>) => string | undefined {
  const preferences = usePreferences()
  return (prefix, word, values = {}) => {
    const message = dictionary(preferences.locale)[`${prefix}.${word}`]
    return message === undefined ? undefined : fillIn(message, values)
  }
}
