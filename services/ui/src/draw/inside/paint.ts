import { paintAxis } from '../axis'
import { hatch } from '../canvas'
import type { Palette } from '../palette'
import { formatSeconds } from '@/lib/format'
import type { HeldLine, Lane, Span, SpanPart, StepSpans } from './spans'

export const GUTTER = 148
export const RULER = 30
/** Of a span, in pixels: lanes grow to fill the room within what reads well. */
const LINE = { least: 18, most: 34 } as const
const GAP = 8
/** Of each line below a lane's spans, where it tells what it holds. */
const HELD = 24
/** A span is named where its name has room. */
const CHARACTER = 6.5

export interface LaneBox {
  readonly lane: Lane
  readonly y: number
  readonly height: number
  /** How high one of its spans is. */
  readonly line: number
}

export interface InsideScene {
  readonly spans: StepSpans
  readonly boxes: readonly LaneBox[]
  readonly from: number
  readonly to: number
  readonly width: number
  readonly height: number
  readonly scroll: number
  readonly palette: Palette
  /** The rank that was opened. */
  readonly chosen: number | null
  readonly hovered: Span | null
  readonly label: (lane: Lane) => string
  /** What is said beside a line of what is held. */
  readonly heldLabel: (line: HeldLine, most: number) => string
}

/** Lanes from the top, each as high as its spans nest, in `room` pixels where they fit. */
export function stackLanes(lanes: readonly Lane[], room = 0): { readonly boxes: LaneBox[]; readonly height: number } {
  const spanLines = lanes.reduce((sum, { depths }) => sum + depths, 0)
  const fixed = lanes.reduce((sum, { lines }) => sum + GAP + lines.length * HELD, 0)
  const line = Math.min(LINE.most, Math.max(LINE.least, Math.floor((room - fixed) / Math.max(1, spanLines))))
  let y = 0
  const boxes = lanes.map((lane) => {
    const box = { lane, y, line, height: lane.depths * line + lane.lines.length * HELD }
    y += box.height + GAP
    return box
  })
  return { boxes, height: y }
}

/** The innermost span under a point; y in pixels of the lanes. */
export function spanAt(boxes: readonly LaneBox[], at: number, y: number): Span | null {
  const box = boxes.find((candidate) => y >= candidate.y && y < candidate.y + candidate.height)
  const depth = box ? Math.floor((y - box.y) / box.line) : -1
  return box?.lane.spans.find((span) => span.depth === depth && at >= span.start && at <= span.end) ?? null
}

export function paintInside(pen: CanvasRenderingContext2D, scene: InsideScene): void {
  const { palette, width, height, scroll } = scene
  pen.fillStyle = palette.background
  pen.fillRect(0, 0, width, height)
  paintAxis(pen, { ...scene, left: GUTTER, right: width, bottom: height, height: RULER, whole: false, label: formatSeconds })
  pen.save()
  pen.beginPath()
  pen.rect(0, RULER, width, height - RULER)
  pen.clip()
  pen.translate(0, RULER - scroll)
  const seen = scene.boxes.filter((box) => box.y + box.height > scroll && box.y < scroll + height)
  for (const box of seen) paintLane(pen, scene, box)
  paintArrows(pen, scene)
  pen.restore()
}

function toX(scene: InsideScene, at: number): number {
  return GUTTER + ((at - scene.from) / (scene.to - scene.from)) * (scene.width - GUTTER)
}

function paintLane(pen: CanvasRenderingContext2D, scene: InsideScene, { lane, y, height, line }: LaneBox): void {
  const { palette } = scene
  const chosen = lane.rank === scene.chosen
  if (chosen) {
    pen.fillStyle = palette.selected
    pen.fillRect(0, y - GAP / 2, scene.width, height + GAP)
  }
  pen.save()
  pen.beginPath()
  pen.rect(GUTTER, y, scene.width - GUTTER, height)
  pen.clip()
  for (const span of lane.spans) if (span.end > scene.from && span.start < scene.to) paintSpan(pen, scene, span, y, line)
  const bottoms = lane.lines.map((_, index) => y + lane.depths * line + (index + 1) * HELD)
  lane.lines.forEach((each, index) => paintHeld(pen, scene, each, bottoms[index]))
  pen.restore()
  pen.fillStyle = palette.muted
  pen.font = `11px ${palette.font}`
  pen.textAlign = 'left'
  pen.textBaseline = 'middle'
  lane.lines.forEach((each, index) => pen.fillText(scene.heldLabel(each, mostHeld(each)), 12, bottoms[index] - HELD / 2))
  pen.fillStyle = palette.text
  pen.font = `${chosen ? 600 : 400} 12px ${palette.font}`
  pen.textAlign = 'left'
  pen.textBaseline = 'middle'
  pen.fillText(scene.label(lane), 12, y + line / 2)
}

