import { describe, expect, it } from 'vitest'
import { edgesOf, marksThatFit } from '@/lib/histogram'
import { signed } from '@/lib/cells'

const edge = edgesOf('layers[1].resid_post | hist(48)', 48)
const textAt = (share: number): string => signed(edge(48 * share))
const widthOf = (text: string): number => 6 * text.length

describe('marks under a histogram', () => {
  it.each([[342, 5], [640, 7], [120, 3]])('on %i pixels are %i and do not touch', (width, count) => {
    const marks = marksThatFit(textAt, width, widthOf)

    expect(marks).toHaveLength(count)
    marks.slice(1).forEach(({ left }, i) => expect(left).toBeGreaterThan(marks[i].left + widthOf(marks[i].text)))
  })

  it('are of both ends and the middle, within the picture', () => {
    const marks = marksThatFit(textAt, 342, widthOf)

    expect([marks[0], marks.at(-1)].map((mark) => mark?.text)).toEqual(['−10,000', '10,000'])
    expect(marks[(marks.length - 1) / 2].text).toBe('0')
    expect(marks[0].left).toBe(0)
    expect(marks[marks.length - 1].left + widthOf('10,000')).toBe(342)
  })
})
