// Chromium as the tests use it. The packages are those of services/ui.
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'

const require = createRequire(new URL('../../../services/ui/package.json', import.meta.url))
const { chromium } = require('playwright-core')

/** The source of axe: run by the debugger, since the page's policy lets no foreign script in. */
export const AXE = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8')
export const SIZES = { large: { width: 1440, height: 900 }, small: { width: 1024, height: 700 } }
export const THEMES = ['light', 'dark']

const FLAGS = ['--disable-gpu', '--disable-quic', '--disable-background-networking', '--disable-component-update', '--disable-sync']

export function launch() {
  const executablePath = process.env.CHROMIUM ?? '/usr/bin/chromium'
  const root = process.getuid?.() === 0
  return chromium.launch({ executablePath, args: root ? [...FLAGS, '--no-sandbox'] : FLAGS })
}

/** A page of its own, signed in by the platform's one-time link; `problems` collects what should not happen in it. */
export async function signIn(browser, url, { theme = 'light', viewport = SIZES.large, storageState } = {}) {
  const context = await browser.newContext({ viewport, colorScheme: theme, locale: 'en-GB', storageState })
  const page = await context.newPage()
  const problems = []
  page.on('pageerror', (error) => problems.push(`error: ${error.message}`))
  page.on('console', (message) => {
    if (message.type() === 'error' && !message.location().url.includes('/perfetto/')) problems.push(`console: ${message.text()}`)
  })
  await page.goto(url)
  return { context, page, problems }
}
