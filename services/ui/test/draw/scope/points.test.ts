import { expect, it } from 'vitest'
import { paintPoints, spread } from '@/draw/scope/points'
import { PALETTE, recordingPen } from '../../support/pen'

it('names of both axes stand where no point can be', () => {
  const points = spread({ frame: { dims: [2, 2] }, values: Float32Array.of(0, 0, 1, 1), rows: undefined } as unknown as Parameters<typeof spread>[0])
  const pen = recordingPen()
  const dots: [number, number][] = []
  pen.arc = (x: number, y: number) => void dots.push([x, y])

  paintPoints(pen, { points, width: 300, height: 200, palette: PALETTE, pointed: null, chosen: null, axes: ['across', 'up'] })

  const [across, up] = ['across', 'up'].map((text) => pen.texts.find((one) => one.text === text)?.y ?? NaN)
  const heights = dots.map(([, y]) => y)
  expect(across - 11).toBeGreaterThan(Math.max(...heights) + 3)
  expect(up).toBeLessThan(Math.min(...heights) - 3)
})
