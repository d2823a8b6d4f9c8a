import type { Ref, WatchSource } from 'vue'
import { onBeforeUnmount, watch } from 'vue'
import { prepareCanvas } from '@/draw/canvas'

/** In CSS pixels; as `useElementSize` tells it. */
export interface CanvasSize {
  readonly width: Readonly<Ref<number>>
  readonly height: Readonly<Ref<number>>
}

/**
 * Keeps a canvas as large as it should be, and painted: again in the next frame after any of `sources` has changed, once a
 * frame at most. `paint` draws in CSS pixels.
 */
export function useCanvas(
  canvas: Readonly<Ref<HTMLCanvasElement | null>>,
  { width, height }: CanvasSize,
  sources: readonly WatchSource[],
  paint: (pen: CanvasRenderingContext2D, width: number, height: number) => void,
): void {
  let frame = 0
  const draw = (): void => {
    frame = 0
    if (!canvas.value || width.value <= 0 || height.value <= 0) return
    const pen = prepareCanvas(canvas.value, width.value, height.value)
    if (pen) paint(pen, width.value, height.value)
  }
  watch([width, height, ...sources], () => (frame ||= requestAnimationFrame(draw)), { immediate: true, flush: 'post' })
  onBeforeUnmount(() => cancelAnimationFrame(frame))
}
