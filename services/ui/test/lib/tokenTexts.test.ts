import { describe, expect, it } from 'vitest'
import { nameOfToken, positionsOf, textOf, textsOf } from '@/lib/tokenTexts'
import { unpack } from '@/scope/frame'
import { pictureOf } from '@/scope/picture'
import type { Picture } from '@/scope/picture'
import { packFrame, packTexts } from '../support/scopeFrames'

const picture = (ids: number[], tokenTexts: Uint8Array): Promise<Picture> => pictureOf(unpack(packFrame({ dims: [ids.length], values: Float32Array.from(ids), exact: true, tokenTexts }).buffer))

describe('texts of tokens', () => {
  it('stand for ids, which go by their numbers where there is none', async () => {
    const shown = await picture([7, 300, 7], packTexts(new Map([[7, ' the']])))
    expect(textOf(shown)).toEqual({ ids: [7, 300, 7], texts: [' the', '#300', ' the'] })
  })

  it('end where what a gateway sends is cut short', async () => {
    expect([...textsOf(await picture([1], packTexts(new Map([[1, 'a'], [2, 'cut']])).slice(0, -2)))]).toEqual([[1, 'a']])
  })

  it.each([
    [' the', 'the'], [' ', '␣'], ['\n', '⏎'], ['\u202Eevil', '·evil'], ['\u0000', '·'], ['internationally', 'intern…'], ['', '3'], [undefined, '3'],
  ])('are short names in one line: %j', (text, name) => {
    expect(nameOfToken(text, 3)).toBe(name)
  })
})

describe('positions of an axis', () => {
  it.each([
    ['layers[0].attn.q | batch(0)', 'token', [0, 1, 2, 3, 4, 5]],
    ['layers[0].attn.probs | head(1) | last(2)', 'query', [4, 5]],
    ['layers[0].attn.probs | head(1) | last(2)', 'key', [0, 1, 2, 3, 4, 5]],
    ['layers[0].attn.q | tok(-3:)', 'token', [3, 4, 5]],
    ['layers[0].attn.q | token(1:5:2) | last(1)', 'token', [3]],
    ['layers[0].attn.q | token(*)', 'token', [0, 1, 2, 3, 4, 5]],
  ])('of %s along %s', (expression, axis, positions) => {
    expect(positionsOf(expression, axis, 6)).toEqual(positions)
  })

  it('are none of pools', () => {
    expect(positionsOf('layers[0].attn.q | pool(token,3,absmax)', 'token', 6)).toBeNull()
  })
})
