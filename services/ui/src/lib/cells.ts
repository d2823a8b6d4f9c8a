import type { Translate } from '@/composables/useText'
import type { Picture } from '@/scope/picture'
import { STATE } from '@/scope/values'
import { formatNumber } from './format'

/** A cell in words: its value, or what it is instead. */
export function cellText({ values, states }: Pick<Picture, 'values' | 'states'>, index: number, t: Translate): string {
  if (states[index] === STATE.masked) return t('scope.masked')
  if (states[index] === STATE.missing) return t('scope.missing')
  if (states[index] === STATE.nan) return 'NaN'
  const value = values[index]
  if (value === undefined) return '–'
  return Number.isFinite(value) ? signed(value) : value > 0 ? '+∞' : '−∞'
}

/** With a true minus. */
export const signed = (value: number, digits = 4): string => formatNumber(value, digits).replace('-', '−')

/** A probability: two digits, also of small ones: "78 %", "0.46 %". */
export const formatShare = (share: number): string => `${formatNumber(100 * share, 2)} %`
