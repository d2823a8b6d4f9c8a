/** Pixels of the screen for one of CSS. */
export const density = (): number => window.devicePixelRatio || 1

/** Fits a canvas to its size on the page at the screen's resolution; drawing then is in CSS pixels. */
export function prepareCanvas(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D | null {
  const dense = density()
  const pixels = [Math.max(1, Math.round(width * dense)), Math.max(1, Math.round(height * dense))]
  if (canvas.width !== pixels[0]) canvas.width = pixels[0]
  if (canvas.height !== pixels[1]) canvas.height = pixels[1]
  const context = canvas.getContext('2d', { alpha: false })
  context?.setTransform(dense, 0, 0, dense, 0, 0)
  return context
}

export type Hatch = 'diagonal' | 'dots'

const TILE = 6

const hatches = new Map<string, CanvasPattern | null>()

/** A small repeated texture, so that parts differ in shape and not in colour alone; made once for each screen and ink. */
export function hatch(context: CanvasRenderingContext2D, kind: Hatch, ink: string): CanvasPattern | null {
  const density = window.devicePixelRatio || 1
  const key = `${kind} ${ink} ${density}`
  if (!hatches.has(key)) hatches.set(key, makeHatch(context, kind, ink, density))
  return hatches.get(key) ?? null
}

function makeHatch(context: CanvasRenderingContext2D, kind: Hatch, ink: string, density: number): CanvasPattern | null {
  const tile = document.createElement('canvas')
  tile.width = tile.height = Math.round(TILE * density)
  const pen = tile.getContext('2d')
  if (!pen) return null
  pen.scale(density, density)
  pen.strokeStyle = pen.fillStyle = ink
  if (kind === 'diagonal') {
    pen.lineWidth = 1
    for (const shift of [-TILE, 0, TILE]) {
      pen.moveTo(shift - 1, TILE + 1)
      pen.lineTo(shift + TILE + 1, -1)
    }
    pen.stroke()
  } else {
    pen.fillRect(1, 1, 1.5, 1.5)
    pen.fillRect(4, 4, 1.5, 1.5)
  }
  const pattern = context.createPattern(tile, 'repeat')
  pattern?.setTransform(new DOMMatrix().scale(1 / density))
  return pattern
}
