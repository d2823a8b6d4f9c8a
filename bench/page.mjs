// What the page costs in Chromium: node bench/page.mjs [RANKS [STEPS]], after `npm ci` and `npm run build` in services/ui.
// The timeline of a made-up run (services/ui/test/support): first paint, bytes, frames while panning and zooming, updates.
import { readdirSync, readFileSync } from 'node:fs'
import { cpus } from 'node:os'
import { gzipSync } from 'node:zlib'
import { BUILT, FakeGateway, serve, World } from '../services/ui/test/support/load.mjs'
import { launch } from '../tests/e2e/browser/browser.mjs'
import { mainThread, perFrame, quantile } from './chromium.mjs'

const [ranks = 512, steps = 10_000] = process.argv.slice(2).map(Number)
const GESTURES = 120
const JOBS = 1000
const NODES = 1000
const HOUR = 3600
const STEPS_PER_SECOND = 60
const UPDATES = 20

const world = new World({ run: 'run', name: 'team/run', ranks, steps, pipeline: 4, faults: [{ ranks: [Math.floor(ranks * 0.61)], since: Math.floor(steps * 0.97), effect: 1.22 }] })
const gateway = new FakeGateway([world])
const { server, url } = await serve(gateway, BUILT)
const browser = await launch()

const gzipped = (names) => names.reduce((sum, name) => sum + gzipSync(readFileSync(`${BUILT}/assets/${name}`)).length, 0)

const longest = (tasks) => tasks.map(({ tdur = 0 }) => tdur / 1000)
/** Milliseconds from the navigation to a picture of rows on the canvas, and the bytes that came until then. */
async function firstPaint(page) {
  let bytes = 0
  page.on('response', async (response) => (bytes += (await response.request().sizes().catch(() => ({ responseBodySize: 0 }))).responseBodySize))
  await page.goto(`${url}/jobs/run/timeline`, { waitUntil: 'commit' })
  await page.waitForFunction(() => performance.getEntriesByName('timeline-painted').length > 0, null, { polling: 20 })
  const milliseconds = await page.evaluate(() => performance.getEntriesByName('timeline-painted')[0].startTime)
  await page.waitForTimeout(1500)
  return { milliseconds, bytes }
}

const context = await browser.newContext({ viewport: { width: 1440, height: 900 } })
await context.addInitScript(() => {
  // The first time that a row's picture is copied or a bar is filled on the large canvas.
  for (const name of ['drawImage', 'fill']) {
    const draw = CanvasRenderingContext2D.prototype[name]
    CanvasRenderingContext2D.prototype[name] = function (...args) {
      if (this.canvas.height > 200 && !performance.getEntriesByName('timeline-painted').length) requestAnimationFrame(() => performance.mark('timeline-painted'))
      return draw.apply(this, args)
    }
  }
})
const page = await context.newPage()
// What a server computes of a made-up run is no page's cost: it is asked for once before.
for (const query of ['from_step=0&to_step=0&buckets=512&cells=262144']) gateway.answer('GET', new URL(`/api/v1/jobs/run/timeline/grid?${query}`, url))
const paint = await firstPaint(page)

const canvas = page.getByRole('application')
const box = await canvas.boundingBox()
const middle = { x: box.x + 150 + (box.width - 150) / 2, y: box.y + box.height / 2 }
await page.keyboard.press('0')
await page.waitForTimeout(1500)
const zooming = await mainThread(page, async () => {
  await page.mouse.move(middle.x, middle.y)
  await page.keyboard.down('Control')
  for (let i = 0; i < GESTURES; i += 1) {
    await page.mouse.wheel(0, i % 60 < 30 ? -60 : 60)
    await page.waitForTimeout(16)
  }
  await page.keyboard.up('Control')
})
await page.mouse.move(middle.x, middle.y)
for (let i = 0; i < 6; i += 1) await page.keyboard.press('w')
await page.waitForTimeout(1500)
const panning = await mainThread(page, async () => {
  await page.mouse.down()
  for (let i = 0; i < GESTURES; i += 1) {
    await page.mouse.move(middle.x + 300 * Math.sin(i / 12), middle.y)
    await page.waitForTimeout(16)
  }
  await page.mouse.up()
})
await page.keyboard.press('f')
await page.waitForTimeout(1500)
const updating = await mainThread(page, async () => {
  for (let i = 0; i < UPDATES; i += 1) {
    gateway.advance(world)
    await page.waitForTimeout(1050)
  }
})
server.closeAllConnections()
server.close()
const jobs = await opened(Array.from({ length: JOBS }, (_, i) => new World({ run: `run-${i}`, name: `team/job-${i}`, ranks: 2, steps: 50 })), '/jobs', `1 to 50 of ${JOBS}`)
const nodes = await opened([new World({ run: 'run', name: 'team/run', ranks: 8 * NODES, steps: 50, faults: [{ ranks: [4001], since: 20, effect: 1.3 }] })], '/health', 'node-500')
const heap = await hour()
await browser.close()

