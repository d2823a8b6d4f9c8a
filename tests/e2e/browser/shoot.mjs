// Pictures of every page, theme and size: node shoot.mjs URL FOLDER
import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { launch, signIn, SIZES, THEMES } from './browser.mjs'

const [url, folder] = process.argv.slice(2)
const origin = new URL(url).origin
await mkdir(folder, { recursive: true })
const browser = await launch()
const { context } = await signIn(browser, url)
const storageState = await context.storageState()
const jobs = await (await context.request.get(`${origin}/api/v1/jobs`)).json()
const run = jobs[0].run
const PAGES = { jobs: '/jobs', job: `/jobs/${run}`, timeline: `/jobs/${run}/timeline`, health: '/health' }
const wanted = process.env.PAGES?.split(',') ?? Object.keys(PAGES)

for (const theme of process.env.THEMES?.split(',') ?? THEMES) {
  for (const size of process.env.SIZES?.split(',') ?? Object.keys(SIZES)) {
    const { page, problems, context: own } = await signIn(browser, `${origin}/jobs`, { theme, viewport: SIZES[size], storageState })
    for (const name of wanted) {
      await page.goto(origin + PAGES[name])
      await page.waitForLoadState('networkidle').catch(() => undefined)
      await page.waitForTimeout(1500)
      await page.screenshot({ path: join(folder, `${name}-${theme}-${size}.png`) })
    }
    for (const problem of problems) console.error(problem)
    await own.close()
  }
}
await browser.close()
