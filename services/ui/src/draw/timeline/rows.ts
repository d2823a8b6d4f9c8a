import type { Stage } from '@/lib/stages'
import { byLayers } from '@/lib/stages'
import type { StepGrid } from './grid'

export type Grouping = 'stage' | 'replica' | 'node' | 'none'
export type Sorting = 'rank' | 'slowest'

/** Where a rank stands, as far as rows are ordered by it. */
export interface RankPlace extends Stage {
  readonly rank: number
  readonly node: string
  readonly device: string
  readonly replica: number
}

/** Rows of one group, in the order in which they are shown. */
export interface RowGroup {
  readonly key: string
  readonly grouping: Grouping
  readonly rows: readonly number[]
}

const KEYS: Record<Grouping, (place: RankPlace) => string> = {
  stage: ({ stage, role }) => (role ? `${stage} ${role}` : String(stage)),
  replica: (place) => String(place.replica),
  node: (place) => place.node,
  none: () => '',
}

const inOrder = new Intl.Collator(undefined, { numeric: true }).compare

/** The rows of a grid that pass the filter, in groups; `slowness` orders them within one, greatest first. */
export function groupRows(
  grid: StepGrid,
  placeOf: (rank: number) => RankPlace,
  grouping: Grouping,
  keep: (place: RankPlace) => boolean,
  slowness?: Float32Array,
): RowGroup[] {
  const groups = new Map<string, { place: RankPlace; rows: number[] }>()
  const places = Array.from(grid.ranks, placeOf)
  places.forEach((place, row) => {
    if (!keep(place)) return
    const key = KEYS[grouping](place)
    const group = groups.get(key)
    if (group) group.rows.push(row)
    else groups.set(key, { place, rows: [row] })
  })
  const key = (row: number): number => (slowness && !Number.isNaN(slowness[row]) ? slowness[row] : -Infinity)
  const sorted = (rows: number[]): number[] => (slowness ? rows.sort((a, b) => key(b) - key(a) || a - b) : rows)
  const listed = [...groups]
  const ofStages = byLayers(places)
  if (grouping === 'stage') listed.sort(([, a], [, b]) => ofStages(a.place, b.place))
  else listed.sort(([a], [b]) => inOrder(a, b))
  return listed.map(([name, { rows }]) => ({ key: name, grouping, rows: sorted(rows) }))
}

/** A number for each set of ranks that do the same: those of one stage and one role. */
export function peersOf({ stage, role }: RankPlace): number {
  return 2 * stage + (role === 'forward' ? 1 : 0)
}

/** How slow each row is over buckets [first, end): its median compute ratio. */
export function slownessOf(grid: StepGrid, first: number, end: number): Float32Array {
  return Float32Array.from(grid.ranks, (_, row) => grid.medianRatio(row, first, end))
}

/** `3`, `0-7, 12` are ranks; anything else is a part of a node's or a device's name. Empty: everything. */
export function rankFilter(text: string): (place: RankPlace) => boolean {
  const wanted = text.trim().toLowerCase()
  if (!wanted) return () => true
  const ranges = parseRanks(wanted)
  if (ranges) return ({ rank }) => ranges.some(([low, high]) => rank >= low && rank <= high)
  return ({ node, device }) => node.toLowerCase().includes(wanted) || device.toLowerCase().includes(wanted)
}

const RANGE = /^(\d{1,7})(?:\s*[-–]\s*(\d{1,7}))?$/

/** "0-3, 8" → [[0, 3], [8, 8]]; null for what is none. */
export function parseRanks(text: string): [number, number][] | null {
  const ranges: [number, number][] = []
  for (const part of text.split(/[,，]/)) {
    const [, low, high] = RANGE.exec(part.trim()) ?? []
    if (low === undefined) return null
    ranges.push([Number(low), Number(high ?? low)])
  }
  return ranges
}

