import { bisectLeft, ticks } from 'd3-array'
import { hatch } from '../canvas'
import type { Palette } from '../palette'
import { formatExcess, formatInteger, formatRanks, formatSeconds } from '@/lib/format'
import type { Cell } from './hit'
import type { Layout, Row } from './layout'
import { GROUP_HEADER } from './layout'
import type { TimelineModel } from './model'
import type { Segments } from './segments'
import { rowSegments } from './segments'
import type { Axis, Window } from './view'
import { span } from './view'

export const GUTTER = 148
export const RULER = 30
/** Pixels kept free beside a flag, so that no tick's label sticks out behind it. */
const LABEL_AIR = 20

/** A rank that an open finding names. */
export interface Suspect {
  readonly rank: number
  readonly sinceStep: number | null
  /** It has lasted and costs: a culprit. Others are watched. */
  readonly pages: boolean
}

export interface Scene {
  readonly model: TimelineModel
  readonly layout: Layout
  readonly axis: Axis
  readonly window: Window
  readonly width: number
  readonly height: number
  /** Pixels scrolled down. */
  readonly scroll: number
  readonly palette: Palette
  readonly suspects: readonly Suspect[]
  /** Compute against same-stage peers, per model row; NaN: no peers. */
  readonly ratios: Float64Array
  readonly hovered: Cell | null
  readonly selected: Cell | null
  readonly labels: { readonly stage: (id: number) => string; readonly rank: (id: number) => string; readonly since: (ranks: string, step: number) => string }
}

type Pen = CanvasRenderingContext2D

export function paintTimeline(pen: Pen, scene: Scene): void {
  const { palette, width, height, layout, scroll } = scene
  pen.fillStyle = palette.background
  pen.fillRect(0, 0, width, height)
  paintGrid(pen, scene)
  pen.save()
  pen.beginPath()
  pen.rect(0, RULER, width, height - RULER)
  pen.clip()
  pen.translate(0, RULER - scroll)
  for (const group of layout.groups) paintGroup(pen, scene, group.id, group.y)
  const seen = layout.rows.filter((row) => row.y + row.height > scroll && row.y < scroll + height)
  paintBars(pen, scene, seen)
  for (const row of seen) paintLabel(pen, scene, row)
  paintCell(pen, scene, scene.hovered, palette.muted)
  paintCell(pen, scene, scene.selected, palette.text)
  pen.restore()
  paintOnsets(pen, scene)
}

function toX(scene: Scene, position: number): number {
  return GUTTER + ((position - scene.window.from) / (scene.window.to - scene.window.from)) * (scene.width - GUTTER)
}

function paintGrid(pen: Pen, scene: Scene): void {
  const { palette, window, width, axis, model } = scene
  const bottom = Math.min(scene.height, RULER + scene.layout.height - scene.scroll)
  const wanted = Math.max(2, Math.floor((width - GUTTER) / 110))
  const marks = ticks(window.from, window.to, wanted).filter((mark) => axis === 'time' || Number.isInteger(mark))
  pen.font = `12px ${palette.font}`
  pen.textBaseline = 'middle'
  pen.textAlign = 'left'
  for (const mark of marks) {
    const x = Math.round(toX(scene, mark)) + 0.5
    if (x < GUTTER) continue
    pen.fillStyle = palette.line
    pen.fillRect(x - 0.5, RULER - 8, 1, bottom - RULER + 8)
    pen.fillStyle = palette.muted
    const label = axis === 'steps' ? formatInteger(mark) : formatSeconds(mark - model.stepStart[0])
    if (x + 4 + pen.measureText(label).width < width) pen.fillText(label, x + 4, RULER / 2 - 3)
  }
  paintTraced(pen, scene)
  pen.fillStyle = palette.line
  pen.fillRect(0, RULER - 1, width, 1)
}

/** A line on the ruler under the steps whose spans are stored and can be opened. */
function paintTraced(pen: Pen, scene: Scene): void {
  const { model, axis, window, palette } = scene
  pen.fillStyle = palette.accent
  for (let index = 0; index < model.steps.length; index += 1) {
    if (!model.traced[index]) continue
    const from = axis === 'steps' ? model.steps[index] : model.stepStart[index]
    const to = axis === 'steps' ? from + 1 : model.stepEnd[index]
    if (to < window.from || from > window.to) continue
    const x = Math.max(GUTTER, toX(scene, from))
    pen.fillRect(x, RULER - 4, Math.max(1, toX(scene, to) - x - 0.5), 3)
  }
}

function paintGroup(pen: Pen, scene: Scene, id: number, y: number): void {
  const { palette, width } = scene
  pen.fillStyle = palette.surface
  pen.fillRect(0, y, width, GROUP_HEADER)
  pen.fillStyle = palette.muted
  pen.font = `500 12px ${palette.font}`
  pen.textAlign = 'left'
  pen.textBaseline = 'middle'
  pen.fillText(scene.labels.stage(id), 12, y + GROUP_HEADER / 2 + 0.5)
}

