// When all of a page is there: so that what is looked at never depends on how fast the machine is.
const PATIENCE_MS = 30_000
const CALM_MS = 60
const FRESH = 2

/** Requests of each page that are under way; a stream of events stays open and is none. */
const open = new WeakMap()

function requestsOf(page) {
  let requests = open.get(page)
  if (requests) return requests
  open.set(page, (requests = new Set()))
  page.on('request', (request) => request.resourceType() !== 'eventsource' && requests.add(request))
  for (const end of ['requestfinished', 'requestfailed']) page.on(end, (request) => requests.delete(request))
  page.on('framenavigated', (frame) => frame === page.mainFrame() && requests.forEach((request) => request.isNavigationRequest() && requests.delete(request)))
  return requests
}

/** Begins to watch the page: before it is opened. */
export const watch = (page) => void requestsOf(page)

/** No request is under way, nothing says that it waits, fonts are there, and what was asked to be drawn has been. */
export async function settled(page) {
  const requests = requestsOf(page)
  const until = Date.now() + PATIENCE_MS
  for (let calm = 0; calm < FRESH; ) {
    const busy = await page.evaluate(busyParts)
    const waits = [...[...requests].map((request) => request.url()), ...busy]
    calm = waits.length ? 0 : calm + 1
    if (Date.now() > until) throw new Error(`${page.url()} does not settle: ${waits.join(', ')}`)
    await page.waitForTimeout(CALM_MS)
  }
}

/** Tells after two frames, so that what a request brought has been drawn. */
async function busyParts() {
  await document.fonts.ready
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))
  return [...document.querySelectorAll('main [aria-busy=true]')].map((part) => part.outerHTML.slice(0, 120))
}
