import type UPlot from 'uplot'
import type { Palette } from './palette'
import { formatInteger } from '@/lib/format'

export interface PlotSeries {
  readonly label: string
  readonly values: readonly (number | null)[]
  readonly colour: keyof Palette
  readonly dashed?: boolean
}

type Options = Omit<UPlot.Options, 'width' | 'height'>

/** The look of every line plot: x is the step, y in the unit that `format` writes; a tooltip follows the cursor. */
export function plotOptions(
  series: readonly PlotSeries[],
  palette: Palette,
  format: (value: number) => string,
  marks: () => readonly number[],
  sync: string | undefined,
): Options {
  const axis = { stroke: palette.muted, font: `12px ${palette.font}`, grid: { stroke: palette.line, width: 1 }, ticks: { show: false } }
  return {
    padding: [12, 12, 0, 0],
    legend: { show: false },
    cursor: { points: { size: 7 }, drag: { x: false, y: false }, ...(sync ? { sync: { key: sync } } : {}) },
    scales: { x: { time: false }, y: { range: paddedRange } },
    axes: [
      { ...axis, size: 30, space: 70, values: (_, steps) => steps.map((step) => (Number.isInteger(step) ? formatInteger(step) : '')) },
      { ...axis, size: 64, space: 32, values: (_, values) => values.map((value) => withoutTrailingZeros(format(value))) },
    ],
    series: [
      {},
      ...series.map(({ label, colour, dashed }) => ({
        label,
        stroke: palette[colour],
        width: 1.5,
        points: { show: false },
        // Some values are told every few steps only.
        spanGaps: true,
        ...(dashed ? { dash: [5, 4] } : {}),
      })),
    ],
    plugins: [{ hooks: { draw: [(plot: UPlot) => drawMarks(plot, marks(), palette)] } }, tooltip(series, format)],
  }
}

/** "2.000" → "2", "1.20×" → "1.2×". */
export function withoutTrailingZeros(text: string): string {
  return text.replace(/(\.\d*?)0+(?!\d)/, '$1').replace(/\.(?!\d)/, '')
}

/** A little air around the values; a flat line stands in the middle. */
export function paddedRange(_: unknown, low: number, high: number): [number, number] {
  if (!Number.isFinite(low) || !Number.isFinite(high)) return [0, 1]
  const air = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1
  return [low >= 0 ? Math.max(0, low - air) : low - air, high + air]
}

function drawMarks(plot: UPlot, steps: readonly number[], palette: Palette): void {
  const { ctx, bbox } = plot
  ctx.save()
  ctx.strokeStyle = palette.culprit
  ctx.lineWidth = 2 * devicePixelRatio
  ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio])
  for (const step of steps) {
    const x = Math.round(plot.valToPos(step, 'x', true))
    if (x < bbox.left || x > bbox.left + bbox.width) continue
    ctx.beginPath()
    ctx.moveTo(x, bbox.top)
    ctx.lineTo(x, bbox.top + bbox.height)
    ctx.stroke()
  }
  ctx.restore()
}

function tooltip(series: readonly PlotSeries[], format: (value: number) => string): UPlot.Plugin {
  const box = document.createElement('div')
  box.className = 'plot-tip number'
  return {
    hooks: {
      init: [(plot: UPlot) => void plot.over.append(box)],
      setCursor: [
        (plot: UPlot) => {
          const { idx, left = -1 } = plot.cursor
          box.hidden = idx == null || left < 0
          if (idx == null || box.hidden) return
          const lines = series.map(({ label }, i) => {
            const value = plot.data[i + 1][idx]
            return series.length > 1 ? `${label} ${value == null ? '–' : format(value)}` : value == null ? '–' : format(value)
          })
          box.textContent = [`${formatInteger(plot.data[0][idx])}`, ...lines].join(' · ')
          const x = plot.valToPos(plot.data[0][idx], 'x')
          box.style.transform = `translateX(${Math.round(Math.min(Math.max(0, x - box.offsetWidth / 2), plot.over.clientWidth - box.offsetWidth))}px)`
        },
      ],
    },
  }
}
