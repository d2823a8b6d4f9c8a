import type { Lut } from './colourMap'
import { fromPixel } from './colourMap'
import type { Palette } from './palette'
import type { Scale } from './scale'
import { quantise } from './scale'

export interface ColourBarScene {
  readonly scale: Scale
  readonly lut: Lut
  readonly label: (value: number) => string
  readonly palette: Palette
  readonly width: number
  readonly height: number
}

const BAR = 8

/** What the colours of a picture mean: the bar from low to high, its ticks below it. Values beyond the ends have the ends' colours. */
export function paintColourBar(pen: CanvasRenderingContext2D, scene: ColourBarScene): void {
  const { scale, lut, palette, width, height } = scene
  pen.fillStyle = palette.background
  pen.fillRect(0, 0, width, height)
  for (let x = 0; x < width; x += 1) {
    pen.fillStyle = fromPixel(lut[1 + Math.round((x / Math.max(1, width - 1)) * 254)])
    pen.fillRect(x, 0, 1, BAR)
  }
  pen.font = `11px ${palette.font}`
  pen.textBaseline = 'top'
  for (const tick of scale.ticks) {
    const unit = (quantise(tick, scale) - 1) / 254
    const x = Math.round(unit * (width - 1))
    pen.fillStyle = palette.text
    pen.fillRect(x, BAR, 1, 3)
    pen.fillStyle = palette.muted
    pen.textAlign = unit < 0.05 ? 'left' : unit > 0.95 ? 'right' : 'center'
    pen.fillText(scene.label(tick), x, BAR + 4)
  }
}
