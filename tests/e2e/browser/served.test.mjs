// A served checkpoint: text grows token by token over the real ranks, with candidates and states in step with it.
// PAGE_URL: the page with a one-time token.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { launch, signIn } from './browser.mjs'

const PATIENCE = { timeout: 120_000 }
const PROMPTS = ['The king', 'He said']
const NEW_TOKENS = 6
const [LAYERS, HEADS] = [4, 4]

let browser, page, problems
before(async () => {
  browser = await launch()
  ;({ page, problems } = await signIn(browser, process.env.PAGE_URL))
})
after(() => browser.close())

const strip = (number) => page.getByRole('region', { name: `Prompt ${number}`, exact: true })

test('two prompts grow token by token', async () => {
  await page.getByText('Live', { exact: true }).waitFor(PATIENCE)
  await page.keyboard.press('g')
  await page.keyboard.press('g')
  await page.waitForURL('**/scope/generate*')
  await page.getByText('1 viewer').waitFor(PATIENCE)
  await page.getByLabel('Prompts, one a line').fill(PROMPTS.join('\n'))
  await page.getByLabel('New tokens').fill(String(NEW_TOKENS))
  const go = page.getByRole('button', { name: 'Generate', exact: true })
  await go.click(PATIENCE)
  await page.getByText(/^(Done|Generating) · \d+ new tokens/).waitFor(PATIENCE)
  await page.getByText(`Done · ${PROMPTS.length * NEW_TOKENS} new tokens`).waitFor(PATIENCE)
  // Bytes are tokens here.
  assert.equal(await strip(1).getByRole('button').count(), PROMPTS[0].length + NEW_TOKENS)
})

test('a drawn token has its probability and ten candidates, a prompt’s has a probability', async () => {
  await strip(2).getByRole('button').nth(PROMPTS[1].length).click()
  const inspector = page.getByRole('complementary', { name: 'Token' })
  await inspector.getByText('drawn', { exact: true }).waitFor(PATIENCE)
  assert.ok((await inspector.getByRole('listitem').count()) >= 10)
  await strip(2).getByRole('button').nth(3).click()
  await inspector.getByText('of the prompt').waitFor(PATIENCE)
  assert.match(await inspector.textContent(), /Probability[<\d.]+ ?%/)
})

test('the heatmaps hold every position of both prompts', async () => {
  // The last token is drawn from the position before it: of itself there is no pass.
  const positions = PROMPTS[0].length + NEW_TOKENS - 1
  const attention = page.getByRole('region', { name: 'layers[0].attn.probs | head(0)', exact: true })
  await strip(1).getByRole('button').nth(4).click()
  await attention.getByRole('application', { name: new RegExp(`${positions} × ${positions} values, query down, key across`) }).waitFor(PATIENCE)
  await attention.getByText(/query 4( .+)? · key 4( .+)?: [\d.e-]+/).waitFor(PATIENCE)
  await strip(2).getByRole('button').nth(2).click()
  await attention.getByText(/query 2( .+)? · key 2( .+)?: [\d.e-]+/).waitFor(PATIENCE)
  await page.getByRole('region', { name: 'layers[0].resid_post | pca(2)' }).getByText(/rows; the newer/).waitFor(PATIENCE)
  if (process.env.SHOT_FOLDER) await page.screenshot({ path: `${process.env.SHOT_FOLDER}/served.png` })
})

