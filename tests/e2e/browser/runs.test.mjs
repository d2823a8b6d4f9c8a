// Runs as a whole, over a made-up gateway: two runs are compared, and a link of a month ago still shows what it showed.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { BUILT, FakeGateway, serve, World } from '../../../services/ui/test/support/load.mjs'
import { AXE, launch, THEMES } from './browser.mjs'

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
