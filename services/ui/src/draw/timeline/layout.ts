import type { RowGroup } from './rows'

/** A rank's line in the overview; `index` is its row in the grid. */
export interface Row {
  readonly rank: number
  readonly index: number
  /** Its place among the rows of all groups, from the top; -1: it is pinned, and has another row below. */
  readonly place: number
  readonly y: number
  readonly height: number
}

export interface Group {
  /** Of pinned rows: null. */
  readonly group: RowGroup | null
  readonly y: number
  readonly height: number
  readonly rows: readonly Row[]
}

export interface Layout {
  readonly groups: readonly Group[]
  readonly rows: readonly Row[]
  /** Rows are too low for bars: cells are colours. */
  readonly dense: boolean
  readonly height: number
}

export const GROUP_HEADER = 22
export const GROUP_GAP = 6
const SMALLEST_BAR = 16
const TALLEST_BAR = 80
const PINNED = 24

/**
 * Stacks rows by group, pinned ones on top. Rows grow to fill `room` pixels within what reads well; with more ranks
 * than have room as bars they become lines of colours of at least a pixel, unless bars are asked for.
 */
export function layoutRows(
  ranks: ArrayLike<number>,
  groups: readonly RowGroup[],
  pinned: readonly number[],
  room: number,
  bars = false,
): Layout {
  const count = groups.reduce((sum, group) => sum + group.rows.length, 0)
  const taken = groups.length * (GROUP_HEADER + GROUP_GAP)
  const natural = (room - taken) / Math.max(1, count)
  const dense = !bars && natural < SMALLEST_BAR && count > 1
  const above = dense && pinned.length ? GROUP_HEADER + GROUP_GAP + pinned.length * PINNED : 0
  const height = dense
    ? Math.max(1, (room - taken - above) / count)
    : Math.floor(Math.min(TALLEST_BAR, Math.max(SMALLEST_BAR, natural)))
  const stacked: Group[] = []
  let y = 0
  let place = 0
  const stack = (group: RowGroup | null, rows: readonly number[], tall: number): void => {
    const top = y
    y += GROUP_HEADER
    const placed = rows.map((index, i): Row => ({ rank: ranks[index], index, place: group ? place + i : -1, y: y + i * tall, height: tall }))
    if (group) place += rows.length
    y += rows.length * tall
    stacked.push({ group, y: top, height: y - top, rows: placed })
    y += GROUP_GAP
  }
  if (above) stack(null, pinned, PINNED)
  for (const group of groups) stack(group, group.rows, height)
  return { groups: stacked, rows: stacked.flatMap((group) => group.rows), dense, height: y }
}

/** The row at a height of the layout. */
export function rowAt(layout: Layout, y: number): Row | null {
  const { rows } = layout
  let [low, high] = [0, rows.length - 1]
  while (low <= high) {
    const middle = (low + high) >> 1
    const row = rows[middle]
    if (y < row.y) high = middle - 1
    else if (y >= row.y + row.height) low = middle + 1
    else return row
  }
  return null
}

/** A rank's row: where it has two, the one among its group. */
export function rowOfRank(layout: Layout, rank: number): Row | undefined {
  return layout.rows.findLast((row) => row.rank === rank)
}

/**
 * How far to scroll so that a row is seen; null: it is. `kept`: the scroll is as this has left it, and nobody's; then the
 * answer depends on where the row is alone, whatever layouts there were while ranks, findings and sizes came in.
 */
export function broughtIntoView({ row, room, scroll, kept }: { row: Row; room: number; scroll: number; kept: boolean }): number | null {
  const seen = row.y >= scroll && row.y + row.height <= scroll + room
  if (seen && !kept) return null
  return row.y + row.height <= room ? 0 : Math.max(0, row.y - room / 2)
}

/** Rows of a group that touch [top, bottom). */
export function rowsBetween(group: Group, top: number, bottom: number): readonly Row[] {
  const [first] = group.rows
  if (!first) return []
  const from = Math.max(0, Math.floor((top - first.y) / first.height))
  const to = Math.max(from, Math.ceil((bottom - first.y) / first.height))
  return group.rows.slice(from, to)
}
