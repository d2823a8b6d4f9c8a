import type { StepGrid } from './grid'
import type { Axis, Window } from './view'
import { span, visibleBuckets } from './view'

/**
 * Bars of one row: buckets narrower than `smallest` pixels are put together until they are wide enough, and their
 * shares are weighed by time, so that zooming out averages and never drops a step. Arrays have one length; x in pixels.
 */
export interface Segments {
  readonly from: Float64Array
  readonly to: Float64Array
  /** Shares of the bar's time; what is missing to 1 is not accounted for. */
  readonly compute: Float64Array
  readonly wait: Float64Array
  readonly host: Float64Array
  readonly count: number
}

export function rowSegments(grid: StepGrid, axis: Axis, row: number, window: Window, width: number, smallest = 1.5): Segments {
  const [first, end] = visibleBuckets(grid, axis, window)
  const room = Math.max(0, end - first)
  const column = (): Float64Array => new Float64Array(room)
  const out = { from: column(), to: column(), compute: column(), wait: column(), host: column(), count: 0 }
  const scale = width / (window.to - window.from)
  let open = false
  let [compute, wait, host, total] = [0, 0, 0, 0]
  const close = (): void => {
    out.compute[out.count] = compute / total
    out.wait[out.count] = wait / total
    out.host[out.count] = host / total
    out.count += 1
    open = false
  }
  for (let bucket = first; bucket < end; bucket += 1) {
    const cell = grid.cell(bucket, row)
    if (Number.isNaN(grid.duration[cell])) {
      if (open) close()
      continue
    }
    const at = span(grid, axis, row, bucket)
    if (!open) {
      out.from[out.count] = (at.from - window.from) * scale
      ;[compute, wait, host, total] = [0, 0, 0, 0]
      open = true
    }
    out.to[out.count] = (at.to - window.from) * scale
    compute += grid.compute[cell]
    wait += grid.wait[cell]
    host += grid.host[cell]
    // Parts may overlap the step's edge by a clock's grain: the bar never overflows.
    total += Math.max(grid.duration[cell], grid.compute[cell] + grid.wait[cell] + grid.host[cell], Number.MIN_VALUE)
    if (out.to[out.count] - out.from[out.count] >= smallest) close()
  }
  if (open) close()
  return out
}
