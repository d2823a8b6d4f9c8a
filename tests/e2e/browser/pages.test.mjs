// Every page over a made-up gateway, in both themes and both languages, on a phone, a laptop and a large screen: nothing serious for
// axe, nothing beyond the edge, and it looks as it is known to look. Chinese needs a font that has it.
// Then: the slow rank among 512, from its alert's link to its trace in Perfetto.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { AXE, launch, SIZES, THEMES } from './browser.mjs'
import { Looks, MOST_CELLS } from './looks.mjs'
import { openPage, PAGES, servePages } from './pages.mjs'
import { settled } from './settled.mjs'

const PATIENCE = { timeout: 30_000 }
const LAPTOP = { width: 1280, height: 800 }
const PHONE = { width: 390, height: 844 }
const SCREENS = [LAPTOP, PHONE, { width: 1920, height: 1080 }]
const LOCALES = { en: 'en-GB', zh: 'zh-CN' }

let browser, served, page, looks
const pages = {}
const problems = []
before(async () => {
  browser = await launch()
  served = await servePages()
  looks = await Looks.open(browser)
  for (const [language, locale] of Object.entries(LOCALES)) {
    pages[language] = await browser.newPage({ viewport: SIZES.large, locale, reducedMotion: 'reduce' })
    pages[language].on('pageerror', (error) => problems.push(`${pages[language].url()}: ${error.message}`))
  }
  page = pages.en
})
after(async () => {
  await browser.close()
  served.close()
})

/** What reaches beyond the right edge of the screen and can't be scrolled to. */
const cut = (page) =>
  page.evaluate(() => {
    const main = document.querySelector('main')
    return [main.scrollWidth - main.clientWidth, ...[...document.querySelectorAll('header, header *')].filter((one) => one.getBoundingClientRect().right > innerWidth + 1 && !one.closest('.crumbs')).map((one) => one.outerHTML.slice(0, 80))].filter(Boolean)
  })

async function serious(page) {
  await page.evaluate(AXE)
  return page.evaluate(async () => (await window.axe.run()).violations.filter(({ impact }) => impact === 'serious' || impact === 'critical').map(({ id, nodes }) => `${id} ${nodes[0].html}`))
}

/** A page in one language, opened once and then turned to each screen and theme: what is wrong with it, and its looks. */
async function seenIn(language, name) {
  const page = pages[language]
  const seen = []
  const { leave } = await openPage(page, name, served)
  for (const viewport of SCREENS) {
    await page.setViewportSize(viewport)
    for (const colorScheme of THEMES) {
      await page.emulateMedia({ colorScheme })
      served.gateway.beat()
      await settled(page)
      const how = `${viewport.width}-${colorScheme}-${language}`
      seen.push({ name: how, ...(await looks.of(page)) })
      assert.deepEqual(await cut(page), [], how)
      // Texts and widths beyond a laptop's make no difference to it.
      if (language === 'en' && viewport.width < 1920 && process.env.LOOKS !== 'update') assert.deepEqual(await serious(page), [], how)
    }
  }
  leave()
  return seen
}

/** The list of health beside one of its findings is the same page. */
const { finding: _, ...CHECKED } = PAGES
for (const name of Object.keys(CHECKED)) {
  test(`${name}: no serious finding of axe in either theme, nothing cut, looks as known in either language`, async () => {
    const seen = []
    for (const language of Object.keys(LOCALES)) {
      await pages[language].setViewportSize(LAPTOP)
      seen.push(...(await seenIn(language, name)))
    }
    assert.deepEqual(await looks.judge(name, seen), [])
  })
}

test('on a phone everything that can be opened fits, in either language', async () => {
  for (const page of Object.values(pages)) {
    await page.setViewportSize(PHONE)
    const { leave } = await openPage(page, 'generated', served)
    await page.locator('details.more summary').click()
    await page.locator('details.more input').first().waitFor(PATIENCE)
    assert.deepEqual(await cut(page), [])
    leave()
    await page.goto(`${served.url}${PAGES.recordings}`) // who has left controls nothing
  }
})

test('an expression of usual length can be read whole on a phone', async () => {
  await page.setViewportSize(PHONE)
  const { leave } = await openPage(page, 'scope', served)
  const field = page.getByRole('textbox', { name: 'Expression' }).first()
  assert.equal(await field.inputValue(), 'layers[0].attn.probs | batch(0) | head(0)')
  assert.ok(await field.evaluate((input) => input.scrollWidth <= input.clientWidth))
  leave()
})

test('another font is no other look, a panel that is gone is one', async () => {
  await page.emulateMedia({ colorScheme: 'light' })
  await page.setViewportSize(LAPTOP)
  await openPage(page, 'finding', served)
  await page.locator('article').first().waitFor(PATIENCE)
  const { look } = await looks.of(page)
  const differs = async () => (await looks.difference([look], [(await looks.of(page)).look]))[0]
  const style = await page.addStyleTag({ content: ":root[data-theme] { --font: 'DejaVu Sans', sans-serif !important }" })
  assert.ok((await differs()) < MOST_CELLS)
  await style.evaluate((element) => element.remove())
  await page.addStyleTag({ content: 'article dl { display: none !important }' })
  assert.ok((await differs()) > MOST_CELLS)
})

test('from the alert to the slow rank among 512 and to its trace', async () => {
  await page.setViewportSize(SIZES.large)
  await page.goto(`${served.url}/health?finding=7f3a90c2-finding-0`)
  const finding = page.getByRole('article')
  await finding.getByRole('heading', { name: 'Rank 312: slow GPU' }).waitFor(PATIENCE)
  assert.ok((await finding.boundingBox()).y < SIZES.large.height / 2, 'a finding stands above the nodes, however many there are')
  await finding.getByRole('link', { name: 'Show in the timeline' }).click()
  await page.waitForURL('**/timeline?*')
  const canvas = page.getByRole('application')
  await canvas.waitFor(PATIENCE)
  await page.getByRole('complementary', { name: 'Selection' }).getByRole('heading', { name: 'Rank 312 · step' }).waitFor(PATIENCE)
  assert.match(await canvas.getAttribute('aria-label'), /of 512 ranks.*Slow: rank 312\./)
  const asked = page.waitForRequest((request) => /\/trace\?/.test(request.url()))
  await page.getByRole('toolbar').getByRole('button', { name: 'Open in Perfetto' }).click()
  const ranks = new URL((await asked).url()).searchParams.get('ranks') ?? ''
  assert.ok(ranks.split(',').some((part) => { const [low, high = low] = part.split('-').map(Number); return low <= 312 && 312 <= high }), ranks)
})

test('the slow rank among 512 is found without an alert: slowest first', async () => {
  await page.goto(`${served.url}/jobs/7f3a90c2/timeline`)
  const canvas = page.getByRole('application')
  await canvas.waitFor(PATIENCE)
  await page.getByLabel('Group by').selectOption('none')
  await page.getByLabel('Order').selectOption('slowest')
  await page.waitForURL(/sort=slowest/)
  await canvas.focus()
  await page.keyboard.press('ArrowRight')
  await page.getByRole('complementary', { name: 'Selection' }).getByRole('heading', { name: 'Rank 312 · step' }).waitFor(PATIENCE)
})

test('no script failed', () => assert.deepEqual(problems, []))
