// Prompt to every view, over a made-up gateway: text, candidates, heatmaps, components. The page is the built one.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { BUILT, FakeGateway, serve, World } from '../../../services/ui/test/support/load.mjs'
import { AXE, launch, SIZES, THEMES } from './browser.mjs'

const PATIENCE = { timeout: 30_000 }
const gateway = new FakeGateway([new World({ run: 'run-served', name: 'team/served', ranks: 2, steps: 20 })])
const scope = gateway.scope('run-served')
let browser, context, page, url, close
const problems = []
before(async () => {
  browser = await launch()
  const served = await serve(gateway, BUILT)
  url = served.url
  close = () => served.server.closeAllConnections() ?? served.server.close()
  context = await browser.newContext({ viewport: SIZES.large, locale: 'en-GB', reducedMotion: 'reduce' })
  page = await context.newPage()
  page.on('pageerror', (error) => problems.push(error.message))
})
after(async () => {
  await browser.close()
  close()
})

test('text grows token by token, in every prompt', async () => {
  await page.goto(`${url}/scope/generate`)
  await page.getByText('1 viewer').waitFor(PATIENCE)
  await page.getByLabel('Prompts, one a line').fill('The king of the land\nOnce upon a time')
  await page.getByRole('button', { name: 'Generate', exact: true }).click()
  await page.getByRole('region', { name: 'Prompt 2' }).waitFor(PATIENCE)
  for (let i = 0; i < 6; i += 1) scope.generation.advance()
  await page.getByText('Generating · 12 new tokens').waitFor(PATIENCE)
})

test('a token shows its probability and its rivals, and heatmaps follow to its row', async () => {
  const second = page.getByRole('region', { name: 'Prompt 2' })
  await second.getByRole('button').nth(4).click()
  const inspector = page.getByRole('complementary', { name: 'Token' })
  await inspector.getByText('prompt 2, position 4').waitFor(PATIENCE)
  assert.equal(await inspector.getByRole('listitem').count(), 10)
  const stream = page.getByRole('region', { name: 'layers[0].resid_post', exact: true })
  await stream.waitFor(PATIENCE)
  await stream.getByText(/token 4( .+)? · chan 4: −?\d/).waitFor(PATIENCE)
  await page.getByRole('region', { name: 'layers[0].resid_post | pca(2)' }).getByText(/component 1/).or(page.getByText(/rows; the newer/)).first().waitFor(PATIENCE)
})

test('it is paused, stepped and cancelled', async () => {
  await page.locator('h1').focus()
  await page.keyboard.press(' ')
  await page.getByText(/Paused · /).waitFor(PATIENCE)
  await page.keyboard.press('.')
  await page.getByText('Paused · 14 new tokens').waitFor(PATIENCE)
  await page.getByRole('button', { name: 'Cancel' }).click()
  await page.getByText('Cancelled · 14 new tokens').waitFor(PATIENCE)
})

test('the palette leads to every page by its name', async () => {
  await page.keyboard.press('Control+k')
  await page.getByRole('dialog', { name: 'Commands' }).getByRole('combobox').fill('served perturb')
  await page.keyboard.press('Enter')
  await page.waitForURL('**/jobs/run-served/perturb')
})

test('half a million cells are painted at once, and moving them costs next to nothing', async () => {
  const large = gateway.scope('run-served', { layers: 2, heads: 8, channels: 1024, tokens: 128 })
  await page.goto(`${url}/jobs/run-served/scope?p=${encodeURIComponent('layers[0].mlp.act | batch(0)')}`)
  await page.locator('.cost').getByText('on the rank').waitFor(PATIENCE)
  large.advance()
  const map = page.getByRole('application', { name: /128 × 4,096 values/ })
  await map.waitFor(PATIENCE)
  await map.hover()
  await page.mouse.wheel(0, -600)
  await page.getByRole('button', { name: 'Show the whole' }).click(PATIENCE)
  await page.getByRole('button', { name: 'Show the whole' }).waitFor({ state: 'detached', ...PATIENCE })
})

test('it is accessible in both themes', async () => {
  gateway.scope('run-served')
  for (const theme of THEMES) {
    await page.emulateMedia({ colorScheme: theme })
    await page.goto(`${url}/scope/generate`)
    await page.getByText('1 viewer').waitFor(PATIENCE)
    await page.getByLabel('Prompts, one a line').fill('The king')
    await page.getByRole('button', { name: 'Generate', exact: true }).click()
    await page.getByRole('region', { name: 'Prompt 1' }).waitFor(PATIENCE)
    gateway.scopes.get('run-served').generation.advance()
    await page.getByText('Generating · 1 new tokens').waitFor(PATIENCE)
    await page.evaluate(AXE)
    const violations = await page.evaluate(async () => (await window.axe.run()).violations.map(({ id, nodes }) => `${id} ${nodes[0].html}`))
    assert.deepEqual(violations, [], theme)
  }
})

test('no script failed', () => assert.deepEqual(problems, []))