const scripts = readdirSync(`${BUILT}/assets`).filter((name) => name.endsWith('.js'))
const index = readFileSync(`${BUILT}/index.html`, 'utf8')
const initial = scripts.filter((name) => index.includes(name) || name.startsWith('JobsView') || name.startsWith('en-'))
const [, heapAtEnd] = heap
const drift = (100 * (heapAtEnd - heap[0])) / heap[0]
/** What is shown, its value, its unit with the digits that are written, and the most that it may be. */
const figures = [
  ['first paint of the timeline', paint.milliseconds / 1000, 's', 2, 1.5],
  ['received until it is drawn in full', paint.bytes / 1e6, 'MB', 2, 5],
  ['zooming: main thread per frame, p95', quantile(perFrame(zooming), 0.95), 'ms', 1, 16],
  ['panning: main thread per frame, p95', quantile(perFrame(panning), 0.95), 'ms', 1, 16],
  ['an update: longest task, median of one a second', updateCost(updating), 'ms', 1, 8],
  [`64 ranks, ${HOUR} steps: heap after a sixth to the end (${(heapAtEnd / 1e6).toFixed(1)} MB)`, Math.abs(drift), '%', 1, 10],
  [`${JOBS} jobs: from the navigation to the list`, jobs.milliseconds / 1000, 's', 2, 1],
  [`${JOBS} jobs: main thread, longest task until then`, jobs.opening, 'ms', 1, 50],
  [`${NODES} nodes × 8: from the navigation to the grid`, nodes.milliseconds / 1000, 's', 2, 1],
  [`${NODES} nodes × 8: main thread, longest task until then`, nodes.opening, 'ms', 1, 50],
  [`${NODES} nodes × 8: the same of the next 5 s`, nodes.longest, 'ms', 1, 50],
  ['initial script, gzip', gzipped(initial) / 1000, 'kB', 0, 180],
  ['all pages, gzip', gzipped(scripts) / 1000, 'kB', 0, 450],
]
const wide = Math.max(...figures.map(([name]) => name.length))
console.log(`${ranks} ranks × ${steps} steps, ${cpus().length} cores, ${cpus()[0].model.trim()}`)
console.log(`${''.padEnd(wide)} ${'measured'.padStart(12)} ${'goal'.padStart(12)}`)
for (const [name, value, unit, digits, most] of figures) {
  const written = `${value.toFixed(digits)} ${unit}`
  console.log(`${name.padEnd(wide)} ${written.padStart(12)} ${`≤ ${most} ${unit}`.padStart(12)}   ${value <= most ? 'met' : 'MISSED'}`)
}
process.exit(0)

/** Milliseconds until a page says `text`, and the longest task of the five seconds after it has settled. */
async function opened(worlds, path, text) {
  const gateway = new FakeGateway(worlds)
  const { server, url } = await serve(gateway, BUILT)
  const page = await browser.newPage({ viewport: { width: 1440, height: 900 } })
  let milliseconds = 0
  const opening = await mainThread(page, async () => {
    await page.goto(url + path, { waitUntil: 'commit' })
    milliseconds = await page.waitForFunction((wanted) => document.body?.textContent.includes(wanted) && performance.now(), text, { polling: 'raf' }).then((handle) => handle.jsonValue())
    await page.waitForTimeout(1000)
  })
  const tasks = await mainThread(page, () => page.waitForTimeout(5000))
  await page.close()
  server.closeAllConnections()
  server.close()
  return { milliseconds, opening: Math.max(...longest(opening)), longest: Math.max(...longest(tasks)) }
}

/** An hour of a run whose steps take a second, told faster: what is held, after a collection. */
async function hour() {
  const world = new World({ run: 'run', name: 'team/run', ranks: 64, steps: 600, pipeline: 4 })
  const gateway = new FakeGateway([world])
  const { server, url } = await serve(gateway, BUILT)
  const page = await browser.newPage({ viewport: { width: 1440, height: 900 } })
  await page.goto(`${url}/jobs/run/timeline`)
  const client = await page.context().newCDPSession(page)
  const used = []
  for (let told = 0; told <= HOUR; told += STEPS_PER_SECOND) {
    if (told === HOUR / 6 || told === HOUR) {
      await client.send('HeapProfiler.collectGarbage')
      const { usedSize, backingStorageSize = 0 } = await client.send('Runtime.getHeapUsage')
      used.push(usedSize + backingStorageSize)
    }
    for (let i = 0; i < STEPS_PER_SECOND; i += 1) gateway.advance(world)
    await page.waitForTimeout(1000)
  }
  server.closeAllConnections()
  server.close()
  return used
}

/** The longest task of each second; the median over the seconds. */
function updateCost(tasks) {
  const first = Math.min(...tasks.map(({ ts }) => ts))
  const seconds = new Map()
  tasks.forEach(({ ts }, i) => {
    const second = Math.floor((ts - first) / 1_050_000)
    seconds.set(second, Math.max(seconds.get(second) ?? 0, longest(tasks)[i]))
  })
  return quantile([...seconds.values()], 0.5)
}
