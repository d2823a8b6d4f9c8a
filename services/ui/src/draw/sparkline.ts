/** An SVG path through the values that are known, over the whole box. */
export function sparkline(values: readonly (number | null)[], width: number, height: number): string {
  const known = values.flatMap((value, i) => (value !== null && Number.isFinite(value) ? [{ i, value }] : []))
  if (known.length < 2) return ''
  const low = Math.min(...known.map(({ value }) => value))
  const range = Math.max(...known.map(({ value }) => value)) - low || 1
  const points = known.map(({ i, value }) => {
    const x = (i / (values.length - 1)) * (width - 2) + 1
    const y = height - 2 - ((value - low) / range) * (height - 4)
    return `${x.toFixed(1)} ${y.toFixed(1)}`
  })
  return `M${points.join('L')}`
}
