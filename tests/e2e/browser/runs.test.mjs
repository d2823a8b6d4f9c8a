// Runs as a whole, over a made-up gateway: two runs are compared, and a link of a month ago still shows what it showed.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { after, before, test } from 'node:test'
import { BUILT, FakeGateway, serve, World } from '../../../services/ui/test/support/load.mjs'
import { AXE, launch, THEMES } from './browser.mjs'
import { Looks } from './looks.mjs'

const PATIENCE = { timeout: 30_000 }
const PHONE = { width: 390, height: 844 }
const FAULTS = [{ ranks: [3], since: 6000, until: 7000, effect: 1.25 }]

const first = new World({ run: 'run-first', name: 'team/first', ranks: 16, steps: 9000, pipeline: 2, faults: FAULTS })
const second = new World({ run: 'run-second', name: 'team/second', ranks: 16, steps: 7000, pipeline: 2, settings: { lr: '0.0001' }, worse: 0.3 })
const old = new World({ run: 'run-old', name: 'team/old', ranks: 16, steps: 5000, faults: FAULTS.map((fault) => ({ ...fault, since: 100, until: 200 })), state: 'finished' })
const many = Array.from({ length: 1000 }, (_, i) => new World({ run: `run-${i}`, name: `team/job-${i}`, ranks: 2, steps: 50 }))
const gateway = new FakeGateway([first, second, old])
gateway.unlisted.add(old.run)
gateway.archived.push({ ...old.findings(0)[0], id: 'finding-old', state: 'resolved', resolved_step: 200, resolved_unix_ns: old.startOf(200) * 1e9 })

let browser, context, page, url, close
const problems = []
before(async () => {
  browser = await launch()
  const served = await serve(gateway, BUILT)
  url = served.url
  close = () => served.server.closeAllConnections() ?? served.server.close()
  context = await browser.newContext({ viewport: { width: 1440, height: 900 }, locale: 'en-GB', reducedMotion: 'reduce', acceptDownloads: true })
  page = await context.newPage()
  page.on('pageerror', (error) => problems.push(error.message))
})
after(async () => {
  await browser.close()
  close()
})

async function serious() {
  await page.evaluate(AXE)
  return page.evaluate(async () => (await window.axe.run()).violations.filter(({ impact }) => impact === 'serious' || impact === 'critical').map(({ id, nodes }) => `${id} ${nodes[0].html}`))
}

test('a run is put beside another, and the address shows the same to a colleague', async () => {
  await page.goto(`${url}/jobs/${first.run}`)
  await page.getByRole('region', { name: 'Loss' }).getByRole('img').waitFor(PATIENCE)
  await page.getByLabel('Compare with a run').fill(second.run)
  await page.keyboard.press('Enter')
  await page.getByText('Recipe: what differs').waitFor(PATIENCE)
  await page.getByRole('row', { name: /lr 0.0003 0.0001/ }).waitFor(PATIENCE)
  assert.match(page.url(), /with=run-second/)
  const colleague = await context.newPage()
  await colleague.goto(page.url())
  await colleague.getByRole('row', { name: /lr 0.0003 0.0001/ }).waitFor(PATIENCE)
  await colleague.close()
})

test('dragging zooms to steps, which are asked for, and a double click shows all', async () => {
  const plot = page.getByRole('region', { name: 'Step time' }).locator('.u-over')
  const box = await plot.boundingBox()
  await page.mouse.move(box.x + box.width * 0.6, box.y + 50)
  await page.mouse.down()
  await page.mouse.move(box.x + box.width * 0.8, box.y + 60, { steps: 5 })
  await page.mouse.up()
  await page.getByRole('button', { name: /^Steps [\d,]+ to [\d,]+ · show all$/ }).waitFor(PATIENCE)
  assert.match(page.url(), /from=\d+&to=\d+/)
  assert.ok(gateway.asked.some((asked) => /history\?.*from_step=5\d\d\d&to_step=7\d\d\d/.test(asked)), gateway.asked.at(-1))
  await plot.dblclick()
  await page.getByRole('button', { name: /show all/ }).waitFor({ state: 'detached', ...PATIENCE })
})

test('curves are saved as numbers', async () => {
  const saving = page.waitForEvent('download')
  await page.getByRole('button', { name: 'Save Loss as CSV' }).click()
  assert.equal((await saving).suggestedFilename(), 'team-first-run-firs-loss.csv')
})

