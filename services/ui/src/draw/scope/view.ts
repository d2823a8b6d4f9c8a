import type { Plane } from '@/scope/picture'

/** What is seen of a plane, in cells: x along columns, y along rows. */
export interface MapWindow {
  readonly x: number
  readonly y: number
  readonly width: number
  readonly height: number
}

export interface Box {
  readonly left: number
  readonly top: number
  readonly width: number
  readonly height: number
}

/** Fewer cells than this are not worth zooming to. */
const FEWEST = 4

export const whole = ({ rows, columns }: Pick<Plane, 'rows' | 'columns'>): MapWindow => ({ x: 0, y: 0, width: columns, height: rows })

export const isWhole = (window: MapWindow, plane: Pick<Plane, 'rows' | 'columns'>): boolean => window.width >= plane.columns && window.height >= plane.rows

/** Inside of the plane, not smaller than a few cells. */
export function fitted(window: MapWindow, plane: Pick<Plane, 'rows' | 'columns'>): MapWindow {
  const [x, width] = fittedAxis(window.x, window.width, plane.columns)
  const [y, height] = fittedAxis(window.y, window.height, plane.rows)
  return { x, y, width, height }
}

function fittedAxis(from: number, size: number, all: number): [number, number] {
  const kept = Math.min(all, Math.max(Math.min(FEWEST, all), size))
  return [Math.min(all - kept, Math.max(0, from)), kept]
}

/** Larger by `factor` around a place in cells. */
export function zoomed(window: MapWindow, factor: number, at: { x: number; y: number }, plane: Pick<Plane, 'rows' | 'columns'>): MapWindow {
  const width = window.width * factor
  const height = window.height * factor
  // An axis that is whole stays whole; the other goes on.
  const x = at.x - ((at.x - window.x) / window.width) * width
  const y = at.y - ((at.y - window.y) / window.height) * height
  return fitted({ x, y, width, height }, plane)
}

export function moved(window: MapWindow, columns: number, rows: number, plane: Pick<Plane, 'rows' | 'columns'>): MapWindow {
  return fitted({ ...window, x: window.x + columns, y: window.y + rows }, plane)
}

/** The place in cells below a pixel; null: beside the picture. */
export function placeAt(window: MapWindow, box: Box, x: number, y: number): { x: number; y: number } | null {
  const [across, down] = [(x - box.left) / box.width, (y - box.top) / box.height]
  if (across < 0 || across >= 1 || down < 0 || down >= 1) return null
  return { x: window.x + across * window.width, y: window.y + down * window.height }
}

/** The cells of an axis that are drawn, and where the window is among them. */
export interface Drawn {
  readonly cells: Uint32Array
  readonly start: number
  readonly length: number
  /** The window's first cell. */
  readonly from: number
  /** Drawn ones for each cell of the window. */
  readonly share: number
}

/** All cells in view, or one for each of the pixels where there are fewer of these. */
export function drawnCells(from: number, size: number, all: number, pixels: number): Drawn {
  if (size > pixels) {
    const cells = Uint32Array.from({ length: pixels }, (_, i) => Math.min(all - 1, Math.floor(from + ((i + 0.5) * size) / pixels)))
    return { cells, start: 0, length: pixels, from, share: pixels / size }
  }
  const first = Math.floor(from)
  const cells = Uint32Array.from({ length: Math.min(all, Math.ceil(from + size)) - first }, (_, i) => first + i)
  return { cells, start: from - first, length: size, from, share: 1 }
}

/** Which of the drawn cells stands for this one; -1: it is not in view. */
export function standsFor({ cells, start, from, share }: Drawn, cell: number): number {
  const at = Math.floor((cell + 0.5 - from) * share + start)
  return at >= 0 && at < cells.length ? at : -1
}

/** Where a picture of so many cells goes in the room: square cells where that leaves them large enough, else all of it. */
export function boxOf(room: Box, window: MapWindow): Box {
  const cell = Math.min(room.width / window.width, room.height / window.height)
  const used = (cell * window.width * cell * window.height) / (room.width * room.height)
  if (used < 0.55) return room
  return { left: room.left, top: room.top, width: cell * window.width, height: cell * window.height }
}
