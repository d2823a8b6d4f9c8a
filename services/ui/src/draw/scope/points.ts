import type { Palette } from '../palette'
import type { Picture } from '@/scope/picture'

/** Where a row stands in the model’s texts; null: it has no such number. */
export interface RowPlace {
  readonly step: number
  /** Entry of the batch: a prompt. */
  readonly entry: number | null
  readonly position: number | null
}

/** Points of a plane, and where each row is from; without a place: frames of before places were told. */
export interface Points {
  readonly x: Float32Array
  readonly y: Float32Array
  readonly places: readonly (RowPlace | undefined)[]
  readonly count: number
  readonly reach: { readonly left: number; readonly right: number; readonly bottom: number; readonly top: number }
}

const NEAR = 14
/** Of each row: its generation, its step, entry of the batch, position (core/scope/frame.py). */
const PLACE = 4
const UNKNOWN = 0xffffffff
const AIR = 28

/** A PCA's first two components; of one component all lie on a line. */
export function spread({ frame, values, rows }: Pick<Picture, 'frame' | 'values' | 'rows'>): Points {
  const components = frame.dims.at(-1) ?? 0
  const count = components ? Math.floor(values.length / components) : 0
  const x = Float32Array.from({ length: count }, (_, i) => values[i * components])
  const y = components > 1 ? Float32Array.from({ length: count }, (_, i) => values[i * components + 1]) : new Float32Array(count)
  const numberOf = (at: number): number | null => (rows![at] === UNKNOWN ? null : rows![at])
  const known = rows?.length === PLACE * count
  const places = Array.from({ length: count }, (_, i) => (known ? { step: rows[PLACE * i + 1], entry: numberOf(PLACE * i + 2), position: numberOf(PLACE * i + 3) } : undefined))
  const reach = { left: Infinity, right: -Infinity, bottom: Infinity, top: -Infinity }
  for (let i = 0; i < count; i += 1) {
    if (!Number.isFinite(x[i]) || !Number.isFinite(y[i])) continue
    reach.left = Math.min(reach.left, x[i])
    reach.right = Math.max(reach.right, x[i])
    reach.bottom = Math.min(reach.bottom, y[i])
    reach.top = Math.max(reach.top, y[i])
  }
  return { x, y, places, count, reach }
}

const place = (value: number, from: number, to: number, room: number): number => AIR + ((value - from) / (to - from || 1)) * (room - 2 * AIR)

const across = ({ reach }: Points, value: number, width: number): number => place(value, reach.left, reach.right, width)
const up = ({ reach }: Points, value: number, height: number): number => height - place(value, reach.bottom, reach.top, height)

export function nearestPoint(points: Points, width: number, height: number, x: number, y: number): number | null {
  let [found, best]: [number | null, number] = [null, NEAR ** 2]
  for (let i = 0; i < points.count; i += 1) {
    const distance = (across(points, points.x[i], width) - x) ** 2 + (up(points, points.y[i], height) - y) ** 2
    if (distance < best) [found, best] = [i, distance]
  }
  return found
}

export interface PointsScene {
  readonly points: Points
  readonly width: number
  readonly height: number
  readonly palette: Palette
  readonly pointed: number | null
  readonly chosen: number | null
  readonly axes: readonly string[]
}

/** Entries of the batch differ by shape and colour; what is newer is drawn over what is older. */
export function paintPoints(pen: CanvasRenderingContext2D, { points, width, height, palette, pointed, chosen, axes }: PointsScene): void {
  pen.fillStyle = palette.background
  pen.fillRect(0, 0, width, height)
  pen.fillStyle = palette.line
  pen.fillRect(AIR, height - AIR / 2, width - 2 * AIR, 1)
  pen.fillRect(AIR / 2, AIR, 1, height - 2 * AIR)
  pen.font = `11px ${palette.font}`
  pen.fillStyle = palette.muted
  pen.textBaseline = 'alphabetic'
  pen.textAlign = 'right'
  pen.fillText(axes[0] ?? '', width - AIR, height - 3)
  pen.textAlign = 'left'
  pen.fillText(axes[1] ?? '', AIR / 2 + 6, 14)
  const inks = [palette.compute, palette.culprit, palette.host, palette.wait]
  for (let i = 0; i < points.count; i += 1) {
    const kind = points.places[i]?.entry ?? 0
    pen.fillStyle = inks[kind % inks.length]
    pen.globalAlpha = 0.35 + (0.65 * (i + 1)) / points.count
    shape(pen, kind, across(points, points.x[i], width), up(points, points.y[i], height), 3)
  }
  pen.globalAlpha = 1
  for (const at of [chosen, pointed]) {
    if (at === null || at < 0 || at >= points.count) continue
    pen.strokeStyle = palette.text
    pen.lineWidth = 2
    pen.strokeRect(across(points, points.x[at], width) - 6, up(points, points.y[at], height) - 6, 12, 12)
  }
}

function shape(pen: CanvasRenderingContext2D, kind: number, x: number, y: number, size: number): void {
  if (kind % 3 === 1) return pen.fillRect(x - size, y - size, 2 * size, 2 * size)
  pen.beginPath()
  if (kind % 3 === 2) {
    pen.moveTo(x, y - size - 1)
    pen.lineTo(x + size + 1, y + size)
    pen.lineTo(x - size - 1, y + size)
  } else pen.arc(x, y, size, 0, 2 * Math.PI)
  pen.fill()
}
