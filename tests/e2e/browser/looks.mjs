// How a page looks, so coarsely that another font or another rounding of a letter's edge does not count: a picture of one
// cell for 16 × 16 pixels, kept beside the tests. LOOKS=update writes it anew: look at it before it is committed.
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const CELL_PIXELS = 16
/** Of 255. Of pages in another font up to 2.3 % of the cells differ by more, of pages without one of their panels 5 % and more. */
const CELL_DIFFERS = 20
export const MOST_CELLS = 0.03

const fileOf = (name) => fileURLToPath(new URL(`looks/${name}.png`, import.meta.url))

/** A page of its own that reduces and compares pictures: the pages under test let no foreign script in. */
export class Looks {
  constructor(desk) {
    this.desk = desk
  }

  static async open(browser) {
    return new Looks(await browser.newPage())
  }

  /** The page as it stands, reduced: a PNG in base64. */
  async of(page) {
    const { width, height } = page.viewportSize()
    const shot = await page.screenshot({ animations: 'disabled', caret: 'hide' })
    return this.desk.evaluate(reduce, [shot.toString('base64'), Math.ceil(width / CELL_PIXELS), Math.ceil(height / CELL_PIXELS)])
  }

  /** The share of cells in which two reduced pictures differ. */
  async difference(one, other) {
    return this.desk.evaluate(compare, [one, other, CELL_DIFFERS])
  }

  /** Empty, or what is wrong with the look of a page against the one that is kept of it. */
  async judge(page, name) {
    const [look, file] = [await this.of(page), fileOf(name)]
    if (process.env.LOOKS === 'update') return writeFileSync(file, Buffer.from(look, 'base64')) ?? ''
    if (!existsSync(file)) return `${name}: no look is kept; LOOKS=update keeps it`
    const share = await this.difference(look, readFileSync(file).toString('base64'))
    if (share <= MOST_CELLS) return ''
    const path = join(tmpdir(), `${name}.png`)
    await page.screenshot({ path, animations: 'disabled', caret: 'hide' })
    return `${name}: ${(share * 100).toFixed(1)} % of it look different (${path}); if they should, LOOKS=update keeps the new look`
  }
}

async function reduce([png, width, height]) {
  const bytes = Uint8Array.from(atob(png), (letter) => letter.charCodeAt(0))
  const whole = await createImageBitmap(new Blob([bytes], { type: 'image/png' }))
  const canvas = new OffscreenCanvas(width, height)
  const pen = canvas.getContext('2d')
  pen.imageSmoothingQuality = 'high'
  pen.drawImage(whole, 0, 0, width, height)
  const reduced = new Uint8Array(await (await canvas.convertToBlob({ type: 'image/png' })).arrayBuffer())
  return btoa(String.fromCharCode(...reduced))
}

async function compare([one, other, most]) {
  const pixels = async (png) => {
    const bytes = Uint8Array.from(atob(png), (letter) => letter.charCodeAt(0))
    const image = await createImageBitmap(new Blob([bytes], { type: 'image/png' }))
    const pen = new OffscreenCanvas(image.width, image.height).getContext('2d')
    pen.drawImage(image, 0, 0)
    return pen.getImageData(0, 0, image.width, image.height)
  }
  const [a, b] = [await pixels(one), await pixels(other)]
  if (a.width !== b.width || a.height !== b.height) return 1
  let different = 0
  for (let i = 0; i < a.data.length; i += 4) different += Number([0, 1, 2].some((channel) => Math.abs(a.data[i + channel] - b.data[i + channel]) > most))
  return different / (a.data.length / 4)
}
