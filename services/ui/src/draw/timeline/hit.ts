import type { Layout, Row } from './layout'
import type { TimelineModel } from './model'
import type { Axis, Window } from './view'
import { span, visibleSteps } from './view'

export interface Cell {
  readonly row: Row
  readonly stepIndex: number
}

/** The rank and step under a point of the plot; x in pixels from its left edge, y in pixels of the layout. */
export function hit(
  model: TimelineModel,
  layout: Layout,
  axis: Axis,
  window: Window,
  width: number,
  x: number,
  y: number,
): Cell | null {
  const row = layout.rows.find((candidate) => y >= candidate.y && y < candidate.y + candidate.height)
  if (!row) return null
  const position = window.from + (x / width) * (window.to - window.from)
  const [first, end] = visibleSteps(model, axis, window)
  for (let index = first; index < end; index += 1) {
    const at = span(model, axis, row.index, index)
    if (position >= at.from && position < at.to) return { row, stepIndex: index }
  }
  return null
}
