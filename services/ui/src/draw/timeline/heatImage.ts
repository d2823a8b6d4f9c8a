import type { Lut } from '../colourMap'
import type { Scale } from '../scale'
import type { StepGrid } from './grid'
import type { Quantity, Stretch } from './heat'
import { paintCells, runsOf, unpainted } from './heat'
import type { Group, Layout } from './layout'
import type { Axis, Window } from './view'
import { bucketSpan, visibleBuckets } from './view'

export interface HeatLook {
  readonly quantity: Quantity
  readonly scale: Scale
  readonly lut: Lut
}

const NOTHING: Stretch = { from: 0, end: 0 }

/** The cells of a grid as an image, a pixel each, so that moving and zooming only copy it. What comes into view or is new is painted alone. */
export class HeatImage {
  private canvas?: HTMLCanvasElement
  private image?: ImageData
  private grid?: StepGrid
  private layout?: Layout
  private look?: HeatLook
  private painted = NOTHING

  /** Brings the image up to date, as far as it is seen. */
  update(grid: StepGrid, layout: Layout, look: HeatLook, axis: Axis, window: Window): void {
    const changed = grid.takeChanged()
    const rows = layout.groups.flatMap(({ group }) => (group ? [...group.rows] : []))
    const same = this.grid === grid && this.layout === layout && this.look === look
    if (!same) {
      this.canvas ??= document.createElement('canvas')
      this.canvas.width = grid.capacity
      this.canvas.height = Math.max(1, rows.length)
      this.image = new ImageData(this.canvas.width, this.canvas.height)
      ;[this.grid, this.layout, this.look, this.painted] = [grid, layout, look, NOTHING]
    }
    const stands = { from: Math.max(this.painted.from, grid.first), end: Math.min(this.painted.end, changed) }
    const [from, end] = visibleBuckets(grid, axis, window)
    const { parts, painted } = unpainted(stands, { from, end })
    this.painted = painted
    for (const part of parts) this.paint(grid, rows, look, part)
  }

  private paint(grid: StepGrid, rows: readonly number[], look: HeatLook, { from, end }: Stretch): void {
    if (!this.image || !this.canvas) return
    paintCells(new Uint32Array(this.image.data.buffer), grid, look.quantity, rows, look.scale, look.lut, from, end)
    const pen = this.canvas.getContext('2d')
    for (const run of runsOf(grid, from, end)) pen?.putImageData(this.image, 0, 0, run.slot, 0, run.count, this.canvas.height)
  }

  /** Draws a group's part for the window into [left, left + width). */
  draw(pen: CanvasRenderingContext2D, group: Group, axis: Axis, window: Window, left: number, width: number): void {
    const [top] = group.rows
    if (!this.canvas || !this.grid || !top) return
    const { grid } = this
    const height = group.rows.length * top.height
    const [first, end] = visibleBuckets(grid, axis, window)
    const xOf = (position: number): number => left + ((position - window.from) / (window.to - window.from)) * width
    const copy = (slot: number, count: number, from: number, to: number): void => {
      pen.drawImage(this.canvas!, slot, top.place, count, group.rows.length, xOf(from), top.y, xOf(to) - xOf(from), height)
    }
    pen.imageSmoothingEnabled = false
    for (const { slot, bucket, count } of runsOf(grid, first, end)) {
      if (axis === 'steps') copy(slot, count, bucket * grid.bucketSteps, (bucket + count) * grid.bucketSteps)
      else for (let i = 0; i < count; i += 1) copyBucket(bucket + i, slot + i)
    }
    function copyBucket(bucket: number, slot: number): void {
      const { from, to } = bucketSpan(grid, axis, bucket)
      if (to > from) copy(slot, 1, from, to)
    }
  }
}
