// Inside a real training: open scope, see a head's attention, pause, step, resume, disturb.
// PAGE_URL: the page with a one-time token. RUN: the training's, of two stages. SLOW_RANK: of the second.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { AXE, launch, signIn, SIZES, THEMES } from './browser.mjs'

const url = process.env.PAGE_URL
const run = process.env.RUN
const origin = new URL(url).origin
const PATIENCE = { timeout: 120_000 }
const shots = process.env.SHOT_FOLDER

let browser, page, problems, storageState
before(async () => {
  browser = await launch()
  const session = await signIn(browser, url)
  ;({ page, problems } = session)
  storageState = await session.context.storageState()
})
after(() => browser.close())

const shoot = async (name) => shots && page.screenshot({ path: `${shots}/${name}.png` })
const card = (site) => page.getByRole('region', { name: site, exact: typeof site === 'string' })
const stepOf = async (region) => Number((/step ([\d,]+)/.exec(await region.locator('.facts').textContent()) ?? ['', '0'])[1].replaceAll(',', ''))
/** How many colours a canvas shows: a picture has many, an empty one two or three. */
const colours = (canvas) =>
  canvas.evaluate((element) => {
    const { data } = element.getContext('2d').getImageData(0, 0, element.width, element.height)
    const seen = new Set()
    for (let i = 0; i < data.length; i += 4) seen.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2])
    return seen.size
  })

