// @vitest-environment happy-dom
import { readFileSync } from 'node:fs'
import { resolve } from 'node:path'
import { createPinia, setActivePinia } from 'pinia'
import { beforeEach, describe, expect, it } from 'vitest'
import { useScopeWords } from '@/composables/useScopeWords'
import { en } from '@/locales/en'
import { zh } from '@/locales/zh'
import { usePreferences } from '@/stores/preferences'

const LIMITS = readFileSync(resolve(import.meta.dirname, '../../../scope-gateway/megatronapp/gateway/scope/limits.py'), 'utf8')
const OF_GATEWAY = [...(/class Close\(IntEnum\):\n((?: {4}\w+ = \d+\n)+)/.exec(LIMITS)?.[1] ?? '').matchAll(/ = (\d+)/g)].map(([, code]) => Number(code))
/** Of browsers, and of the server under the gateway. */
const OF_OTHERS = [1000, 1001, 1006, 1009, 1011, 1012, 4403]

function words(locale: 'en' | 'zh') {
  usePreferences().locale = locale
  return useScopeWords()
}

beforeEach(() => setActivePinia(createPinia()))

it('knows the gateway’s codes', () => expect(OF_GATEWAY).toContain(4400))

describe.each([...OF_GATEWAY, ...OF_OTHERS])('close code %i', (code) => {
  const key = `scope.close.${code}` as keyof typeof en

  it('is said in the page’s language', () => {
    expect(words('en').cut({ code, reason: '' })).toBe(en[key])
    expect(words('zh').cut({ code, reason: '' })).toBe(zh[key])
    expect(zh[key]).toMatch(/[\u4e00-\u9fff]/)
    expect(en[key]).toBeTruthy()
  })
})

describe.each(['en', 'zh'] as const)('in %s', (locale) => {
  const said = { en, zh }[locale]

  it('tells who takes too little from a run that changes hands', () => {
    expect(words(locale).cut({ code: 1013, reason: 'too slow; connect again' })).toBe(said['scope.close.1013'])
    expect(words(locale).cut({ code: 1013, reason: 'another replica has this run now; connect again' })).toBe(said['scope.close.moved'])
  })

  it('falls back on the text of a code that is not known', () => {
    expect(words(locale).cut({ code: 4999, reason: 'too old' })).toBe(said['scope.close.other'].replace('{reason}', 'too old'))
    expect(words(locale).cut({ code: 4999, reason: '' })).toBe('')
  })
})
