// What MegaScope's pages cost in Chromium: node bench/scope_page.mjs, after `npm ci` and `npm run build` in services/ui.
// Over a made-up gateway (services/ui/test/support): a token from its event to its paint, bytes of what Generate shows first,
// and a picture of 4,096 × 128 cells as fast as the page takes it. PAGE_URL, the one-time link of a platform that serves a
// model: a token from the key that asks for it, over gateway and ranks.
import { cpus } from 'node:os'
import { BUILT, FakeGateway, serve, World } from '../services/ui/test/support/load.mjs'
import { launch, signIn } from '../tests/e2e/browser/browser.mjs'
import { quantile, script } from './chromium.mjs'

const PATIENCE = { timeout: 60_000 }
const TOKENS = 60
const BETWEEN_MS = 250
const PICTURE_SECONDS = 5
const DISTINCT = 6
const PROMPT = Array.from({ length: 128 }, (_, i) => (i ? ' word' : 'word')).join('')
const CREDIT_FRAMES = 2

const gateway = new FakeGateway([new World({ run: 'run', name: 'team/run', ranks: 2, steps: 20 })])
const { server, url } = await serve(gateway, BUILT)
const browser = await launch()
const row = (name, value, goal) => console.log(`${name.padEnd(64)} ${value.padStart(12)}   ${goal}`)
console.log(`${cpus().length} cores, ${cpus()[0].model.trim()}`)

await fromTokenToPixel()
await largePicture()
if (process.env.PAGE_URL) await served(process.env.PAGE_URL)
await browser.close()
server.closeAllConnections()
server.close()
process.exit(0)

/** Bytes that go to the page, and its credit, from now on. */
function listen() {
  const seen = { bytes: 0, frames: [], credits: () => undefined, send: undefined }
  const view = gateway.view.bind(gateway)
  gateway.view = (send, close) => {
    seen.send = send
    const viewer = view((message) => {
      seen.bytes += typeof message === 'string' ? Buffer.byteLength(message) : message.length
      if (typeof message !== 'string') seen.frames.push(message)
      send(message)
    }, close)
    return {
      hear: (text) => {
        const { credit } = JSON.parse(text)
        if (credit) seen.credits(credit.frames)
        viewer.hear(text)
      },
      leave: () => viewer.leave(),
    }
  }
  return seen
}

/** Tells of each token when it has been painted: Unix milliseconds by its position. */
async function watchTokens(page) {
  await page.evaluate(() => {
    window.painted = []
    new MutationObserver(() => {
      const count = document.querySelectorAll('.strip button').length
      if (count <= window.painted.length) return
      // The frame that has it is drawn before the callback of the next one.
      requestAnimationFrame(() => requestAnimationFrame(() => {
        while (window.painted.length < count) window.painted.push(performance.timeOrigin + performance.now())
      }))
    }).observe(document.body, { childList: true, subtree: true })
  })
}

async function fromTokenToPixel() {
  const scope = gateway.scope('run', { layers: 32, heads: 32, channels: 1024, tokens: 128 })
  const seen = listen()
  const page = await browser.newPage({ viewport: { width: 1440, height: 900 } })
  await page.goto(`${url}/scope/generate`)
  await page.getByText('1 viewer').waitFor(PATIENCE)
  await page.getByLabel('Prompts, one a line').fill(PROMPT)
  await page.getByLabel('New tokens').fill(String(TOKENS))
  await watchTokens(page)
  seen.bytes = 0
  await page.getByRole('button', { name: 'Generate', exact: true }).click()
  await page.getByRole('application').first().waitFor(PATIENCE)
  await page.waitForTimeout(2000)
  row('Generate, prompt of 128 tokens, 32 layers × 32 heads: received', `${(seen.bytes / 1e6).toFixed(3)} MB`, '≤ 0.5 MB')
  const before = await page.evaluate(() => window.painted.length)
  const sampled = []
  for (let i = 0; i < TOKENS; i += 1) {
    sampled.push(Date.now())
    scope.generation.advance()
    await page.waitForTimeout(BETWEEN_MS)
  }
  const painted = (await page.evaluate(() => window.painted)).slice(before)
  const delays = sampled.slice(0, painted.length).map((at, i) => painted[i] - at)
  row(`a token, from its event to its paint: p50, p95 of ${delays.length}`, `${quantile(delays, 0.5).toFixed(0)}, ${quantile(delays, 0.95).toFixed(0)} ms`, 'p95 ≤ 250 ms (goal 100)')
  await page.close()
}

