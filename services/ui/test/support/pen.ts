import type { Palette } from '@/draw/palette'

/** Each colour is its own name, so that a test sees which was taken. */
export const PALETTE = new Proxy({} as Palette, { get: (_, name) => `<${String(name)}>` })

export interface RecordingPen extends CanvasRenderingContext2D {
  readonly rects: { style: string; x: number; y: number; width: number; height: number }[]
  readonly texts: { text: string; x: number; y: number; align: string; style: string }[]
  readonly moves: [number, number][]
}

/** A canvas's context that draws nothing and remembers what was asked for; texts are six pixels a character. */
export function recordingPen(): RecordingPen {
  const pen = {
    rects: [] as RecordingPen['rects'],
    texts: [] as RecordingPen['texts'],
    moves: [] as RecordingPen['moves'],
    fillStyle: '',
    strokeStyle: '',
    textAlign: 'left',
    fillRect: (x: number, y: number, width: number, height: number) => void pen.rects.push({ style: pen.fillStyle, x, y, width, height }),
    fillText: (text: string, x: number, y: number) => void pen.texts.push({ text, x, y, align: pen.textAlign, style: pen.fillStyle }),
    moveTo: (x: number, y: number) => void pen.moves.push([x, y]),
    measureText: (text: string) => ({ width: 6 * text.length }),
  }
  const known: Record<string, unknown> = pen
  return new Proxy(pen, { get: (_, name: string) => known[name] ?? (() => undefined), set: (_, name: string, value) => ((known[name] = value), true) }) as unknown as RecordingPen
}
