/** A rank's line in the overview; `index` is its row in the model's matrices. */
export interface Row {
  readonly rank: number
  readonly index: number
  readonly group: number
  readonly y: number
  readonly height: number
}

export interface Group {
  readonly id: number
  readonly y: number
  readonly height: number
}

export interface Layout {
  readonly rows: readonly Row[]
  readonly groups: readonly Group[]
  readonly height: number
}

export const GROUP_HEADER = 22
export const GROUP_GAP = 6
const SMALLEST_ROW = 16
const TALLEST_ROW = 80

/** Stacks the ranks by group; rows grow to fill `room` pixels, within what reads well. */
export function layoutRows(ranks: ArrayLike<number>, groupOf: (rank: number) => number, room: number): Layout {
  const ids = [...new Set(Array.from(ranks, groupOf))].sort((a, b) => a - b)
  const headers = ids.length * (GROUP_HEADER + GROUP_GAP)
  const height = Math.floor(Math.min(TALLEST_ROW, Math.max(SMALLEST_ROW, (room - headers) / Math.max(1, ranks.length))))
  const rows: Row[] = []
  const groups: Group[] = []
  let y = 0
  for (const id of ids) {
    const top = y
    y += GROUP_HEADER
    for (let index = 0; index < ranks.length; index += 1) {
      if (groupOf(ranks[index]) !== id) continue
      rows.push({ rank: ranks[index], index, group: id, y, height })
      y += height
    }
    groups.push({ id, y: top, height: y - top })
    y += GROUP_GAP
  }
  return { rows, groups, height: y }
}
