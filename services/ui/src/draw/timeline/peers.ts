/** Rows that are compared with each other: those of a group. */
export type PeerGroups = readonly Uint32Array[]

/** Rows by their group; `groups` has each row's. */
export function peerGroups(groups: ArrayLike<number>): PeerGroups {
  const members = new Map<number, number[]>()
  for (let row = 0; row < groups.length; row += 1) {
    const known = members.get(groups[row])
    if (known) known.push(row)
    else members.set(groups[row], [row])
  }
  return [...members.values()].map((rows) => Uint32Array.from(rows))
}

/**
 * For each value the median of the others of its group; NaN for one without peers. Values that are NaN count for
 * nobody. A group is sorted once, and leaving one out moves its middle by half a place: O(n log n) for all. The
 * detector's verdict weighs far more; this is what the eye compares.
 */
export function expectedOfPeers(values: Float32Array, groups: PeerGroups, expected = new Float32Array(values.length)): Float32Array {
  expected.fill(NaN)
  const sorting = new Float32Array(values.length)
  for (const rows of groups) {
    let count = 0
    for (const row of rows) if (!Number.isNaN(values[row])) sorting[count++] = values[row]
    if (count < 2) continue
    const sorted = sorting.subarray(0, count).sort()
    for (const row of rows) if (!Number.isNaN(values[row])) expected[row] = medianWithout(sorted, values[row])
  }
  return expected
}

/** The median of the others. Leaving out a value moves down by one those that are not below it: equal ones are as one. */
function medianWithout(sorted: Float32Array, value: number): number {
  const others = sorted.length - 1
  const middle = others >> 1
  const at = (place: number): number => sorted[value <= sorted[place] ? place + 1 : place]
  return others % 2 ? at(middle) : (at(middle - 1) + at(middle)) / 2
}