test('lens, wall of heads, histogram, entropy and statistics show what the ranks computed', async () => {
  const tree = page.getByRole('navigation', { name: 'Sites' })
  const views = [['lens', 'resid_post'], ['heads', 'attn.probs'], ['hist', 'mlp.out'], ['ent', 'attn.probs'], ['stat', 'resid_post']]
  for (const [view, site] of views) await tree.getByRole('button', { name: `${view}: ${site},` }).click({ modifiers: ['Shift'] })
  await page.getByRole('button', { name: 'Generate', exact: true }).click(PATIENCE)
  await page.getByText(`Done · ${PROMPTS.length * NEW_TOKENS} new tokens`).waitFor(PATIENCE)
  const card = async (part) => {
    const found = page.getByRole('region', { name: part })
    await found.first().scrollIntoViewIfNeeded(PATIENCE)
    return found.first()
  }
  const lens = await card(/logitlens/)
  await lens.getByRole('listitem').first().waitFor(PATIENCE)
  assert.equal((await lens.getByRole('listitem').count()) % (LAYERS * 5), 0)
  const wall = await card(/^layers\[\*\]\.attn\.probs \| batch\(\d\)$/)
  await wall.locator('li button').nth(LAYERS * HEADS - 1).waitFor(PATIENCE)
  await wall.getByLabel('Sort by').selectOption('induction')
  await wall.locator('li button').first().click()
  await wall.locator('li button').nth(1).click()
  await wall.getByRole('region', { name: 'Two heads' }).getByRole('application').waitFor(PATIENCE)
  await (await card(/hist\(/)).getByRole('img', { name: /[1-9][\d,]* values/ }).waitFor(PATIENCE)
  await (await card(/entropy\(key\)/)).getByRole('application', { name: new RegExp(`${HEADS} values`) }).waitFor(PATIENCE)
  const statistics = await card(/stats\(/)
  await statistics.getByRole('img', { name: `Mean over ${LAYERS} layers` }).waitFor(PATIENCE)
  await statistics.getByRole('button', { name: 'Table', exact: true }).click()
  const cells = await statistics.getByRole('row', { name: /^0/ }).getByRole('cell').allTextContents()
  assert.ok(cells.length === 8 && Number(cells[2].replace('−', '-')) > 0 && cells[7] === '0', cells.join())
  if (process.env.SHOT_FOLDER) await page.screenshot({ path: `${process.env.SHOT_FOLDER}/served-views.png` })
})

test('the layer that was disturbed is found by A/B', async () => {
  const part = page.getByRole('region', { name: 'Experiments', exact: true })
  await part.getByLabel('Kind').selectOption('compare')
  await part.getByLabel('Site').selectOption('mlp.out')
  await part.getByLabel('Layers').fill('1')
  await part.getByLabel('New tokens').fill('4')
  assert.ok(await part.getByRole('button', { name: 'Run the experiment' }).isDisabled())
  await part.getByLabel('Reason').fill('which layer is it')
  await part.getByRole('button', { name: 'Run the experiment' }).click(PATIENCE)
  await part.getByText('First layer that differs').waitFor(PATIENCE)
  assert.match(await part.locator('dl').textContent(), /First layer that differs\s*layer 1/)
  const relative = part.getByRole('region', { name: /^Relative L2/ })
  const before = await relative.getByRole('row', { name: /^layer 0/ }).getByRole('cell').allTextContents()
  // Batches of other sizes may round otherwise.
  assert.ok(before.length && before.every((text) => text === '–' || Number(text.replace('−', '-')) < 1e-6), before.join())
  if (process.env.SHOT_FOLDER) await page.screenshot({ path: `${process.env.SHOT_FOLDER}/compared.png` })
})

test('the prompt’s surprisal is told token by token', async () => {
  const part = page.getByRole('region', { name: 'Experiments', exact: true })
  await part.getByLabel('Kind').selectOption('surprisal')
  await part.getByRole('button', { name: 'Run the experiment' }).click(PATIENCE)
  const told = part.getByRole('region', { name: 'Surprisal, nats' })
  await told.waitFor(PATIENCE)
  // Of the first nobody knows.
  assert.equal((await told.getByRole('cell').allTextContents()).filter((text) => text === '–').length, 1)
})

test('a page is shown alone in a frame', async () => {
  const link = new URL(page.url())
  link.searchParams.set('embed', '1')
  await page.goto(link.href)
  await page.getByLabel('Prompts, one a line').waitFor(PATIENCE)
  await page.getByText('1 viewer').waitFor(PATIENCE)
  assert.equal(await page.getByRole('banner').count(), 0)
  assert.equal(await page.getByRole('navigation', { name: 'Pages' }).count(), 0)
  assert.equal(await page.getByRole('link', { name: 'MegatronApp' }).count(), 0)
})

test('no script failed', () => assert.deepEqual(problems, []))
