import { describe, expect, it } from 'vitest'
import { LayerStatistics, pictureOfTable } from '@/lib/layerStatistics'
import { componentsTable, headsTable, histogramTable, replicasTable, statisticsTable } from '@/lib/panelTables'
import type { Picture } from '@/scope/picture'

function picture(dims: readonly number[], values: readonly number[], { layer = 0, step = 5, ...rest }: Partial<Picture & { layer: number; step: number }> = {}): Picture {
  const made = pictureOfTable(Float32Array.from(values), 1, values.length)
  return { ...made, ...rest, frame: { ...made.frame, dims: [...dims], layer, step } }
}

describe('tables of panels', () => {
  it('hold the statistics of all steps that are kept, and nothing of a layer that was not watched then', () => {
    const statistics = new LayerStatistics()
    statistics.take(picture([2], [1, 2], { layer: 0, step: 3 }))
    statistics.take(picture([2], [3, NaN], { layer: 1, step: 4 }))
    expect(statisticsTable(statistics, ['mean', 'absmax'])).toEqual({ header: ['step', 'layer', 'mean', 'absmax'], rows: [[3, 0, 1, 2], [4, 1, 3, NaN]] })
  })

  it('hold each replica that came', () => {
    const missing = picture([2, 2], [1, 2, 0, 0], { states: Uint8Array.from([0, 0, 3, 3]) })
    expect(replicasTable([picture([2, 2], [1, 2, 3, 4], { layer: 1 }), missing], ['mean', 'std']).rows).toEqual([[5, 1, 0, 1, 2], [5, 1, 1, 3, 4], [5, 0, 0, 1, 2]])
  })

  it('say where each bin begins and ends', () => {
    expect(histogramTable([picture([2], [7, 9])], 'resid_post | hist(2,-1,3)').rows).toEqual([[5, 0, -1, 1, 7], [5, 0, 1, 3, 9]])
    const [[, , from, , ], [, , , to]] = histogramTable([picture([2], [7, 9])], 'resid_post | hist(2,asinh)').rows
    expect([from, to]).toEqual([expect.closeTo(-1e4, 6), expect.closeTo(1e4, 6)])
  })

  it('leave out what can’t be said of a head', () => {
    const map = (head: number, rows: number) => ({ layer: 0, head, rows, columns: 2, values: Float32Array.from([1, 0, 1, 0]), states: Uint8Array.from([0, 2, 0, 0]) })
    expect(headsTable([map(1, 1), map(0, 2)], [])).toEqual({ header: ['layer', 'head', 'entropy', 'previous', 'sink', 'induction'], rows: [[0, 0, 0, 1, 1, null], [0, 1, null, null, null, null]] })
  })

  it('name each row of principal components; rows of before places were told have none', () => {
    const components = picture([2, 2], [1, 2, 3, 4], { explained: Float32Array.from([0.5, 0.25]), rows: Uint32Array.from([0, 7, 1, 3, 0, 8, 0xffffffff, 0]) })
    expect(componentsTable(components, ({ position }) => `t${position}`)).toEqual({
      header: ['step', 'entry', 'position', 'token', 'component 1 (50.0 %)', 'component 2 (25.0 %)'], rows: [[7, 1, 3, 't3', 1, 2], [8, null, 0, 't0', 3, 4]],
    })
    expect(componentsTable({ ...components, rows: null }, () => 'x').rows[0]).toEqual([null, null, null, '', 1, 2])
  })
})
