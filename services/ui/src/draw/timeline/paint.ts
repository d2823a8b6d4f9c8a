import { hatch } from '../canvas'
import { paintAxis } from '../axis'
import type { Crosshair } from '../crosshair'
import { paintCrosshair } from '../crosshair'
import type { Palette } from '../palette'
import { formatExcess, formatInteger, formatRanks, formatSeconds } from '@/lib/format'
import type { StepGrid } from './grid'
import type { HeatImage } from './heatImage'
import type { Cell } from './hit'
import type { Group, Layout, Row } from './layout'
import { GROUP_HEADER, rowsBetween } from './layout'
import type { Segments } from './segments'
import { rowSegments } from './segments'
import type { Axis, Window } from './view'
import { bucketSpan, span, timeOf, visibleBuckets } from './view'

export const GUTTER = 148
export const RULER = 30
/** Pixels kept free beside a flag, so that no tick's label sticks out behind it. */
const LABEL_AIR = 36
/** Rows lower than this have no label of their own. */
const LABEL_HEIGHT = 14
/** Between labels of rows that have none of their own. */
const LABEL_SPACING = 28

/** A rank that an open finding names. */
export interface Suspect {
  readonly rank: number
  readonly sinceStep: number | null
  /** It has lasted and costs: a culprit. Others are watched. */
  readonly pages: boolean
}

export interface Scene {
  readonly grid: StepGrid
  readonly layout: Layout
  /** What dense rows are copied from. */
  readonly heat: HeatImage
  readonly axis: Axis
  readonly window: Window
  readonly width: number
  readonly height: number
  /** Pixels scrolled down. */
  readonly scroll: number
  readonly palette: Palette
  readonly suspects: ReadonlyMap<number, readonly Suspect[]>
  readonly hovered: Cell | null
  readonly selected: Cell | null
  readonly crosshair: Crosshair | null
  readonly labels: {
    readonly group: (group: Group) => string
    readonly rank: (id: number) => string
    readonly since: (ranks: string, step: number) => string
  }
}

type Pen = CanvasRenderingContext2D

export function paintTimeline(pen: Pen, scene: Scene): void {
  const { palette, width, height, layout, scroll } = scene
  pen.fillStyle = palette.background
  pen.fillRect(0, 0, width, height)
  paintRuler(pen, scene)
  pen.save()
  pen.beginPath()
  pen.rect(0, RULER, width, height - RULER)
  pen.clip()
  pen.translate(0, RULER - scroll)
  for (const group of layout.groups) {
    if (group.y + group.height <= scroll || group.y >= scroll + height) continue
    paintHeader(pen, scene, group)
    const rows = rowsBetween(group, scroll, scroll + height)
    if (layout.dense && group.group) paintHeat(pen, scene, group)
    else paintBars(pen, scene, rows)
    paintLabels(pen, scene, rows, group)
  }
  paintCell(pen, scene, scene.hovered, palette.muted)
  paintCell(pen, scene, scene.selected, palette.text)
  pen.restore()
  paintOnsets(pen, scene)
  const bottom = bottomOf(scene)
  if (scene.crosshair) paintCrosshair(pen, scene.crosshair, { left: GUTTER, top: RULER, right: width, bottom }, palette)
}

const bottomOf = (scene: Scene): number => Math.min(scene.height, RULER + scene.layout.height - scene.scroll)

function toX(scene: Scene, position: number): number {
  return GUTTER + ((position - scene.window.from) / (scene.window.to - scene.window.from)) * (scene.width - GUTTER)
}

function paintRuler(pen: Pen, scene: Scene): void {
  const { axis, grid, window, palette } = scene
  const begin = axis === 'time' ? timeOf(grid, grid.oldestStep) : 0
  paintAxis(pen, {
    ...window,
    left: GUTTER,
    right: scene.width,
    bottom: bottomOf(scene),
    height: RULER,
    whole: axis === 'steps',
    label: (mark) => (axis === 'steps' ? formatInteger(mark) : formatSeconds(mark - begin)),
    palette,
  })
  paintTraced(pen, scene)
}

/** A line on the ruler under the steps whose spans are stored and can be opened. */
function paintTraced(pen: Pen, scene: Scene): void {
  const { grid, axis, window, palette } = scene
  pen.fillStyle = palette.accent
  const [first, end] = visibleBuckets(grid, axis, window)
  for (let bucket = first; bucket < end; bucket += 1) {
    if (!grid.traced[grid.slot(bucket)]) continue
    const at = bucketSpan(grid, axis, bucket)
    const x = Math.max(GUTTER, toX(scene, at.from))
    pen.fillRect(x, RULER - 4, Math.max(1, toX(scene, at.to) - x - 0.5), 3)
  }
}

function paintHeat(pen: Pen, scene: Scene, group: Group): void {
  pen.save()
  pen.beginPath()
  pen.rect(GUTTER, group.y, scene.width - GUTTER, group.height)
  pen.clip()
  scene.heat.draw(pen, group, scene.axis, scene.window, GUTTER, scene.width - GUTTER)
  pen.restore()
}

function paintHeader(pen: Pen, scene: Scene, group: Group): void {
  const { palette, width } = scene
  pen.fillStyle = palette.surface
  pen.fillRect(0, group.y, width, GROUP_HEADER)
  pen.fillStyle = palette.muted
  pen.font = `500 12px ${palette.font}`
  pen.textAlign = 'left'
  pen.textBaseline = 'middle'
  pen.fillText(scene.labels.group(group), 12, group.y + GROUP_HEADER / 2 + 0.5)
}

