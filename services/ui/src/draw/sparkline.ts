/** An SVG path through the values, over the whole box; gaps where a value is not known. */
export function sparkline(values: readonly (number | null)[], width: number, height: number): string {
  const known = values.filter((value): value is number => value !== null && Number.isFinite(value))
  if (known.length < 2) return ''
  const low = Math.min(...known)
  const range = Math.max(...known) - low || 1
  let pen = 'M'
  return values
    .map((value, i) => {
      if (value === null || !Number.isFinite(value)) {
        pen = 'M'
        return ''
      }
      const x = (i / (values.length - 1)) * (width - 2) + 1
      const y = height - 2 - ((value - low) / range) * (height - 4)
      const command = `${pen}${x.toFixed(1)} ${y.toFixed(1)}`
      pen = 'L'
      return command
    })
    .join('')
}
