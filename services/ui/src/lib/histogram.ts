/** Of `hist(n,asinh)`: bins are those of asinh(x / 0.001) over ±10⁴. */
const ASINH = { unit: 1e-3, most: 1e4 }

/** Where a bin of the expression's histogram begins; the bin behind the last is the end. */
export function edgesOf(expression: string, bins: number): (bin: number) => number {
  const [, low, high] = /hist\([^,)]*,\s*(-?[\d.eE+-]+)\s*,\s*(-?[\d.eE+-]+)\s*\)/.exec(expression) ?? []
  const reach = Math.asinh(ASINH.most / ASINH.unit)
  return (bin) => {
    const share = bin / Math.max(1, bins)
    return low === undefined ? ASINH.unit * Math.sinh((2 * share - 1) * reach) : Number(low) + share * (Number(high) - Number(low))
  }
}

export interface Mark {
  readonly text: string
  readonly left: number
}

const INTERVALS = [6, 4, 2]
const GAP = 8

/** What stands under the bars: both ends, the middle and as many between them as have room. */
export function marksThatFit(textAt: (share: number) => string, width: number, widthOf: (text: string) => number): Mark[] {
  const found = INTERVALS.map((intervals) => spreadOver(intervals, textAt, width, widthOf))
  return found.find((marks) => marks.every(({ left }, i) => i === 0 || marks[i - 1].left + widthOf(marks[i - 1].text) + GAP <= left)) ?? found[found.length - 1]
}

/** Under its place, but that none reaches beyond an end. */
function spreadOver(intervals: number, textAt: (share: number) => string, width: number, widthOf: (text: string) => number): Mark[] {
  return Array.from({ length: intervals + 1 }, (_, i) => {
    const text = textAt(i / intervals)
    const wide = widthOf(text)
    return { text, left: Math.min(Math.max((width * i) / intervals - wide / 2, 0), width - wide) }
  })
}