test('from a finding one click leads to the layers of its rank, which the address holds', async () => {
  const slow = Number(process.env.SLOW_RANK)
  await page.goto(`${origin}/health`)
  const finding = page.getByRole('article')
  await finding.getByRole('heading', { name: new RegExp(`^Rank ${slow}: slow`) }).waitFor({ timeout: 240_000 })
  await finding.getByRole('link', { name: 'Layers' }).click()
  await page.waitForURL(new RegExp(`/scope\\?rank=${slow}&finding=.*p=layers\\[2:4\\]\\.resid_post`), PATIENCE)
  await page.locator('.under').getByText(`Rank ${slow} · layers 2 to 3`).waitFor(PATIENCE)
  await card(/stats\(/).getByRole('img', { name: 'Mean over 2 layers' }).waitFor(PATIENCE)
  await card('layers[2].mlp.out | batch(0)').getByRole('application').waitFor(PATIENCE)
  await page.reload()
  await page.locator('.under').getByText(`Rank ${slow} · layers 2 to 3`).waitFor(PATIENCE)
  await page.goto(`${origin}/jobs`)
})

test('from the list of jobs into the model', async () => {
  await page.getByRole('row').getByRole('link', { name: /looked-into/ }).first().click(PATIENCE)
  await page.getByRole('link', { name: 'Scope' }).last().click(PATIENCE)
  await page.waitForURL('**/scope*')
  await page.getByText('Nobody controls').waitFor(PATIENCE)
  await page.locator('.model', { hasText: /4 layers · 4 heads · 32 channels.*TP 2.*PP 2/ }).waitFor(PATIENCE)
})

test('a head’s attention is a picture with its step, and the address shows the same', async () => {
  const attention = card(/attn\.probs/)
  await attention.getByRole('application').waitFor(PATIENCE)
  const first = await stepOf(attention)
  assert.ok(first > 0)
  assert.ok((await colours(attention.locator('.map canvas').first())) > 12)
  await attention.locator('.facts').getByText('from 4 ranks').waitFor(PATIENCE)
  await page.waitForURL(/p=layers\[0\]\.attn\.probs/)
  await card(/stats\(/).getByRole('img', { name: 'Mean over 4 layers' }).waitFor(PATIENCE)
  await shoot('scope-live')
})

test('pause holds all ranks and shows the lease', async () => {
  await page.getByRole('button', { name: 'Pause' }).click(PATIENCE)
  await page.getByText(/Paused after step [\d,]+ · held while this page is open/).waitFor(PATIENCE)
  await page.getByText('You control').waitFor(PATIENCE)
  await shoot('scope-paused')
})

test('a step is one step, and its picture is shown', async () => {
  const paused = async () => Number(/Paused after step ([\d,]+)/.exec(await page.locator('.lease').textContent())[1].replaceAll(',', ''))
  const before = await paused()
  await page.keyboard.press('.')
  await page.waitForFunction((step) => new RegExp(`Paused after step ${step.toLocaleString('en-US')}`).test(document.querySelector('.lease')?.textContent ?? ''), before + 1, PATIENCE)
  const attention = card(/attn\.probs/)
  await page.waitForFunction((step) => document.querySelector('.facts')?.textContent.startsWith(`step ${step.toLocaleString('en-US')}`), before + 1, PATIENCE)
  assert.equal(await stepOf(attention), before + 1)
})

test('another site, layer and head are a click and a key away, and a value is read', async () => {
  await page.getByRole('navigation', { name: 'Sites' }).getByRole('button', { name: 'attn.q', exact: true }).click()
  await page.locator('h1').focus()
  await page.keyboard.press('j')
  await page.keyboard.press('l')
  const queries = card('layers[1].attn.q | batch(0) | head(1)')
  await queries.waitFor(PATIENCE)
  await page.keyboard.press('.')
  const map = queries.getByRole('application')
  await map.waitFor(PATIENCE)
  await map.focus()
  await page.keyboard.press('ArrowDown')
  await queries.getByText(/token 0 .+ · chan 0: −?[\d.e-]+/).waitFor(PATIENCE)
})

test('an expression that is wrong says where and what to write', async () => {
  const field = page.locator('section.card input.mono').first()
  await field.fill('layers[1].attn.q | fold(3)')
  await field.press('Enter')
  const alert = page.locator('section.card').first().getByRole('alert')
  await alert.waitFor(PATIENCE)
  assert.match(await alert.locator('mark').textContent(), /^fold\(3\)/)
  assert.match(await alert.textContent(), /there is no operation fold/)
  await field.fill('logits | batch(0) | last(2) | topk(5)')
  await field.press('Enter')
  await alert.waitFor({ state: 'detached', ...PATIENCE })
})

test('training goes on when it is resumed', async () => {
  await page.getByRole('button', { name: 'Resume' }).click(PATIENCE)
  await page.locator('.top li').first().waitFor(PATIENCE)
  const before = await stepOf(page.locator('section.card').first())
  await page.waitForFunction((step) => Number(/step ([\d,]+)/.exec(document.querySelector('.facts')?.textContent ?? '')?.[1].replaceAll(',', '')) > step + 2, before, PATIENCE)
})

test('a session is recorded, and shown again without the model', async () => {
  await page.goto(`${origin}/jobs/${run}/scope?p=${encodeURIComponent('layers[1].attn.probs | batch(0) | head(1)')}`)
  const attention = card(/attn\.probs/)
  await attention.getByRole('application').waitFor(PATIENCE)
  await page.getByRole('button', { name: 'Record', exact: true }).click(PATIENCE)
  const from = await stepOf(attention)
  await page.waitForFunction((step) => Number(/step ([\d,]+)/.exec(document.querySelector('.facts')?.textContent ?? '')?.[1].replaceAll(',', '')) > step + 10, from, PATIENCE)
  await page.getByRole('button', { name: /^Stop/ }).click(PATIENCE)
  await page.getByText('Recorded.').waitFor(PATIENCE)
  await page.getByRole('link', { name: 'Open', exact: true }).click()
  await page.waitForURL(/recording=[0-9a-f]{16}/)
  const slider = page.getByRole('slider', { name: 'Moment' })
  await slider.waitFor(PATIENCE)
  await page.waitForFunction((step) => Number(/step ([\d,]+)/.exec(document.querySelector('.facts')?.textContent ?? '')?.[1].replaceAll(',', '')) > step + 5, from, PATIENCE)
  assert.ok((await colours(attention.locator('.map canvas').first())) > 12)
  const later = await stepOf(attention)
  await page.keyboard.press(' ')
  await page.getByRole('button', { name: 'Play' }).waitFor(PATIENCE)
  await slider.fill('0')
  await page.waitForFunction((step) => {
    const shown = Number(/step ([\d,]+)/.exec(document.querySelector('.facts')?.textContent ?? '')?.[1].replaceAll(',', ''))
    return shown > 0 && shown < step
  }, later, PATIENCE)
  await shoot('replay-real')
})

test('a snapshot’s link shows the same to somebody else, and its file can be carried', async () => {
  await page.goto(`${origin}/jobs/${run}/scope?p=${encodeURIComponent('layers[1].attn.probs | batch(0) | head(1)')}`)
  await card(/attn\.probs/).getByRole('application').waitFor(PATIENCE)
  await page.getByRole('button', { name: 'Snapshot' }).click(PATIENCE)
  await page.getByText('Kept; its link is copied.').waitFor(PATIENCE)
  const link = await page.getByRole('link', { name: 'Open', exact: true }).getAttribute('href')
  const { page: other, context, problems: troubles } = await signIn(browser, origin + link, { storageState, theme: 'dark' })
  await other.getByRole('application').first().waitFor(PATIENCE)
  const step = await stepOf(other.getByRole('region', { name: /attn\.probs/ }))
  await other.goto(origin + link)
  await other.getByRole('application').first().waitFor(PATIENCE)
  assert.equal(await stepOf(other.getByRole('region', { name: /attn\.probs/ })), step)
  await other.goto(`${origin}/recordings`)
  const before = await other.getByRole('row').count().then(async () => (await other.locator('tbody tr').first().waitFor(PATIENCE), other.locator('tbody tr').count()))
  const file = Buffer.from(await other.evaluate(async (id) => [...new Uint8Array(await (await fetch(`/api/v1/scope/recordings/${id}/file`)).arrayBuffer())], link.replace('/r/', '')))
  await other.locator('input[type=file]').setInputFiles({ name: 'a.mscope', mimeType: 'application/octet-stream', buffer: file })
  await other.waitForFunction((count) => document.querySelectorAll('tbody tr').length === count + 1, before, PATIENCE)
  await other.locator('input[type=file]').setInputFiles({ name: 'a.mscope', mimeType: 'application/octet-stream', buffer: Buffer.from('no recording') })
  await other.getByRole('alert').getByText('this is no recording').waitFor(PATIENCE)
  assert.deepEqual(troubles.filter((text) => !text.includes('422')), [])
  await context.close()
})

test('a plan disturbs it with a reason, is seen by all, and is cleared by a click', async () => {
  await page.goto(`${origin}/jobs/${run}/scope`)
  await page.getByRole('link', { name: 'Perturb' }).click(PATIENCE)
  await page.waitForURL('**/perturb')
  await page.getByRole('button', { name: 'Zeroed heads' }).click(PATIENCE)
  const apply = page.getByRole('button', { name: 'Disturb the run' })
  assert.ok(await apply.isDisabled())
  await page.getByLabel('Reason').fill('what does head 0 do?')
  await apply.click(PATIENCE)
  await page.getByText(/plan-1 is in force from step [\d,]+ on/).waitFor(PATIENCE)
  await page.getByRole('button', { name: 'Clear plan-1' }).waitFor(PATIENCE)
  await shoot('perturb-real')
  await page.getByRole('link', { name: 'Scope' }).last().click()
  await page.getByText('Disturbed by plan-1').waitFor(PATIENCE)
  await page.goBack()
  await page.getByRole('button', { name: 'Clear plan-1' }).click(PATIENCE)
  await page.getByText('Nothing disturbs this run.').waitFor(PATIENCE)
})

test('the pages are accessible in both themes', async () => {
  for (const theme of THEMES) {
    const { page: own, problems: troubles, context } = await signIn(browser, `${origin}/jobs`, { theme, storageState, viewport: SIZES.small })
    for (const path of [`/jobs/${run}/scope`, `/jobs/${run}/perturb`, '/recordings']) {
      await own.goto(origin + path)
      await own.getByText(path === '/recordings' ? /\d kept/ : /\d viewers?/).first().waitFor(PATIENCE)
      await own.waitForTimeout(2000)
      await own.evaluate(AXE)
      const { violations } = await own.evaluate(() => window.axe.run())
      assert.deepEqual(violations.map(({ id, nodes }) => `${theme} ${path}: ${id} ${nodes[0].html}`), [])
    }
    assert.deepEqual(troubles, [])
    await context.close()
  }
})

test('nothing was refused by the content policy, and no script failed', () => assert.deepEqual(problems, []))
