import { describe, expect, it } from 'vitest'
import { fillIn } from '@/composables/useText'
import type { Metrics } from '@/api/types'
import { withRow } from '@/composables/useMetrics'
import { en } from '@/locales/en'
import { zh } from '@/locales/zh'

const placeholders = (text: string): string[] => [...text.matchAll(/\{(\w+)\}/g)].map(([, name]) => name).sort()

describe('dictionaries', () => {
  it.each(Object.keys(en) as (keyof typeof en)[])('%s has the same placeholders in both languages', (key) => {
    expect(placeholders(zh[key])).toEqual(placeholders(en[key]))
  })
})

/** Names and symbols that Chinese texts write so too. */
const NAMES = new Set('English Rank GPU NCCL RAS DP NVLink MLP noise nat Logit lens top pca query key Top the end'.split(' '))

it('no text of the Chinese page is left in English', () => {
  const words = (text: string): string[] => text.replace(/\{\w+\}/g, '').match(/[A-Za-z]{2,}/g) ?? []
  const left = (Object.keys(zh) as (keyof typeof zh)[]).filter((key) => !/[\u4e00-\u9fff]/.test(zh[key]) && words(zh[key]).some((word) => !NAMES.has(word)))
  expect(left).toEqual([])
})

describe('fillIn', () => {
  it('fills what it knows', () => expect(fillIn('{a} of {b}', { a: 1 })).toBe('1 of {b}'))
})

describe('withRow', () => {
  const empty: Metrics = { step: [], unix_seconds: [], step_seconds: [], loss: [], learning_rate: [], grad_norm: [], tokens_per_second: [], tflops_per_gpu: [] }
  const row = (step: number, loss: number) => ({ step, unix_seconds: 0, step_seconds: null, loss, learning_rate: null, grad_norm: null, tokens_per_second: null, tflops_per_gpu: null })

  it('appends, replaces and inserts by step', () => {
    const rows = [row(1, 9), row(3, 7), row(3, 6), row(2, 8)].reduce<Metrics>((metrics, one) => withRow(metrics, one, 10), empty)
    expect(rows.step).toEqual([1, 2, 3])
    expect(rows.loss).toEqual([9, 8, 6])
    expect(withRow(rows, row(4, 5), 2).step).toEqual([3, 4])
  })
})
