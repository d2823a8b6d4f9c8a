import type { RowPlace } from '@/draw/scope/points'
import { spread } from '@/draw/scope/points'
import { candidatesOf } from '@/scope/picture'
import type { Picture } from '@/scope/picture'
import { STATE } from '@/scope/values'
import { visible } from './generation'
import type { HeadMap } from './headScores'
import { HEAD_SCORES, scoreOf } from './headScores'
import { edgesOf } from './histogram'
import type { LayerStatistics } from './layerStatistics'

/** What is written as CSV: the words of a file are the protocol’s, whatever the page’s language. */
export interface Table {
  readonly header: readonly string[]
  readonly rows: readonly (readonly (number | string | null)[])[]
}

/** All steps that are kept, not the newest alone. */
export function statisticsTable(statistics: LayerStatistics, names: readonly string[]): Table {
  const all = names.map((_, index) => statistics.over(index))
  const { layers, steps } = statistics
  const cells = steps.flatMap((step, column) => layers.map((layer, row) => ({ step, layer, at: row * steps.length + column })))
  const watched = cells.filter(({ step, layer }) => statistics.has(step, layer))
  return { header: ['step', 'layer', ...names], rows: watched.map(({ step, layer, at }) => [step, layer, ...all.map((values) => values[at])]) }
}

/** Replicas that did not come are left out. */
export function replicasTable(pictures: readonly Picture[], names: readonly string[]): Table {
  const rows = pictures.flatMap(({ frame: { dims, layer, step }, values, states }) =>
    Array.from({ length: dims[0] ?? 0 }, (_, replica) => replica * names.length).flatMap((at, replica) =>
      states[at] === STATE.missing ? [] : [[step, layer, replica, ...values.subarray(at, at + names.length)]],
    ),
  )
  return { header: ['step', 'layer', 'replica', ...names], rows }
}

/** A bin’s end is the next one’s begin. */
export function histogramTable(pictures: readonly Picture[], expression: string): Table {
  const rows = pictures.flatMap(({ frame: { dims, layer, step }, values }) => {
    const bins = dims.at(-1) ?? 0
    const edge = edgesOf(expression, bins)
    return Array.from({ length: bins }, (_, bin) => [step, layer, edge(bin), edge(bin + 1), values[bin]])
  })
  return { header: ['step', 'layer', 'from', 'to', 'count'], rows }
}

/** What each head does; an empty cell: it can’t be said. */
export function headsTable(maps: readonly HeadMap[], ids: readonly number[]): Table {
  const numberOf = (value: number): number | null => (Number.isNaN(value) ? null : value)
  const sorted = [...maps].sort((a, b) => a.layer - b.layer || a.head - b.head)
  return { header: ['layer', 'head', ...HEAD_SCORES], rows: sorted.map((map) => [map.layer, map.head, ...HEAD_SCORES.map((score) => numberOf(scoreOf(map, score, ids)))]) }
}

/** Each row on the components, headed by their shares of the variance. */
export function componentsTable(picture: Picture, tokenAt: (place: RowPlace) => string): Table {
  const components = picture.frame.dims.at(-1) ?? 0
  const { places } = spread(picture)
  const headers = Array.from({ length: components }, (_, i) => [`component ${i + 1}`, picture.explained?.[i] === undefined ? '' : `(${(100 * picture.explained[i]).toFixed(1)} %)`].join(' ').trim())
  const rows = places.map((place, row) => [
    place?.step ?? null, place?.entry ?? null, place?.position ?? null, place ? visible(tokenAt(place)) : '',
    ...picture.values.subarray(row * components, (row + 1) * components),
  ])
  return { header: ['step', 'entry', 'position', 'token', ...headers], rows }
}

/** Probabilities are of tokens alone. */
export function candidatesTable(pictures: readonly Picture[], ofTokens: boolean): Table {
  const rows = pictures.flatMap((picture) =>
    candidatesOf(picture).flatMap((row, at) =>
      row.map(({ id, value, probability }, rank) => [picture.frame.step, picture.frame.layer, at, rank + 1, id, value, ...(ofTokens ? [probability] : [])]),
    ),
  )
  return { header: ['step', 'layer', 'row', 'rank', 'id', 'value', ...(ofTokens ? ['probability'] : [])], rows }
}
