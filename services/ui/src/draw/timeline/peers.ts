import { bisectLeft } from 'd3-array'

/**
 * For each value the median of the others of its group; NaN for one without peers. Values that are NaN count for
 * nobody. A group is sorted once, and leaving one out shifts its middle: O(n log n) for all. The detector's verdict
 * weighs far more; this is what the eye compares.
 */
export function expectedOfPeers(values: Float32Array, groups: Int32Array): Float32Array {
  const expected = new Float32Array(values.length).fill(NaN)
  const members = new Map<number, number[]>()
  groups.forEach((group, row) => {
    if (Number.isNaN(values[row])) return
    const known = members.get(group)
    if (known) known.push(row)
    else members.set(group, [row])
  })
  for (const rows of members.values()) {
    const sorted = Float32Array.from(rows, (row) => values[row]).sort()
    for (const row of rows) expected[row] = medianWithout(sorted, bisectLeft(sorted, values[row]))
  }
  return expected
}

function medianWithout(sorted: Float32Array, left: number): number {
  const count = sorted.length - 1
  if (count === 0) return NaN
  const at = (i: number): number => sorted[i < left ? i : i + 1]
  const middle = count >> 1
  return count % 2 ? at(middle) : (at(middle - 1) + at(middle)) / 2
}
