// Pictures of every page, width, theme and language, and a sheet of them for each page: node shoot.mjs FOLDER
// PAGES=jobs,health WIDTHS=390 THEMES=dark LOCALES=zh: only these. Chinese needs a font that has it, such as Debian's fonts-noto-cjk.
import { mkdir, writeFile } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { launch, THEMES } from './browser.mjs'
import { openPage, PAGES, servePages } from './pages.mjs'

const HEIGHTS = { 390: 844, 1280: 800, 1920: 1080 }
const [folder = 'pictures'] = process.argv.slice(2)
const chosen = (name, all) => process.env[name]?.split(',') ?? all
const [names, widths] = [chosen('PAGES', Object.keys(PAGES)), chosen('WIDTHS', Object.keys(HEIGHTS))]
const [themes, locales] = [chosen('THEMES', THEMES), chosen('LOCALES', ['en', 'zh'])]

await mkdir(folder, { recursive: true })
const served = await servePages()
const browser = await launch()
const shots = new Map(names.map((name) => [name, []]))
for (const theme of themes) {
  for (const locale of locales) {
    for (const width of widths) {
      const viewport = { width: Number(width), height: HEIGHTS[width] }
      const context = await browser.newContext({ viewport, colorScheme: theme, locale: locale === 'zh' ? 'zh-CN' : 'en-GB', reducedMotion: 'reduce' })
      const page = await context.newPage()
      page.on('pageerror', (error) => console.error(`${page.url()}: ${error.message}`))
      for (const name of names) {
        const { leave } = await openPage(page, name, served)
        const file = `${name}-${width}-${theme}-${locale}.png`
        await page.screenshot({ path: join(folder, file) })
        shots.get(name).push(file)
        leave()
      }
      await context.close()
    }
  }
}

const sheet = await browser.newPage({ viewport: { width: 2400, height: 1000 } })
for (const [name, files] of shots) {
  const figures = files.map((file) => `<figure><img src="${file}"><figcaption>${file}</figcaption></figure>`).join('')
  const html = `<style>body{display:flex;flex-wrap:wrap;gap:8px;margin:8px;background:#888;font:12px sans-serif}figure{margin:0}img{height:420px;display:block}</style>${figures}`
  const at = join(folder, `${name}.html`)
  await writeFile(at, html)
  await sheet.goto(`file://${resolve(at)}`)
  await sheet.screenshot({ path: join(folder, `sheet-${name}.png`), fullPage: true })
}
await browser.close()
served.close()
process.exit(0)
