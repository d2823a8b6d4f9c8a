// A person calls a finding "not slow". PAGE_URL: the page with a one-time token. SLOW_RANKS: two, both are found.
// VIEWER_URL, VIEWER_TOKEN: the page as another gateway serves it, for somebody who may only look.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { AXE, launch, signIn, SIZES, THEMES } from './browser.mjs'

const { PAGE_URL, VIEWER_URL, VIEWER_TOKEN, SHOT_FOLDER } = process.env
const ranks = process.env.SLOW_RANKS.split(',').map((rank) => `Rank ${rank}`)
/** The one that the page shows by itself, and the one that is left as it is. */
let slow, other
const origin = new URL(PAGE_URL).origin
const PATIENCE = { timeout: 60_000 }
const NARROW = { width: 480, height: 900 }

let browser, context, page, problems, viewer
before(async () => {
  browser = await launch()
  ;({ context, page, problems } = await signIn(browser, PAGE_URL))
  await page.addInitScript(() => {
    window.shift = 0
    new PerformanceObserver((list) => {
      for (const entry of list.getEntries()) window.shift += entry.value
    }).observe({ type: 'layout-shift' })
  })
  ;({ page: viewer } = await signIn(browser, VIEWER_URL))
  await viewer.getByLabel('Token').fill(VIEWER_TOKEN)
  await viewer.getByRole('button', { name: 'Sign in' }).click()
  await viewer.getByText('Live', { exact: true }).waitFor(PATIENCE)
})
after(() => browser.close())

const findings = async () => (await context.request.get(`${origin}/api/v1/findings`)).json()
const ofRank = async (name) => (await findings()).find((one) => one.page && `Rank ${one.ranks}` === name)
const list = (on) => on.getByRole('navigation', { name: 'Findings' })
const word = (on) => on.getByRole('region', { name: 'Not slow' })
const button = (on) => on.getByRole('button', { name: 'Not slow' })
const headline = (on, name) => on.getByRole('article').getByRole('heading', { name: new RegExp(`^${name}: slow`) })

/** What of the detail can't be seen without scrolling sideways. */
const cut = () => page.getByRole('article').evaluate((article) => {
  const wide = document.documentElement.clientWidth
  return [...article.querySelectorAll('header, p, dl, section, button, a')].filter((one) => one.getBoundingClientRect().right > wide).map((one) => one.outerHTML.slice(0, 60))
})

/** Pictures of the page as it is, in every theme, wide and narrow. */
async function shoot(name) {
  if (!SHOT_FOLDER) return
  for (const theme of THEMES) {
    await page.emulateMedia({ colorScheme: theme })
    for (const [size, viewport] of Object.entries({ ...SIZES, narrow: NARROW })) {
      await page.setViewportSize(viewport)
      await page.waitForTimeout(300)
      await page.screenshot({ path: `${SHOT_FOLDER}/${name}-${theme}-${size}.png` })
    }
  }
  await page.emulateMedia({ colorScheme: 'light' })
  await page.setViewportSize(SIZES.large)
}

async function violations() {
  await page.evaluate(AXE)
  return page.evaluate(async () => (await window.axe.run()).violations.map(({ id, nodes }) => `${id} ${nodes[0].html}`))
}

test('two open findings are listed, and the page shows one of them', async () => {
  await page.goto(`${origin}/health`)
  for (const name of ranks) await list(page).getByRole('link', { name }).waitFor(PATIENCE)
  const shown = await page.getByRole('article').getByRole('heading', { level: 2 }).textContent()
  slow = ranks.find((name) => shown.startsWith(name))
  other = ranks.find((name) => name !== slow)
  await word(page).getByText('reported again only when it is clearly worse').waitFor()
  assert.deepEqual(await violations(), [])
  await shoot('open')
})

test('a window that becomes narrower cuts nothing off', async () => {
  for (const viewport of [SIZES.small, NARROW]) {
    await page.setViewportSize(viewport)
    await page.waitForTimeout(500)
    assert.deepEqual(await cut(), [])
  }
  await page.setViewportSize(SIZES.large)
})

test('a viewer reads the same and has no button, and is refused who asks without it', async () => {
  await viewer.goto(`${VIEWER_URL}health?finding=${(await ofRank(slow)).id}`)
  await headline(viewer, slow).waitFor(PATIENCE)
  assert.equal(await word(viewer).count(), 0)
  const answer = await viewer.request.post(`${VIEWER_URL}api/v1/findings/${(await ofRank(slow)).id}/refute`)
  assert.equal(answer.status(), 403)
  assert.equal((await ofRank(slow)).refuted_unix_ns, 0)
})

test('who was signed out meanwhile is told what to do, and may press again', async () => {
  const cookies = await context.cookies()
  await context.clearCookies()
  await button(page).click()
  await word(page).getByRole('alert').getByText('The detector was not told. You are signed out').waitFor()
  await page.waitForTimeout(4000) // the ranks have been asked for again
  assert.equal(await page.getByText('No job is running').count(), 0)
  await shoot('signed-out')
  await context.addCookies(cookies)
  assert.equal(await button(page).getAttribute('aria-disabled'), 'false')
  assert.equal((await ofRank(slow)).refuted_unix_ns, 0)
  problems.splice(0)
})

test('the button, pressed twice, closes this finding as not slow, and the page goes on showing it', async () => {
  await page.evaluate(() => (window.shift = 0))
  await button(page).focus()
  await page.keyboard.press('Enter')
  await page.keyboard.press('Enter')
  await word(page).getByRole('status').getByText(/^Called “not slow” at \d\d:\d\d:\d\d\./).waitFor(PATIENCE)
  await headline(page, slow).waitFor()
  await page.getByRole('article').locator('header').getByText('Not slow', { exact: true }).waitFor()
  await page.getByRole('article').getByText(/^Resolved \d\d:\d\d/).waitFor()
  assert.equal(await button(page).count(), 0)
  assert.equal(await page.evaluate(() => document.activeElement?.getAttribute('role')), 'status')
  assert.ok((await page.evaluate(() => window.shift)) <= 0.05, 'nothing jumps')
  assert.deepEqual(await violations(), [])
  await shoot('refuted')
})

test('no other finding has changed, and its page still has the button', async () => {
  const { state, refuted_unix_ns: refuted } = await ofRank(other)
  assert.deepEqual([state, refuted], ['open', 0])
  assert.deepEqual((await findings()).filter((one) => one.refuted_unix_ns > 0).map(({ id }) => id), [(await ofRank(slow)).id])
  await list(page).getByRole('link', { name: other }).click()
  await headline(page, other).waitFor()
  assert.equal(await button(page).count(), 1)
})

test('who says it again changes nothing', async () => {
  const before = await ofRank(slow)
  const answer = await context.request.post(`${origin}/api/v1/findings/${before.id}/refute`)
  assert.equal(answer.status(), 202)
  assert.deepEqual(await ofRank(slow), before)
})

test('everybody reads that it was called not slow', async () => {
  await word(viewer).getByText(/^Called “not slow” at/).waitFor(PATIENCE)
  assert.equal(await button(viewer).count(), 0)
})

test('the job counts one finding less, and its timeline and list name the other alone', async () => {
  await page.goto(`${origin}/jobs`)
  await page.getByRole('row').getByRole('link', { name: new RegExp(`^${other}: slow`) }).waitFor(PATIENCE)
  assert.equal(await page.getByRole('row').getByRole('link', { name: new RegExp(`^${slow}: slow`) }).count(), 0)
})

test('nothing was refused by the content policy, and no script failed', () => assert.deepEqual(problems, []))