function paintBars(pen: Pen, scene: Scene, rows: readonly Row[]): void {
  const parts = { compute: new Path2D(), wait: new Path2D(), host: new Path2D() }
  const plot = scene.width - GUTTER
  for (const row of rows) {
    const segments = rowSegments(scene.model, scene.axis, row.index, scene.window, plot)
    for (let i = 0; i < segments.count; i += 1) addBar(parts, segments, i, row, plot)
  }
  const { palette } = scene
  const fill = (path: Path2D, ...styles: (string | CanvasPattern | null)[]): void => {
    for (const style of styles) {
      if (!style) continue
      pen.fillStyle = style
      pen.fill(path)
    }
  }
  fill(parts.compute, palette.compute)
  fill(parts.wait, palette.wait, hatch(pen, 'diagonal', palette.waitInk))
  fill(parts.host, palette.host, hatch(pen, 'dots', palette.hostInk))
}

type Parts = Record<'compute' | 'wait' | 'host', Path2D>

/** Compute stands on the row's floor, wait and host on top of it: heights are shares of the bar's time. */
function addBar(parts: Parts, segments: Segments, i: number, row: Row, plot: number): void {
  const gap = segments.to[i] - segments.from[i] > 8 ? 1 : 0
  const x = Math.max(0, segments.from[i])
  const width = Math.min(plot, segments.to[i]) - x - gap
  if (width <= 0) return
  const pad = row.height > 24 ? 3 : 1
  const tall = row.height - 2 * pad
  let floor = row.y + row.height - pad
  for (const part of ['compute', 'wait', 'host'] as const) {
    const height = segments[part][i] * tall
    if (height <= 0) continue
    parts[part].rect(GUTTER + x, floor - height, width, height)
    floor -= height
  }
}

function paintLabel(pen: Pen, scene: Scene, row: Row): void {
  const { palette, labels, ratios } = scene
  const suspicions = scene.suspects.filter((candidate) => candidate.rank === row.rank)
  const [suspect, pages] = [suspicions.length > 0, suspicions.some((candidate) => candidate.pages)]
  const middle = row.y + row.height / 2 + 0.5
  if (suspect) {
    pen.fillStyle = pages ? palette.critSurface : palette.warnSurface
    pen.fillRect(0, row.y, GUTTER - 8, row.height)
    pen.fillStyle = pages ? palette.culprit : palette.warn
    pen.fillRect(0, row.y, 3, row.height)
  }
  pen.textBaseline = 'middle'
  pen.textAlign = 'left'
  pen.font = `${pages ? 600 : 400} 12px ${palette.font}`
  pen.fillStyle = palette.text
  pen.fillText(`${pages ? '▲ ' : ''}${labels.rank(row.rank)}`, 12, middle)
  const ratio = ratios[row.index]
  if (Number.isNaN(ratio)) return
  pen.textAlign = 'right'
  pen.fillStyle = suspect ? palette.text : palette.muted
  pen.fillText(formatExcess(ratio), GUTTER - 16, middle)
}

function paintCell(pen: Pen, scene: Scene, cell: Cell | null, colour: string): void {
  if (!cell) return
  const at = span(scene.model, scene.axis, cell.row.index, cell.stepIndex)
  if (Number.isNaN(at.from)) return
  const left = Math.max(GUTTER, toX(scene, at.from))
  const right = Math.min(scene.width, toX(scene, at.to))
  if (right < left) return
  pen.strokeStyle = colour
  pen.lineWidth = 2
  pen.strokeRect(left, cell.row.y + 1, Math.max(2, right - left - 1), cell.row.height - 2)
}

function culpritsByOnset(suspects: readonly Suspect[]): Map<number, number[]> {
  const steps = new Map<number, number[]>()
  for (const { rank, sinceStep, pages } of suspects) {
    if (pages && sinceStep !== null) steps.set(sinceStep, [...(steps.get(sinceStep) ?? []), rank])
  }
  return steps
}

/** A flagged line at each step since which culprits have been slow. */
function paintOnsets(pen: Pen, scene: Scene): void {
  const { model, axis, palette, labels, width } = scene
  const bottom = Math.min(scene.height, RULER + scene.layout.height - scene.scroll)
  const steps = culpritsByOnset(scene.suspects)
  pen.font = `600 12px ${palette.font}`
  for (const [step, ranks] of steps) {
    const index = bisectLeft(model.steps, step)
    if (index >= model.steps.length) continue
    const x = Math.round(toX(scene, axis === 'steps' ? step : model.stepStart[index]))
    if (x < GUTTER || x > width) continue
    pen.strokeStyle = palette.culprit
    pen.lineWidth = 1.5
    pen.setLineDash([4, 3])
    pen.beginPath()
    pen.moveTo(x, RULER - 4)
    pen.lineTo(x, bottom)
    pen.stroke()
    pen.setLineDash([])
    const label = `▲ ${labels.since(formatRanks(ranks), step)}`
    const wide = pen.measureText(label).width + 12
    const left = Math.min(x, width - wide)
    pen.fillStyle = palette.background
    pen.fillRect(left, 2, wide + LABEL_AIR, RULER - 8)
    pen.strokeStyle = palette.culprit
    pen.lineWidth = 1
    pen.strokeRect(left + 0.5, 2.5, wide - 1, RULER - 9)
    pen.fillStyle = palette.text
    pen.textAlign = 'left'
    pen.textBaseline = 'middle'
    pen.fillText(label, left + 6, RULER / 2 - 1)
  }
}