/** What a button saves, as it is read from the file: its colours, and where something is written above the plot. */
async function saved(button) {
  const saving = page.waitForEvent('download')
  await page.getByRole('button', { name: button }).first().click()
  const file = await saving
  const { desk } = await Looks.open(browser)
  const picture = await desk.evaluate(async (png) => {
    const { width, height, data } = await pixels(png)
    const hex = (i) => `#${[0, 1, 2].map((channel) => data[i + channel].toString(16).padStart(2, '0')).join('')}`
    const colours = new Map()
    for (let i = 0; i < data.length; i += 4) colours.set(hex(i), (colours.get(hex(i)) ?? 0) + 1)
    const written = (row) => Array.from({ length: width }, (_, x) => x).filter((x) => hex(4 * (row * width + x)) !== hex(0))
    const lines = Array.from({ length: height }, (_, row) => written(row))
    return { width, height, background: hex(0), colours: Object.fromEntries(colours), right: Math.max(...lines.slice(0, 60).flat()) }
  }, readFileSync(await file.path()).toString('base64'))
  await desk.close()
  return { name: file.suggestedFilename(), ...picture }
}
/** As #rrggbb: what is built is written as short as can be. */
const token = async (name) => (await page.evaluate((of) => getComputedStyle(document.documentElement).getPropertyValue(of).trim(), name)).replace(/^#(.)(.)(.)$/, '#$1$1$2$2$3$3')

for (const theme of THEMES) {
  test(`plots are saved as pictures with their background, lines and what these stand for: ${theme}`, async () => {
    await page.emulateMedia({ colorScheme: theme })
    await page.goto(`${url}/jobs/${first.run}?with=${second.run}`)
    const canvas = page.getByRole('region', { name: 'Loss' }).locator('canvas').first()
    await canvas.waitFor(PATIENCE)
    await page.waitForTimeout(500)
    const size = await canvas.evaluate(({ width, height }) => ({ width, height }))
    const curves = await saved('Save Loss as PNG')
    assert.equal(curves.name, 'team-first-run-firs-loss.png')
    assert.deepEqual([curves.width, curves.height - size.height], [size.width, 3 * 18 + 10], 'a title and a line for each run')
    assert.equal(curves.background, await token('--background'))
    for (const colour of [await token('--run-1'), await token('--run-2')]) assert.ok(curves.colours[colour] > 50, `${colour} ${curves.colours[colour]}`)
    assert.ok(curves.right < curves.width - 4, 'nothing that is written is cut')

    await page.goto(`${url}/health?finding=finding-old`)
    await page.getByRole('article').locator('canvas').first().waitFor(PATIENCE)
    await page.waitForTimeout(500)
    const evidence = await saved(/^Save Compute compared with peers as PNG$/)
    assert.match(evidence.name, /^team-old-finding-old-compute_effect\.png$/)
    assert.equal(evidence.background, await token('--background'))
    assert.ok(evidence.colours[await token('--culprit')] > 50)
  })
}

test('a link of a month ago opens its finding and its run', async () => {
  await page.goto(`${url}/health?finding=finding-old`)
  const article = page.getByRole('article')
  await article.getByRole('heading', { name: 'Rank 3: slow GPU' }).waitFor(PATIENCE)
  await article.getByRole('link', { name: 'team/old', exact: true }).click()
  await page.getByText('no longer listed').waitFor(PATIENCE)
  await page.getByRole('region', { name: 'Loss' }).getByRole('img').waitFor(PATIENCE)
  await page.getByText('Where the time went').waitFor(PATIENCE)
})

test('a link to a finding that nobody knows says so', async () => {
  await page.goto(`${url}/health?finding=never`)
  await page.getByText('The finding never is not known').waitFor(PATIENCE)
  assert.equal(await page.getByRole('article').count(), 0)
})

test('on a phone nothing is cut off, and neither theme has a serious fault', async () => {
  await page.setViewportSize(PHONE)
  for (const path of [`/jobs/${first.run}?with=${second.run}`, `/health?finding=${first.run}-finding-0`, '/jobs']) {
    await page.goto(url + path)
    await page.locator('h1').waitFor(PATIENCE)
    await page.waitForTimeout(500)
    assert.equal(await page.evaluate(() => document.querySelector('main').scrollWidth - document.querySelector('main').clientWidth), 0, path)
    for (const theme of THEMES) {
      await page.emulateMedia({ colorScheme: theme })
      assert.deepEqual(await serious(), [], `${path} ${theme}`)
    }
  }
  await page.setViewportSize({ width: 1440, height: 900 })
})

test('a thousand jobs are listed without a request for any of them', async () => {
  const large = new FakeGateway(many)
  const served = await serve(large, BUILT)
  await page.goto(`${served.url}/jobs`)
  await page.getByText('1 to 50 of 1000').waitFor(PATIENCE)
  assert.deepEqual(large.asked.filter((asked) => !asked.endsWith('/session')), [])
  served.server.closeAllConnections()
  served.server.close()
})

test('no script failed', () => assert.deepEqual(problems, []))