function paintBars(pen: Pen, scene: Scene, rows: readonly Row[]): void {
  const parts = { compute: new Path2D(), wait: new Path2D(), host: new Path2D() }
  const plot = scene.width - GUTTER
  for (const row of rows) {
    const segments = rowSegments(scene.grid, scene.axis, row.index, scene.window, plot)
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

/** Rows with room have their label; of lower ones those do that findings name or that are selected, and others in between. */
function paintLabels(pen: Pen, scene: Scene, rows: readonly Row[], group: Group): void {
  const [first] = rows
  if (!first) return
  const top = group.y + GROUP_HEADER
  const roomy = first.height >= LABEL_HEIGHT
  const marked = roomy ? rows : rows.filter((row) => scene.suspects.has(row.rank) || row.rank === scene.selected?.row.rank)
  for (const row of marked) paintMark(pen, scene, row)
  const texts = roomy ? rows : labelled(group.rows, marked).filter(({ y, height }) => y + height > scene.scroll && y < scene.scroll + scene.height)
  for (const row of texts) paintLabel(pen, scene, row, top)
}

/** Of rows too low for a label each: the preferred ones, and others at even distances from the first, as far as they have room. */
export function labelled(rows: readonly Row[], preferred: readonly Row[]): readonly Row[] {
  const each = Math.ceil(LABEL_SPACING / (rows[0]?.height ?? 1))
  const chosen: Row[] = []
  for (const row of [...preferred, ...rows.filter((_, i) => i % each === 0)]) {
    if (chosen.every(({ y }) => Math.abs(y - row.y) >= LABEL_HEIGHT)) chosen.push(row)
  }
  return chosen
}

function paintMark(pen: Pen, scene: Scene, row: Row): void {
  const { palette } = scene
  const suspicions = scene.suspects.get(row.rank)
  if (!suspicions) return
  const pages = suspicions.some((suspect) => suspect.pages)
  const height = Math.max(2, row.height)
  pen.fillStyle = pages ? palette.critSurface : palette.warnSurface
  pen.fillRect(0, row.y, GUTTER - 8, height)
  pen.fillStyle = pages ? palette.culprit : palette.warn
  pen.fillRect(0, row.y, 3, height)
}

function paintLabel(pen: Pen, scene: Scene, row: Row, top: number): void {
  const { palette, labels, grid } = scene
  const suspicions = scene.suspects.get(row.rank) ?? []
  const pages = suspicions.some((suspect) => suspect.pages)
  const middle = Math.max(row.y + row.height / 2 + 0.5, top + LABEL_HEIGHT / 2)
  pen.textBaseline = 'middle'
  pen.textAlign = 'left'
  pen.font = `${pages ? 600 : 400} 12px ${palette.font}`
  pen.fillStyle = suspicions.length || row.height >= LABEL_HEIGHT ? palette.text : palette.muted
  pen.fillText(`${pages ? '▲ ' : ''}${labels.rank(row.rank)}`, 12, middle)
  const [first, end] = visibleBuckets(grid, scene.axis, scene.window)
  // Of a culprit since it has been one, where that is in view: not of the time before.
  const onset = grid.bucketOf(suspicions.find((suspect) => suspect.pages)?.sinceStep ?? 0)
  const ratio = grid.medianRatio(row.index, onset < end ? Math.max(first, onset) : first, end)
  if (Number.isNaN(ratio)) return
  pen.textAlign = 'right'
  pen.fillStyle = suspicions.length ? palette.text : palette.muted
  pen.fillText(formatExcess(ratio), GUTTER - 16, middle)
}

function paintCell(pen: Pen, scene: Scene, cell: Cell | null, colour: string): void {
  if (!cell) return
  const at = span(scene.grid, scene.axis, cell.row.index, cell.bucket)
  if (Number.isNaN(at.from)) return
  const left = Math.max(GUTTER, toX(scene, at.from))
  const right = Math.min(scene.width, toX(scene, at.to))
  if (right < left) return
  pen.strokeStyle = colour
  pen.lineWidth = 2
  const air = scene.layout.dense && cell.row.height < LABEL_HEIGHT ? -2 : 1
  pen.strokeRect(left, cell.row.y + air, Math.max(2, right - left - 1), Math.max(2, cell.row.height - 2 * air))
}

function culpritsByOnset(scene: Scene): Map<number, number[]> {
  const steps = new Map<number, number[]>()
  for (const { rank, sinceStep, pages } of [...scene.suspects.values()].flat()) {
    if (pages && sinceStep !== null) steps.set(sinceStep, [...(steps.get(sinceStep) ?? []), rank])
  }
  return steps
}

/** A flagged line at each step since which culprits have been slow. */
function paintOnsets(pen: Pen, scene: Scene): void {
  const { grid, axis, palette, labels, width } = scene
  const bottom = bottomOf(scene)
  const steps = culpritsByOnset(scene)
  pen.font = `600 12px ${palette.font}`
  for (const [step, ranks] of steps) {
    if (step > grid.newestStep) continue
    const x = Math.round(toX(scene, axis === 'steps' ? step : timeOf(grid, step)))
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
