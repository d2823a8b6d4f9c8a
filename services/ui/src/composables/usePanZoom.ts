import { useEventListener } from '@vueuse/core'
import type { Ref } from 'vue'

/** What a person does with a picture; x and y in pixels from its top left corner. */
export interface PanZoomHandlers {
  /** Dragged sideways and down by so many pixels since it was pressed. */
  readonly drag: (pixels: number, down: number) => void
  readonly dragStart: () => void
  readonly zoom: (factor: number, x: number, y: number) => void
  readonly pan: (pixels: number) => void
  readonly point: (at: { x: number; y: number } | null) => void
  readonly click: (at: { x: number; y: number }) => void
  /** Whether a plain wheel zooms; else it scrolls. */
  readonly wheelZooms: () => boolean
}

const CLICK_PIXELS = 3
const WHEEL_RATE = 0.0015

/** Dragging, two fingers and the wheel on a canvas: moving and zooming, pointing and clicking. */
export function usePanZoom(canvas: Readonly<Ref<HTMLElement | null>>, handlers: PanZoomHandlers): void {
  const pressed = new Map<number, { x: number; y: number }>()
  let drag: { x: number; y: number; moved: boolean } | null = null
  let pinch = 0

  const place = (event: MouseEvent): { x: number; y: number } => {
    const box = canvas.value!.getBoundingClientRect()
    return { x: event.clientX - box.left, y: event.clientY - box.top }
  }
  const spread = (): number => {
    const [a, b] = [...pressed.values()]
    return Math.hypot(a.x - b.x, a.y - b.y)
  }

  useEventListener(canvas, 'pointerdown', (event: PointerEvent) => {
    if (event.button !== 0) return
    canvas.value?.setPointerCapture(event.pointerId)
    pressed.set(event.pointerId, { x: event.clientX, y: event.clientY })
    if (pressed.size === 2) {
      pinch = spread()
      drag = null
    } else {
      drag = { x: event.clientX, y: event.clientY, moved: false }
      handlers.dragStart()
    }
  })
  useEventListener(canvas, 'pointermove', (event: PointerEvent) => {
    if (pressed.has(event.pointerId)) pressed.set(event.pointerId, { x: event.clientX, y: event.clientY })
    if (pressed.size === 2 && pinch > 0) {
      const [a, b] = [...pressed.values()]
      const now = Math.max(1, spread())
      const box = canvas.value!.getBoundingClientRect()
      handlers.zoom(pinch / now, (a.x + b.x) / 2 - box.left, (a.y + b.y) / 2 - box.top)
      pinch = now
      return
    }
    const [pixels, down] = drag ? [event.clientX - drag.x, event.clientY - drag.y] : [0, 0]
    if (drag) drag.moved ||= Math.hypot(pixels, down) > CLICK_PIXELS
    handlers.point(drag?.moved ? null : place(event))
    if (drag?.moved) handlers.drag(pixels, down)
  })
  const release = (event: PointerEvent): void => {
    pressed.delete(event.pointerId)
    if (drag && !drag.moved && event.type === 'pointerup') handlers.click(place(event))
    drag = null
    pinch = 0
  }
  useEventListener(canvas, 'pointerup', release)
  useEventListener(canvas, 'pointercancel', release)
  useEventListener(canvas, 'pointerleave', () => handlers.point(null))
  useEventListener(
    canvas,
    'wheel',
    (event: WheelEvent) => {
      const sideways = event.shiftKey ? event.deltaY : event.deltaX
      if (event.ctrlKey || (!sideways && handlers.wheelZooms())) handlers.zoom(Math.exp(event.deltaY * WHEEL_RATE), place(event).x, place(event).y)
      else if (sideways) handlers.pan(sideways)
      else return
      event.preventDefault()
    },
    { passive: false },
  )
}
