// The platform is killed while its page is open, and comes back. PYTHON, FOLDER: to run tests.e2e.browser.stage.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { after, before, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { launch, signIn } from './browser.mjs'

const { PYTHON, FOLDER, SHOT_FOLDER } = process.env
const ROOT = fileURLToPath(new URL('../../..', import.meta.url))
const PATIENCE = { timeout: 60_000 }

let platform
/** The platform as a process of its own; gives the address that it prints. */
async function start(port) {
  platform = spawn(PYTHON, ['-m', 'tests.e2e.browser.stage', String(port), FOLDER], { cwd: ROOT, stdio: ['ignore', 'pipe', 'ignore'] })
  for await (const line of createInterface({ input: platform.stdout })) if (line.includes('token=')) return line
  throw new Error('the platform did not start')
}

let browser, page, origin
before(async () => {
  const url = await start(0)
  origin = new URL(url).origin
  browser = await launch()
  ;({ page } = await signIn(browser, url))
})
after(async () => {
  platform.kill('SIGKILL')
  await browser.close()
})
const shoot = async (name) => SHOT_FOLDER && page.screenshot({ path: `${SHOT_FOLDER}/${name}.png` })

test('a second browser signs in with the token that the folder keeps', async () => {
  const { page: other, context } = await signIn(browser, `${origin}/jobs`)
  await other.getByText('megatronapp token').waitFor()
  if (SHOT_FOLDER) await other.screenshot({ path: `${SHOT_FOLDER}/sign-in.png` })
  await other.getByLabel('Token').fill(readFileSync(`${FOLDER}/operator-token`, 'utf8'))
  await other.getByRole('button', { name: 'Sign in' }).click()
  await other.getByText('Live', { exact: true }).waitFor()
  await context.close()
})

test('a killed platform is told of on every page, and nothing stays green', async () => {
  await page.getByRole('row').getByText('Running').waitFor(PATIENCE)
  await page.getByRole('row').getByText(/^started \d/).waitFor()
  await page.goto(`${origin}/health`)
  await page.getByRole('heading', { name: /^Rank 3: slow/ }).waitFor(PATIENCE)
  const cells = page.locator('.nodes a')
  await cells.nth(1).waitFor(PATIENCE)
  platform.kill('SIGKILL')
  await page.getByRole('alert').getByText(/has not been heard since \d\d:\d\d:\d\d/).waitFor(PATIENCE)
  assert.ok((await cells.count()) > 1, 'the ranks stay')
  assert.equal(await page.locator('.nodes .health-mark.ok').count(), 0)
  assert.equal(await page.getByText('No job is running').count(), 0)
  await shoot('health-lost')
  await page.getByRole('navigation', { name: 'Pages' }).getByRole('link', { name: 'Jobs' }).click()
  await page.getByRole('row').getByText('Was: Running').waitFor()
  assert.equal(await page.locator('main .running').count(), 0)
  assert.equal(await page.getByText(/ left$/).count(), 0)
  await shoot('jobs-lost')
  for (const name of ['Timeline', 'Scope', 'Health']) {
    await page.getByRole('navigation', { name: 'Pages' }).getByRole('link', { name }).click()
    await page.waitForURL(new RegExp(name.toLowerCase()))
    await page.getByRole('alert').getByText(/has not been heard since \d\d:\d\d:\d\d/).waitFor(PATIENCE)
    assert.equal(await page.locator('main .running, .nodes .health-mark.ok, .badge.live, .state.live').count(), 0, name)
    await shoot(`${name.toLowerCase()}-lost`)
  }
})

test('the open page goes on, signed in, when the platform is back', async () => {
  await start(new URL(origin).port)
  await page.getByText('Live', { exact: true }).waitFor(PATIENCE)
  await page.getByRole('alert').waitFor({ state: 'detached', ...PATIENCE })
  await page.getByRole('navigation', { name: 'Pages' }).getByRole('link', { name: 'Jobs' }).click()
  await page.getByRole('row').getByText('Running', { exact: true }).waitFor(PATIENCE)
})
