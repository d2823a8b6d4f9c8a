import type { Lut } from '../colourMap'
import type { Scale } from '../scale'
import type { StepGrid } from './grid'
import type { Quantity } from './heat'
import { paintCells, runsOf } from './heat'
import type { Group, Layout } from './layout'
import type { Axis, Window } from './view'
import { bucketSpan, visibleBuckets } from './view'

export interface HeatLook {
  readonly quantity: Quantity
  readonly scale: Scale
  readonly lut: Lut
}

/** The cells of a grid as an image, a pixel each, so that moving and zooming only copy it. New buckets are painted alone. */
export class HeatImage {
  private canvas?: HTMLCanvasElement
  private image?: ImageData
  private grid?: StepGrid
  private layout?: Layout
  private look?: HeatLook
  private end = 0

  /** Brings the image up to date. */
  update(grid: StepGrid, layout: Layout, look: HeatLook): void {
    const changed = grid.takeChanged()
    const rows = layout.groups.flatMap(({ group }) => (group ? [...group.rows] : []))
    const same = this.grid === grid && this.layout === layout && this.look === look && this.image
    if (!same) {
      this.canvas ??= document.createElement('canvas')
      this.canvas.width = grid.capacity
      this.canvas.height = Math.max(1, rows.length)
      this.image = new ImageData(this.canvas.width, this.canvas.height)
      ;[this.grid, this.layout, this.look] = [grid, layout, look]
    }
    const from = same ? Math.min(changed, this.end) : grid.first
    this.end = grid.end
    if (!this.image || !this.canvas || from >= grid.end) return
    const pixels = new Uint32Array(this.image.data.buffer)
    paintCells(pixels, grid, look.quantity, rows, look.scale, look.lut, from, grid.end)
    const pen = this.canvas.getContext('2d')
    for (const run of runsOf(grid, Math.max(from, grid.first), grid.end)) {
      pen?.putImageData(this.image, 0, 0, run.slot, 0, run.count, this.canvas.height)
    }
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
