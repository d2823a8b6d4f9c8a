import type { Picture } from '@/scope/picture'
import type { Subscribe } from '@/scope/messages'
import { visible } from './generation'

/** Positions along a text, in the words of sites. */
export const POSITIONS: readonly string[] = ['token', 'query', 'key']
const LONGEST_NAME = 7
const ENTRY = 6

/** Texts by id, of a frame of ids (`megatronapp.core.scope.token_texts`); of what is cut short those before. */
export function textsOf({ frame }: Picture): Map<number, string> {
  const texts = new Map<number, string>()
  const bytes = frame.sections.get('TOKEN_TEXTS') ?? new Uint8Array(0)
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length)
  const decoder = new TextDecoder()
  for (let at = 0; at + ENTRY <= bytes.length; ) {
    const [id, end] = [view.getUint32(at, true), at + ENTRY + view.getUint16(at + 4, true)]
    if (end > bytes.length) break
    texts.set(id, decoder.decode(bytes.subarray(at + ENTRY, end)))
    at = end
  }
  return texts
}

/** What a page asks for beside its panels. */
export const textExpression = (row: number): string => `tokens | batch(${row})`

/** The panels of a recording: what was looked at, without the texts beside it. */
export function panelsOf(subscriptions: readonly Subscribe[] = []): string[] {
  return [...new Set(subscriptions.map(({ expression }) => expression))].filter((one) => !/^tokens \| batch\(-?\d+\)$/.test(one))
}

export interface Text {
  readonly ids: readonly number[]
  readonly texts: readonly string[]
}

/** Of one row of ids; a token without a text goes by its number. */
export function textOf(picture: Picture): Text {
  const texts = textsOf(picture)
  const ids = [...picture.values]
  return { ids, texts: ids.map((id) => texts.get(id) ?? (Number.isFinite(id) ? `#${id}` : '')) }
}

/** An entry of an axis along a text. */
export interface TokenAt {
  readonly position: number
  /** Undefined: not known. */
  readonly text: string | undefined
}

/** A row or column of a file: its position and the whole token. */
export const headingOf = ({ position, text }: TokenAt): string => [position, visible(text ?? '')].join(' ').trimEnd()

/** A token beside a row or column: short, in one line, and without what would turn the line around. */
export function nameOfToken(text: string | undefined, place: number): string {
  const whole = visible(text ?? '').replaceAll(/[\p{Cc}\p{Cf}]/gu, '·')
  const name = whole.trim() || (whole ? '␣' : '')
  const letters = [...name]
  return name ? (letters.length > LONGEST_NAME ? `${letters.slice(0, LONGEST_NAME - 1).join('')}…` : name) : String(place)
}

/** Which positions of a text the entries of an axis are, after an expression's slices; null: entries are no positions. */
export function positionsOf(expression: string, axis: string, total: number): number[] | null {
  let left = Array.from({ length: total }, (_, at) => at)
  for (const operation of expression.split('|').slice(1)) {
    const [, what = '', inner = ''] = /^\s*(\w+)\s*(?:\(([^)]*)\))?\s*$/.exec(operation) ?? []
    if (what === 'last' && axis !== 'key') left = left.slice(-Number(inner))
    else if (what === axis || (what === 'tok' && axis === 'token')) left = sliced(left, inner)
    else if (what === 'pool' && inner.split(',')[0].trim() === axis) return null
  }
  return left
}

function sliced(all: readonly number[], text: string): number[] {
  if (text.trim() === '*') return [...all]
  const [start, stop, step] = text.split(':').map((end) => (end.trim() === '' ? undefined : Number(end)))
  return all.slice(start ?? 0, stop).filter((_, at) => at % (step ?? 1) === 0)
}
