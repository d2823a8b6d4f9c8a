import type { TimelineModel } from './model'
import type { Axis, Window } from './view'
import { span, visibleSteps } from './view'

/**
 * Bars of one row: steps narrower than `smallest` pixels are put together until they are wide enough, and their shares
 * are weighed by time, so that zooming out averages and never drops a step. Arrays have one length; x in pixels.
 */
export interface Segments {
  readonly from: Float64Array
  readonly to: Float64Array
  /** Shares of the bar's time; what is missing to 1 is not accounted for. */
  readonly compute: Float64Array
  readonly wait: Float64Array
  readonly host: Float64Array
  readonly firstStep: Int32Array
  readonly count: number
}

export function rowSegments(
  model: TimelineModel,
  axis: Axis,
  row: number,
  window: Window,
  width: number,
  smallest = 1.5,
): Segments {
  const [first, end] = visibleSteps(model, axis, window)
  const room = Math.max(0, end - first)
  const out = {
    from: new Float64Array(room),
    to: new Float64Array(room),
    compute: new Float64Array(room),
    wait: new Float64Array(room),
    host: new Float64Array(room),
    firstStep: new Int32Array(room),
    count: 0,
  }
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
  for (let index = first; index < end; index += 1) {
    const cell = row * model.steps.length + index
    if (Number.isNaN(model.start[cell])) {
      if (open) close()
      continue
    }
    const at = span(model, axis, row, index)
    if (!open) {
      out.from[out.count] = (at.from - window.from) * scale
      out.firstStep[out.count] = model.steps[index]
      ;[compute, wait, host, total] = [0, 0, 0, 0]
      open = true
    }
    out.to[out.count] = (at.to - window.from) * scale
    compute += model.compute[cell]
    wait += model.wait[cell]
    host += model.host[cell]
    // Parts may overlap the step's edge by a clock's grain: the bar never overflows.
    total += Math.max(model.duration[cell], model.compute[cell] + model.wait[cell] + model.host[cell], Number.MIN_VALUE)
    if (out.to[out.count] - out.from[out.count] >= smallest) close()
  }
  if (open) close()
  return out
}
