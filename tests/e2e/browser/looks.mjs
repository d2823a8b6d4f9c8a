// How a page looks, so coarsely that another font or another rounding of a letter's edge does not count: a picture of one
// cell for 16 × 16 pixels. All looks of a page lie side by side in one file beside the tests.
// LOOKS=update writes it anew: look at it before it is committed.
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const CELL_PIXELS = 16
/** Of 255. Of pages in another font up to 2.3 % of the cells differ by more, of pages without one of their panels 5 % and more. */
const CELL_DIFFERS = 20
export const MOST_CELLS = 0.03
const MOST_LOOKS = 20

const fileOf = (name) => fileURLToPath(new URL(`looks/${name}.webp`, import.meta.url))

/** A page of its own that reduces and compares pictures: the pages under test let no foreign script in. */
export class Looks {
  constructor(desk) {
    this.desk = desk
  }

  static async open(browser) {
    const desk = await browser.newPage()
    await desk.evaluate(tools)
    return new Looks(desk)
  }

  /** The page at rest, where two looks after each other are the same: its screenshot, and that reduced, in base64. */
  async of(page) {
    let before
    for (let i = 0; i < MOST_LOOKS; i += 1) {
      const seen = await this.once(page)
      if (seen.look === before?.look) return seen
      before = seen
    }
    throw new Error(`${page.url()} never looks the same twice`)
  }

  async once(page) {
    const { width, height } = page.viewportSize()
    const shot = await page.screenshot({ animations: 'disabled', caret: 'hide' })
    const look = await this.desk.evaluate((asked) => reduce(...asked), [shot.toString('base64'), Math.ceil(width / CELL_PIXELS), Math.ceil(height / CELL_PIXELS)])
    return { shot, look }
  }

  /** The share of cells in which reduced pictures differ from others, one by one. */
  async difference(looks, others) {
    return this.desk.evaluate((asked) => differences(...asked), [looks, others, CELL_DIFFERS])
  }

  /** What is wrong with the looks of a page, each with its `name`, against those that are kept. */
  async judge(page, seen) {
    const [looks, file] = [seen.map(({ look }) => look), fileOf(page)]
    if (process.env.LOOKS === 'update') return writeFileSync(file, Buffer.from(await this.desk.evaluate((all) => beside(all), looks), 'base64')) ?? []
    if (!existsSync(file)) return [`${page}: no looks are kept; LOOKS=update keeps them`]
    const kept = await this.desk.evaluate((asked) => apart(...asked), [readFileSync(file).toString('base64'), looks])
    const shares = await this.difference(looks, kept)
    return seen.flatMap(({ name, shot }, i) => {
      if (shares[i] <= MOST_CELLS) return []
      const path = join(tmpdir(), `${page}-${name}.png`)
      writeFileSync(path, shot)
      return [`${page}-${name}: ${(shares[i] * 100).toFixed(1)} % of it look different (${path}); if they should, LOOKS=update keeps the new looks`]
    })
  }
}

/** What the desk can do with pictures: in base64, in and out. */
function tools() {
  const read = (picture) => createImageBitmap(new Blob([Uint8Array.from(atob(picture), (letter) => letter.charCodeAt(0))]))
  /** Lossless, and small. */
  const write = async (canvas) => {
    const bytes = new Uint8Array(await (await canvas.convertToBlob({ type: 'image/webp', quality: 1 })).arrayBuffer())
    return btoa(bytes.reduce((text, byte) => text + String.fromCharCode(byte), ''))
  }
  const draw = (width, height, paint) => {
    const canvas = new OffscreenCanvas(width, height)
    const pen = canvas.getContext('2d', { willReadFrequently: true })
    pen.imageSmoothingQuality = 'high'
    paint(pen)
    return canvas
  }
  const pixels = async (picture) => {
    const image = await read(picture)
    return draw(image.width, image.height, (pen) => pen.drawImage(image, 0, 0)).getContext('2d').getImageData(0, 0, image.width, image.height)
  }
  const differing = (a, b, most) => {
    if (a.width !== b.width || a.height !== b.height) return 1
    let different = 0
    for (let i = 0; i < a.data.length; i += 4) different += Number([0, 1, 2].some((channel) => Math.abs(a.data[i + channel] - b.data[i + channel]) > most))
    return different / (a.data.length / 4)
  }
  Object.assign(globalThis, {
    pixels,
    /** Of colours 32 levels are kept: what differs is judged by more than one of them. */
    reduce: async (shot, width, height) => {
      const whole = await read(shot)
      return write(
        draw(width, height, (pen) => {
          pen.drawImage(whole, 0, 0, width, height)
          const image = pen.getImageData(0, 0, width, height)
          image.data.forEach((value, i) => i % 4 < 3 && (image.data[i] = (value & 0xf8) | 4))
          pen.putImageData(image, 0, 0)
        }),
      )
    },
    differences: async (looks, others, most) => Promise.all(looks.map(async (look, i) => differing(await pixels(look), await pixels(others[i]), most))),
    beside: async (looks) => {
      const images = await Promise.all(looks.map(read))
      let x = 0
      return write(draw(images.reduce((sum, { width }) => sum + width, 0), Math.max(...images.map(({ height }) => height)), (pen) => images.forEach((image) => (pen.drawImage(image, x, 0), (x += image.width)))))
    },
    /** Parts of a sheet, as large as these. */
    apart: async (sheet, looks) => {
      const [whole, images] = [await read(sheet), await Promise.all(looks.map(read))]
      let x = 0
      const parts = images.map(({ width, height }) => {
        const part = draw(width, height, (pen) => pen.drawImage(whole, -x, 0))
        x += width
        return part
      })
      return Promise.all(parts.map(write))
    },
  })
}