function mostHeld({ held }: HeldLine): number {
  return Math.max(...held.map(({ count }) => count))
}

/** A line in steps, from the bottom (nothing is held) to the top of its stripe, and the cap, broken. */
function paintHeld(pen: CanvasRenderingContext2D, scene: InsideScene, line: HeldLine, bottom: number): void {
  const unit = (HELD - 6) / Math.max(1, mostHeld(line), line.cap ?? 0)
  pen.strokeStyle = scene.palette.text
  pen.lineWidth = 1.5
  pen.beginPath()
  let level = bottom - 2
  pen.moveTo(GUTTER, level)
  for (const { at, count } of line.held) {
    pen.lineTo(toX(scene, at), level)
    level = bottom - 2 - count * unit
    pen.lineTo(toX(scene, at), level)
  }
  pen.lineTo(scene.width, level)
  pen.stroke()
  if (line.cap === null) return
  const top = bottom - 2 - line.cap * unit
  pen.strokeStyle = scene.palette.muted
  pen.lineWidth = 1
  pen.setLineDash([4, 3])
  pen.beginPath()
  pen.moveTo(GUTTER, top)
  pen.lineTo(scene.width, top)
  pen.stroke()
  pen.setLineDash([])
}

function paintSpan(pen: CanvasRenderingContext2D, scene: InsideScene, span: Span, y: number, line: number): void {
  const { palette } = scene
  const left = Math.max(GUTTER - 2, toX(scene, span.start))
  const right = Math.min(scene.width + 2, toX(scene, span.end))
  const top = y + span.depth * line
  const [wide, tall] = [Math.max(1, right - left - (right - left > 3 ? 1 : 0)), line - 2]
  const look = lookOf(span.part, palette)
  pen.fillStyle = look.fill
  pen.fillRect(left, top, wide, tall)
  if (look.hatch && wide > 4) {
    pen.fillStyle = hatch(pen, look.hatch, look.ink) ?? look.fill
    pen.fillRect(left, top, wide, tall)
  }
  if (span === scene.hovered) {
    pen.strokeStyle = palette.text
    pen.lineWidth = 2
    pen.strokeRect(left + 1, top + 1, wide - 2, tall - 2)
  }
  const text = span.microbatch === null ? span.name : `${span.name} ${span.microbatch}`
  if (look.hatch || wide < text.length * CHARACTER + 8) return
  pen.fillStyle = look.text
  pen.font = `11px ${palette.font}`
  pen.textAlign = 'left'
  pen.textBaseline = 'middle'
  pen.fillText(text, left + 4, top + tall / 2 + 0.5)
}

interface Look {
  readonly fill: string
  readonly text: string
  readonly ink: string
  readonly hatch?: 'diagonal' | 'dots'
}

function lookOf(part: SpanPart, palette: Palette): Look {
  switch (part) {
    case 'compute':
      return { fill: palette.compute, text: palette.background, ink: palette.background }
    case 'backward':
      return { fill: palette.computeSoft, text: palette.onSoft, ink: palette.background }
    case 'wait':
      return { fill: palette.wait, text: palette.text, ink: palette.waitInk, hatch: 'diagonal' }
    case 'host':
      return { fill: palette.host, text: palette.text, ink: palette.hostInk, hatch: 'dots' }
    case 'frame':
      return { fill: palette.line, text: palette.muted, ink: palette.muted }
  }
}

const MOST_ARROWS = 2000

function paintArrows(pen: CanvasRenderingContext2D, scene: InsideScene): void {
  const { spans, boxes, palette, from, to } = scene
  pen.strokeStyle = palette.muted
  pen.fillStyle = palette.muted
  pen.lineWidth = 1
  const seen = spans.arrows.filter((arrow) => arrow.to.at >= from && arrow.from.at <= to).slice(0, MOST_ARROWS)
  for (const arrow of seen) {
    const [source, target] = [boxes[arrow.from.lane], boxes[arrow.to.lane]]
    const down = target.y >= source.y
    const [x0, y0] = [toX(scene, arrow.from.at), down ? source.y + source.height : source.y]
    const [x1, y1] = [toX(scene, arrow.to.at), down ? target.y : target.y + target.height]
    if (Math.min(x0, x1) < GUTTER) continue
    pen.beginPath()
    pen.moveTo(x0, y0)
    pen.bezierCurveTo(x0, (y0 + y1) / 2, x1, (y0 + y1) / 2, x1, y1)
    pen.stroke()
    const tip = down ? -5 : 5
    pen.beginPath()
    pen.moveTo(x1, y1)
    pen.lineTo(x1 - 3, y1 + tip)
    pen.lineTo(x1 + 3, y1 + tip)
    pen.fill()
  }
}