/** A few frames, made before, over and over: what it costs to make them up is no page's. */
async function largePicture() {
  const scope = gateway.scope('run', { layers: 2, heads: 8, channels: 1024, tokens: 128 })
  const seen = listen()
  const page = await browser.newPage({ viewport: { width: 1440, height: 900 } })
  await page.addInitScript(() => {
    window.pictures = 0
    const put = CanvasRenderingContext2D.prototype.putImageData
    CanvasRenderingContext2D.prototype.putImageData = function (image, ...rest) {
      if (image.height === 128) window.pictures += 1
      return put.call(this, image, ...rest)
    }
  })
  await page.goto(`${url}/jobs/run/scope?p=${encodeURIComponent('layers[0].mlp.act | batch(0)')}`)
  await page.locator('.cost').getByText('on the rank').waitFor(PATIENCE)
  for (let i = 0; i < DISTINCT; i += 1) {
    scope.advance()
    await page.waitForTimeout(500)
  }
  const frames = seen.frames.map((frame) => Buffer.from(frame))
  let [step, credit] = [1000, 0]
  const pump = () => {
    for (; credit > 0; credit -= 1) {
      step += 1
      const frame = Buffer.from(frames[step % frames.length])
      frame.writeBigUInt64LE(BigInt(step), 8)
      frame.writeUInt32LE(step, 24)
      seen.send(frame)
    }
  }
  const [before, ran] = await shownWhile(page, async () => {
    seen.credits = (more) => ((credit += more), pump())
    credit = CREDIT_FRAMES
    pump()
    await page.waitForTimeout(PICTURE_SECONDS * 1000)
    seen.credits = () => undefined
  })
  const shown = (await page.evaluate(() => window.pictures)) - before
  row('4,096 × 128 cells: pictures painted in a second', (shown / PICTURE_SECONDS).toFixed(1), '≥ 30')
  row('the same: script of the main thread, a picture', `${(ran / Math.max(1, shown)).toFixed(2)} ms`, '≤ 3 ms')
  await page.close()
}

async function shownWhile(page, act) {
  const before = await page.evaluate(() => window.pictures)
  return [before, await script(page, act)]
}

async function served(link) {
  const { page, context } = await signIn(browser, link)
  await page.getByText('Live', { exact: true }).waitFor(PATIENCE)
  await page.goto(`${new URL(link).origin}/scope/generate`)
  await page.getByText('1 viewer').waitFor(PATIENCE)
  await page.getByLabel('Prompts, one a line').fill('The king')
  await page.getByLabel('New tokens').fill('7')
  await page.getByLabel('Token by token, by hand').check()
  await watchTokens(page)
  await page.getByRole('button', { name: 'Generate', exact: true }).click()
  await page.getByText(/^Paused · /).waitFor(PATIENCE)
  await page.locator('h1').focus()
  const delays = []
  for (let i = 0; i < 6; i += 1) {
    const before = await page.evaluate(() => window.painted.length)
    const at = await page.evaluate(() => performance.timeOrigin + performance.now())
    await page.keyboard.press('.')
    await page.waitForFunction((count) => window.painted.length > count, before, PATIENCE)
    delays.push((await page.evaluate((count) => window.painted[count], before)) - at)
    await page.waitForTimeout(300)
  }
  row(`a served model: from the key to the token’s paint, p50, p95 of ${delays.length}`, `${quantile(delays, 0.5).toFixed(0)}, ${quantile(delays, 0.95).toFixed(0)} ms`, 'p95 ≤ 250 ms')
  await context.close()
}
