// From the list of jobs to the slow rank and its trace in Perfetto, as a person would walk.
// PAGE_URL: the page with a one-time token. SLOW_RANK: the rank that has to be named.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { AXE, launch, signIn, SIZES, THEMES } from './browser.mjs'

const url = process.env.PAGE_URL
const slowRank = Number(process.env.SLOW_RANK)
const origin = new URL(url).origin
const PATIENCE = { timeout: Number(process.env.PATIENCE_MS ?? 60_000) }

let browser, page, problems, storageState
before(async () => {
  browser = await launch()
  const session = await signIn(browser, url)
  ;({ page, problems } = session)
  storageState = await session.context.storageState()
})
after(() => browser.close())

/** Which of the colours of these CSS properties a canvas does not show. */
const missing = (canvas, properties) =>
  canvas.evaluate((element, names) => {
    const { data } = element.getContext('2d').getImageData(0, 0, element.width, element.height)
    const style = getComputedStyle(document.documentElement)
    const seen = new Set()
    for (let i = 0; i < data.length; i += 4) seen.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2])
    return names.filter((name) => !seen.has(parseInt(style.getPropertyValue(name).trim().slice(1), 16)))
  }, properties)

/** The same, once it has been drawn: what it shows comes a moment after the page. */
const unpainted = async (canvas, properties) => {
  for (let i = 0; i < 50 && (await missing(canvas, properties)).length; i++) await page.waitForTimeout(200)
  return missing(canvas, properties)
}

test('the one-time link signs in and leaves the address', async () => {
  await page.waitForURL(`${origin}/jobs`)
  await page.getByText('Live', { exact: true }).waitFor(PATIENCE)
})

test('the jobs list names the slow rank', async () => {
  const chip = page.getByRole('row').getByRole('link', { name: new RegExp(`^Rank ${slowRank}: slow`) })
  await chip.waitFor(PATIENCE)
})

test('the job shows its progress, its losses and the finding', async () => {
  await page.getByRole('row').getByRole('link').first().click()
  await page.waitForURL('**/jobs/*')
  await page.getByRole('article').getByText(`Rank ${slowRank}: slow`).waitFor(PATIENCE)
  const loss = page.getByRole('img', { name: /^Loss over \d+ steps/ })
  assert.deepEqual(await unpainted(loss.locator('canvas'), ['--compute', '--culprit']), [])
  assert.ok((await page.getByRole('progressbar').getAttribute('value')) > 0)
})

test('its timeline marks the slow rank and compares it with its peers', async () => {
  await page.getByRole('article').getByRole('link', { name: 'Timeline' }).first().click()
  await page.waitForURL('**/timeline?*')
  const inspector = page.getByRole('complementary', { name: 'Selection' })
  await inspector.getByRole('heading', { name: `Rank ${slowRank} · step` }).waitFor(PATIENCE)
  const canvas = page.getByRole('application')
  assert.deepEqual(await unpainted(canvas, ['--compute', '--wait', '--culprit']), [])
  assert.match(await canvas.getAttribute('aria-label'), new RegExp(`Slow: rank ${slowRank}\\.`))
  await page.locator('.legend').getByText('slow', { exact: true }).waitFor()
  await inspector.getByText(/\+\d.* since step \d+/).waitFor(PATIENCE)
  const difference = await inspector.getByRole('row', { name: /Compute/ }).getByRole('cell').last().textContent()
  // One step of a real CPU rank may show anything.
  assert.match(difference, process.env.SHORT_WALK ? /^[+−±]\d/ : /^\+\d/)
})

test('the keyboard walks over steps and ranks, zooms, and shows the same as a table', async () => {
  const canvas = page.getByRole('application')
  const heading = page.getByRole('complementary', { name: 'Selection' }).getByRole('heading')
  const before = await heading.textContent()
  await canvas.focus()
  await page.keyboard.press('ArrowRight')
  await page.waitForFunction((text) => document.querySelector('aside h2')?.textContent !== text, before)
  await page.waitForTimeout(400)
  const seen = async () => Number(new URL(page.url()).searchParams.get('to')) - Number(new URL(page.url()).searchParams.get('from'))
  const wide = await seen()
  await page.keyboard.press('w')
  await page.waitForTimeout(600)
  assert.ok((await seen()) < wide)
  await page.getByRole('button', { name: 'Table' }).click()
  assert.ok((await page.getByRole('region', { name: 'Steps in view' }).getByRole('row').count()) > 4)
  await page.getByRole('button', { name: 'Table' }).click()
})

test('one click opens the steps in view in Perfetto', async () => {
  await page.keyboard.press('0')
  await page.getByRole('toolbar').getByRole('button', { name: 'Open in Perfetto' }).click()
  const region = page.getByRole('region', { name: 'Trace in Perfetto' })
  await region.getByRole('status').getByText(/^[\d.]+ .?B$/).waitFor({ timeout: 120_000 })
  const perfetto = page.frameLocator('iframe')
  await perfetto.getByText(new RegExp(`rank ${slowRank}\\b`, 'i')).first().waitFor({ timeout: 120_000 })
  // Its tracks are open, and nobody else's.
  const within = perfetto.locator('.pf-track[ref*="(rank"][ref*="/"]')
  await within.first().waitFor({ timeout: 120_000 })
  const open = await within.evaluateAll((tracks) => tracks.map((track) => track.getAttribute('ref')))
  assert.deepEqual(open.filter((path) => !path.includes(`(rank ${slowRank})`)), [])
  if (process.env.SHOT_FOLDER) await page.screenshot({ path: `${process.env.SHOT_FOLDER}/perfetto.png` })
  const [download] = await Promise.all([page.waitForEvent('download'), region.getByRole('link', { name: 'Download trace' }).click()])
  assert.match(download.suggestedFilename(), /\.pftrace$/)
  await region.getByRole('button', { name: 'Overview' }).click()
  await page.getByRole('application').waitFor()
})

