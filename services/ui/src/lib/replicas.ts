import { median } from './statistics'
import type { Picture } from '@/scope/picture'
import { groupOf } from '@/scope/sites'
import { siteOf } from '@/scope/expression'
import { STATE } from '@/scope/values'

/** How far apart the data-parallel replicas of one layer are, in one statistic. */
export interface Apart {
  readonly layer: number
  readonly least: number
  readonly most: number
  /** Of the larger one's magnitude; infinite where some replica has no number and another has. */
  readonly share: number
  /** The one farthest from the others' middle; null: of two nobody can say, or none is. */
  readonly replica: number | null
}

export const showsReplicas = (expression: string): boolean => /\|\s*stats\([^)]*\)\s*\|\s*replicas\b/.test(expression)

/** Parameters, and what the optimizer keeps of them, are the same on every replica; what is computed of other data is not. */
export const mustAgree = (expression: string): boolean => ['weights', 'optimizer'].includes(groupOf(siteOf(expression)))

/** Of pictures [replica, statistic] by layer; -1: of the model. A replica that did not come counts for nothing. */
export function apartIn(pictures: ReadonlyMap<number, Picture>, statistic: number): Apart[] {
  return [...pictures].sort(([a], [b]) => a - b).flatMap(([layer, { frame, values, states }]) => {
    const [replicas = 0, statistics = 0] = frame.dims
    const at = Array.from({ length: frame.dims.length === 2 ? replicas : 0 }, (_, replica) => replica * statistics + statistic)
    const came = at.flatMap((index, replica) => (states[index] === STATE.missing ? [] : [{ replica, value: values[index] }]))
    return came.length > 1 ? [apartOf(layer, came)] : []
  })
}

function apartOf(layer: number, came: readonly { readonly replica: number; readonly value: number }[]): Apart {
  const finite = came.map(({ value }) => value).filter(Number.isFinite)
  const middle = median(finite)
  const [least, most] = [Math.min(...finite), Math.max(...finite)]
  const distance = (value: number): number => (Number.isFinite(value) ? Math.abs(value - middle) : Infinity)
  const far = came.reduce((a, b) => (distance(b.value) > distance(a.value) ? b : a))
  const same = finite.length === 0 || (finite.length === came.length && least === most)
  const share = same ? 0 : finite.length < came.length ? Infinity : (most - least) / Math.max(Math.abs(least), Math.abs(most))
  return { layer, least, most, share, replica: same || (came.length === 2 && share !== Infinity) ? null : far.replica }
}

/** The layer whose replicas are farthest apart; undefined: none are. */
export function farthest(all: readonly Apart[]): Apart | undefined {
  const [first] = [...all].sort((a, b) => b.share - a.share)
  return first?.share ? first : undefined
}
