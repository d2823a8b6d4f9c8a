import type { StepGrid } from './grid'
import type { Layout, Row } from './layout'
import { rowAt } from './layout'
import type { Axis, Window } from './view'
import { bucketSpan, visibleBuckets } from './view'

export interface Cell {
  readonly row: Row
  readonly bucket: number
}

/** The rank and bucket under a point of the plot; x in pixels from its left edge, y in pixels of the layout. */
export function hit(grid: StepGrid, layout: Layout, axis: Axis, window: Window, width: number, x: number, y: number): Cell | null {
  const row = rowAt(layout, y)
  if (!row) return null
  const position = window.from + (x / width) * (window.to - window.from)
  const [first, end] = visibleBuckets(grid, axis, window)
  for (let bucket = first; bucket < end; bucket += 1) {
    const at = bucketSpan(grid, axis, bucket)
    if (position < at.from || position >= at.to) continue
    return Number.isNaN(grid.duration[grid.cell(bucket, row.index)]) ? null : { row, bucket }
  }
  return null
}

/** The step under a place within a bucket. */
export function stepWithin(grid: StepGrid, axis: Axis, bucket: number, position: number): number {
  const { from, to } = bucketSpan(grid, axis, bucket)
  const share = Math.min(1 - 1e-9, Math.max(0, (position - from) / (to - from)))
  const step = Math.floor((bucket + share) * grid.bucketSteps)
  return Math.min(grid.newestStep, Math.max(grid.oldestStep, step))
}