test('health tells who, since when, why, at what cost, and shows the evidence', async () => {
  await page.keyboard.press('g')
  await page.keyboard.press('h')
  await page.waitForURL('**/health')
  const detail = page.getByRole('article')
  await detail.getByRole('heading', { name: `Rank ${slowRank}: slow` }).waitFor()
  for (const term of ['Who', 'Since', 'Cause', 'Effect', 'Cost', 'Confidence']) await detail.getByRole('term').filter({ hasText: term }).waitFor()
  assert.deepEqual(await unpainted(detail.locator('canvas').first(), ['--culprit']), [])
  const cell = page.getByRole('link', { name: new RegExp(`, Rank ${slowRank}: slow`) })
  await cell.waitFor()
  assert.equal(await cell.count(), 1)
})

test('a list of keys opens and closes, and / searches', async () => {
  await page.keyboard.press('?')
  await page.getByRole('dialog', { name: 'Keyboard' }).waitFor()
  await page.keyboard.press('Escape')
  await page.keyboard.press('g')
  await page.keyboard.press('j')
  await page.waitForURL('**/jobs')
  await page.keyboard.press('/')
  await page.keyboard.type('no such job')
  await page.getByRole('heading', { name: 'No job matches' }).waitFor()
  await page.getByRole('button', { name: 'Clear the search' }).click()
  await page.getByRole('row').nth(1).waitFor()
})

test('the weekly report counts incidents and names who comes back', { skip: process.env.SHORT_WALK ? 'a short walk' : false }, async () => {
  await page.goto(`${origin}/health`)
  await page.getByRole('link', { name: 'Weekly report' }).click()
  await page.waitForURL('**/report')
  await page.getByRole('heading', { name: 'Weekly report' }).waitFor()
  const cells = (name) => page.getByRole('row', { name }).getByRole('cell').allTextContents()
  await page.getByRole('row', { name: /^P1/ }).waitFor()
  assert.deepEqual((await cells(/^P1/)).slice(0, 2), ['3', '1'])
  assert.deepEqual(await cells(/^compute/), ['2'])
  assert.deepEqual(await cells(/node-1/), ['SlowGpu', '2'])
  if (process.env.SHOT_FOLDER) await page.screenshot({ path: `${process.env.SHOT_FOLDER}/report.png` })
  const markdown = await page.request.get(origin + (await page.getByRole('link', { name: 'As Markdown' }).getAttribute('href')))
  assert.match(await markdown.text(), /\| node \| node-1 \| 2 \|/)
  await page.goto(`${origin}/jobs`)
})

test('the page speaks Chinese', async () => {
  await page.getByRole('button', { name: '中文' }).click()
  await page.getByRole('heading', { name: '任务', exact: true }).waitFor()
  assert.equal(await page.locator('html').getAttribute('lang'), 'zh')
  await page.getByRole('button', { name: 'English' }).click()
})

test('every page is accessible in every theme, and nothing moves while it loads', { skip: process.env.SHORT_WALK ? 'a short walk' : false }, async () => {
  const run = new URL(await page.getByRole('row').getByRole('link').first().getAttribute('href'), origin).pathname
  for (const theme of THEMES) {
    const { page: own, problems: troubles, context } = await signIn(browser, `${origin}/jobs`, { theme, storageState, viewport: SIZES.small })
    await own.addInitScript(() => {
      window.shift = 0
      new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shift += entry.value
      }).observe({ type: 'layout-shift', buffered: true })
    })
    for (const path of ['/jobs', run, `${run}/timeline?rank=${slowRank}`, '/health', '/report', '/nowhere']) {
      await own.goto(origin + path)
      await own.locator('h1, h2').first().waitFor()
      await own.waitForTimeout(1000)
      await own.evaluate(AXE)
      const { violations } = await own.evaluate(() => window.axe.run())
      const told = violations.map(({ id, nodes }) => `${theme} ${path}: ${id} ${nodes[0].html}`)
      assert.deepEqual(told, [])
      const shift = await own.evaluate(() => window.shift)
      assert.ok(shift <= 0.05, `${theme} ${path}: layout shift ${shift}`)
    }
    assert.deepEqual(troubles, [])
    await context.close()
  }
})

test('who comes by a used link reads that it was used, and can sign in', async () => {
  for (const theme of THEMES) {
    const { page: own, context } = await signIn(browser, url, { theme })
    await own.getByRole('alert').getByText('has expired or was already used').waitFor()
    await own.getByLabel('Token').waitFor()
    await own.evaluate(AXE)
    assert.deepEqual(await own.evaluate(async () => (await window.axe.run()).violations.map(({ id }) => id)), [])
    assert.ok(!own.url().includes('token='), own.url())
    if (process.env.SHOT_FOLDER) await own.screenshot({ path: `${process.env.SHOT_FOLDER}/used-link-${theme}.png` })
    await context.close()
  }
})

test('a stranger is asked to sign in', async () => {
  const { page: own, context } = await signIn(browser, `${origin}/health`)
  await own.getByLabel('Token').fill('wrong')
  await own.getByRole('button', { name: 'Sign in' }).click()
  await own.getByRole('alert').waitFor()
  await context.close()
})

test('nothing was refused by the content policy, and no script failed', () => assert.deepEqual(problems, []))
