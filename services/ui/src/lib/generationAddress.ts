import type { LocationQuery, LocationQueryRaw } from 'vue-router'
import type { GenerationSettings } from './generation'
import { DEFAULT_SETTINGS } from './generation'

/** Prompts that are longer together do not fit into an address. */
export const MOST_CHARACTERS = 2000

const NUMBERS = { newTokens: 'tokens', temperature: 'temperature', topK: 'top_k', topP: 'top_p', topPDecay: 'decay', topPBound: 'bound', seed: 'seed', candidates: 'candidates', beamWidth: 'beam', lengthPenalty: 'penalty' } as const
type NumberName = keyof typeof NUMBERS

/** Prompts as typed, one a line, and how they are gone on with. */
export interface GenerationAddress {
  readonly typed: string
  readonly settings: GenerationSettings
}

export function readGeneration(query: LocationQuery): GenerationAddress {
  const text = (key: string): string => (typeof query[key] === 'string' ? query[key] : '')
  const given = Object.entries(NUMBERS).flatMap(([name, key]) => (/^\d{1,15}(\.\d{1,6})?$/.test(text(key)) ? [[name, Number(text(key))] as const] : []))
  return {
    typed: text('q').slice(0, MOST_CHARACTERS),
    settings: { ...DEFAULT_SETTINGS, ...Object.fromEntries(given), stopWords: wordsOf(text('stop')), stepwise: text('stepwise') === '1', chat: text('chat') === '1', addBos: text('bos') === '1' },
  }
}

/** What differs from what is usual. */
export function generationQuery({ typed, settings }: GenerationAddress): LocationQueryRaw {
  const numbers = Object.entries(NUMBERS).map(([name, key]) => [key, settings[name as NumberName] === DEFAULT_SETTINGS[name as NumberName] ? undefined : String(settings[name as NumberName])])
  return { ...Object.fromEntries(numbers), q: typed && typed.length <= MOST_CHARACTERS ? typed : undefined, stop: settings.stopWords.length ? textOfWords(settings.stopWords) : undefined, stepwise: settings.stepwise ? '1' : undefined, chat: settings.chat ? '1' : undefined, bos: settings.addBos ? '1' : undefined }
}

/** `the end, \n` → two words; a backslash keeps a comma, and \n is a line's end. */
export function wordsOf(text: string): string[] {
  const words = text.match(/(?:\\.|[^,\\])+/g) ?? []
  return words.map((word) => word.trim().replace(/\\(.)/g, (_, letter: string) => (letter === 'n' ? '\n' : letter))).filter((word) => word !== '')
}

export const textOfWords = (words: readonly string[]): string => words.map((word) => word.replace(/[\\,]/g, '\\$&').replaceAll('\n', '\\n')).join(', ')
