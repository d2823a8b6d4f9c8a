/** The look of a run's curves: a line each, a band from least to most, markers, zoom by dragging. */
import type UPlot from 'uplot'
import type { Palette } from './palette'
import { paddedRange, withoutTrailingZeros } from './plot'

/** Lines differ by their dashes too. */
export const DASHES: readonly (readonly number[])[] = [[], [7, 4], [2, 3], [10, 3, 2, 3], [5, 2], [1, 2], [12, 4], [4, 4, 1, 4]]

export interface Line {
  readonly label: string
  readonly colour: string
  readonly dash: readonly number[]
  /** Columns of the data, from 1: the line, what it was before it was smoothed, the band. */
  readonly line: number
  readonly raw?: number
  readonly low?: number
  readonly high?: number
  /** Single values, such as evaluations. */
  readonly points?: number
}

export interface Mark {
  readonly x: number
  readonly until: number | null
  readonly kind: 'finding' | 'checkpoint' | 'start'
}

export interface RunPlot {
  readonly lines: readonly Line[]
  readonly palette: Palette
  readonly log: boolean
  readonly format: (value: number) => string
  readonly formatX: (value: number) => string
  readonly marks: () => readonly Mark[]
  readonly range: () => readonly [number, number] | null
  readonly onZoom: (from: number, to: number) => void
  readonly sync: string
}

type Options = Omit<UPlot.Options, 'width' | 'height'>

export function runPlotOptions(plot: RunPlot): Options {
  const { palette, lines, log } = plot
  const axis = { stroke: palette.muted, font: `12px ${palette.font}`, grid: { stroke: palette.line, width: 1 }, ticks: { show: false } }
  const columns = Math.max(0, ...lines.flatMap(({ line, raw = 0, low = 0, high = 0, points = 0 }) => [line, raw, low, high, points]))
  const series: UPlot.Series[] = Array.from({ length: columns + 1 }, () => ({ show: false }))
  series[0] = {}
  for (const { label, colour, dash, line, raw, low, high, points } of lines) {
    const quiet = { stroke: 'transparent', width: 0, points: { show: false }, spanGaps: true }
    if (low !== undefined) series[low] = quiet
    if (high !== undefined) series[high] = quiet
    if (raw !== undefined) series[raw] = { stroke: faint(colour, 0.35), width: 1, points: { show: false }, spanGaps: true }
    series[line] = { label, stroke: colour, width: 1.5, dash: [...dash], points: { show: false }, spanGaps: true }
    if (points !== undefined) series[points] = { label, stroke: colour, paths: () => null, points: { show: true, size: 7, width: 1.5, stroke: colour, fill: palette.background } }
  }
  return {
    // To the right half of the last label.
    padding: [12, 20, 0, 0],
    legend: { show: false },
    cursor: { points: { size: 6 }, drag: { x: true, y: false, setScale: false, dist: 6 }, sync: { key: plot.sync, setSeries: false } },
    scales: {
      x: { time: false, range: (_, low, high) => (plot.range() as [number, number] | null) ?? edges(low, high) },
      y: log ? { distr: 3, log: 10 } : { range: steadyRange },
    },
    axes: [
      { ...axis, size: 30, space: 64, values: (_, values) => values.map(plot.formatX) },
      { ...axis, size: 64, space: 32, values: (_, values) => values.map((value) => (value == null ? '' : withoutTrailingZeros(plot.format(value)))) },
    ],
    series,
    bands: lines.flatMap(({ low, high, colour }) => (low === undefined || high === undefined ? [] : [{ series: [high, low] as [number, number], fill: faint(colour, 0.16) }])),
    hooks: {
      drawClear: [(chart) => drawSpans(chart, plot.marks(), palette)],
      draw: [(chart) => drawMarks(chart, plot.marks(), palette)],
      setSelect: [
        (chart) => {
          const { left, width } = chart.select
          if (width > 6) plot.onZoom(chart.posToVal(left, 'x'), chart.posToVal(left + width, 'x'))
          chart.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false)
        },
      ],
    },
  }
}

/** What differs by rounding alone is a flat line. */
export function steadyRange(chart: unknown, low: number, high: number): [number, number] {
  return high - low < 1e-6 * Math.abs(high) ? paddedRange(chart, high, high) : paddedRange(chart, low, high)
}

/** A single point stands in the middle. */
const edges = (low: number, high: number): [number, number] => (low === high ? [low - 1, high + 1] : [low, high])

export function faint(colour: string, alpha: number): string {
  const hex = /^#([0-9a-f]{6})$/i.exec(colour)?.[1]
  if (!hex) return colour
  const [red, green, blue] = [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16))
  return `rgb(${red} ${green} ${blue} / ${alpha})`
}

function clipped(chart: UPlot, draw: (context: CanvasRenderingContext2D) => void): void {
  const { ctx, bbox } = chart
  ctx.save()
  ctx.beginPath()
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height)
  ctx.clip()
  draw(ctx)
  ctx.restore()
}

function drawSpans(chart: UPlot, marks: readonly Mark[], palette: Palette): void {
  clipped(chart, (context) => {
    context.fillStyle = faint(palette.culprit, 0.1)
    for (const { kind, x, until } of marks) {
      if (kind !== 'finding') continue
      const [left, right] = [chart.valToPos(x, 'x', true), until === null ? chart.bbox.left + chart.bbox.width : chart.valToPos(until, 'x', true)]
      context.fillRect(left, chart.bbox.top, Math.max(1, right - left), chart.bbox.height)
    }
  })
}

function drawMarks(chart: UPlot, marks: readonly Mark[], palette: Palette): void {
  const scale = devicePixelRatio
  const { top, height } = chart.bbox
  clipped(chart, (context) => {
    for (const { kind, x } of marks) {
      const at = Math.round(chart.valToPos(x, 'x', true))
      context.beginPath()
      if (kind === 'checkpoint') {
        // A small triangle at the foot: there may be hundreds.
        context.fillStyle = palette.muted
        context.moveTo(at - 4 * scale, top + height)
        context.lineTo(at + 4 * scale, top + height)
        context.lineTo(at, top + height - 6 * scale)
        context.fill()
        continue
      }
      context.strokeStyle = kind === 'finding' ? palette.culprit : palette.text
      context.lineWidth = (kind === 'finding' ? 2 : 1) * scale
      context.setLineDash(kind === 'finding' ? [4 * scale, 3 * scale] : [1 * scale, 2 * scale])
      context.moveTo(at, top)
      context.lineTo(at, top + height)
      context.stroke()
    }
  })
}
