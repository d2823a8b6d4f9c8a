import { expect, it } from 'vitest'
import { axisMarks, paintAxis } from '@/draw/axis'
import { paintCrosshair } from '@/draw/crosshair'
import { PALETTE, recordingPen } from '../support/pen'

const axis = { from: 0, to: 10, left: 100, right: 600, bottom: 300, height: 30, whole: true, label: String, palette: PALETTE }

it('marks round values, whole ones where only these mean something', () => {
  expect(axisMarks(axis)).toEqual([0, 2, 4, 6, 8, 10])
  expect(axisMarks({ ...axis, to: 1 })).toEqual([0, 1])
  expect(axisMarks({ ...axis, to: 1, whole: false })).toContain(0.2)
})

it('writes a label at each mark that has room for it', () => {
  const pen = recordingPen()
  paintAxis(pen, axis)
  expect(pen.texts.map(({ text, x }) => [text, x])).toEqual([['0', 104.5], ['2', 204.5], ['4', 304.5], ['6', 404.5], ['8', 504.5]])
})

it('draws lines through a point within its box alone', () => {
  const pen = recordingPen()
  const box = { left: 100, top: 30, right: 600, bottom: 300 }
  paintCrosshair(pen, { x: 50, y: 100 }, box, PALETTE)
  expect(pen.rects).toEqual([])
  paintCrosshair(pen, { x: 200, y: 100 }, box, PALETTE)
  expect(pen.rects).toEqual([
    { style: '<muted>', x: 200, y: 30, width: 1, height: 270 },
    { style: '<muted>', x: 100, y: 100, width: 500, height: 1 },
  ])
})
