import type { Palette } from './palette'

export interface Crosshair {
  readonly x: number
  readonly y: number
}

/** Thin lines through a point, within a box. */
export function paintCrosshair(
  pen: CanvasRenderingContext2D,
  at: Crosshair,
  box: { readonly left: number; readonly top: number; readonly right: number; readonly bottom: number },
  palette: Palette,
): void {
  if (at.x < box.left || at.x > box.right || at.y < box.top || at.y > box.bottom) return
  pen.fillStyle = palette.muted
  pen.globalAlpha = 0.5
  pen.fillRect(Math.round(at.x), box.top, 1, box.bottom - box.top)
  pen.fillRect(box.left, Math.round(at.y), box.right - box.left, 1)
  pen.globalAlpha = 1
}
