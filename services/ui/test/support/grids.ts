import { decodeColumns } from '@/api/columns'
import type { GridColumns } from '@/draw/timeline/grid'
import { StepGrid } from '@/draw/timeline/grid'
import { gridBytes } from './grid'
import type { GridQuestion } from './grid'
import type { World } from './world'

/** What a page gets of a run. */
export function columnsOf(world: World, asked: Partial<GridQuestion> = {}): GridColumns {
  const bytes = gridBytes(world, { from: 0, to: 0, buckets: 512, bucketSteps: 0, ...asked })
  return decodeColumns(bytes.buffer) as unknown as GridColumns
}

export function gridOf(world: World, asked: Partial<GridQuestion> = {}, capacity = 1): StepGrid {
  return new StepGrid(columnsOf(world, asked), capacity)
}
