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
