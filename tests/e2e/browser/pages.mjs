// Every page over made-up runs: what pictures are taken of and what is checked for accessibility.
import { BUILT, FakeGateway, serve, World } from '../../../services/ui/test/support/load.mjs'
import { settled, watch } from './settled.mjs'

const FAULT = { ranks: [312], since: 1150, effect: 1.22 }
const large = new World({ run: '7f3a90c2', name: 'research/llama-70b', ranks: 512, steps: 1200, pipeline: 8, faults: [FAULT], restartedAt: 700, attempt: 2 })
const small = new World({ run: '51c0de77', name: 'research/moe-ablation', ranks: 8, steps: 900, pipeline: 2, perNode: 4, faults: [{ ranks: [3], since: 860, effect: 1.25 }], settings: { lr: '0.0001' }, worse: 0.3 })
const ended = ['finished', 'stopped', 'failed', 'lost'].map((state, i) => new World({ run: `e${i}b1d2f3`, name: `team/${state}-run`, ranks: 4, steps: 300, state }))
const waiting = [
  new World({ run: 'p0b1d2f3', name: 'team/waits', ranks: 16, steps: 0, state: 'pending', unheard: true, reason: 'Unschedulable', message: 'no place for 2 of 2 pods: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu' }),
  new World({ run: 's0b1d2f3', name: 'team/paused', ranks: 4, steps: 300, state: 'suspended', reason: 'SuspendedByUser', message: 'spec.suspend is true; no pod runs' }),
]
const VIEWS = ['layers[0].attn.probs | batch(0)', 'layers[*].resid_post | stats(mean,std,absmax,p01,p50,p99,zero,nonfinite)', 'layers[1].mlp.act | batch(0)', 'layers[1].resid_post | batch(0) | pca(2)', 'layers[1].resid_post | hist(48)', 'logits | batch(0) | topk(5)']

/** Name of each page, and its path. */
export const PAGES = {
  jobs: '/jobs',
  'jobs-none': '/jobs?search=nothing',
  'jobs-lost': '/jobs',
  job: `/jobs/${small.run}`,
  'job-pending': `/jobs/${waiting[0].run}`,
  compare: `/jobs/${small.run}?with=${large.run}`,
  timeline: `/jobs/${large.run}/timeline?rank=312&step=1180`,
  'timeline-table': `/jobs/${small.run}/timeline`,
  inside: `/jobs/${small.run}/timeline?rank=3&inside=890`,
  health: '/health',
  'health-lost': '/health',
  finding: `/health?finding=${small.run}-finding-0`,
  report: '/report',
  'report-none': '/report',
  scope: `/jobs/${large.run}/scope`,
  'scope-views': `/jobs/${large.run}/scope?${VIEWS.map((view) => `p=${encodeURIComponent(view)}`).join('&')}`,
  'scope-off': `/jobs/${small.run}/scope`,
  perturb: `/jobs/${large.run}/perturb`,
  generate: '/scope/generate',
  generated: '/scope/generate',
  recordings: '/recordings',
  recording: '/r/0000000000000001',
  'sign-in': '/jobs',
  'not-found': '/nowhere',
}

/** What happens before a page is opened, once it is there, and after it has been looked at. */
const ACTS = {
  'jobs-lost': { opened: loses, left: ({ gateway }) => gateway.turn('up') },
  'health-lost': { opened: loses, left: ({ gateway }) => gateway.turn('up') },
  report: { before: ({ gateway }) => (gateway.incidents = 9) },
  'report-none': { before: ({ gateway }) => (gateway.incidents = 0) },
  scope: { opened: trains },
  'scope-views': { opened: trains },
  perturb: { before: ({ scope }) => disturb(scope), left: ({ scope }) => scope.plans.clear() },
  generated: { opened: generates },
  'sign-in': { before: ({ gateway }) => (gateway.signedIn = false), left: ({ gateway }) => (gateway.signedIn = true) },
}

/** Opens a page of `servePages`, as those see it who have used it, until all of it is there; `leave` undoes what was done to it. */
export async function openPage(page, name, served) {
  watch(page)
  ACTS[name]?.before?.(served)
  await page.goto(served.url + PAGES[name])
  await page.locator('h1').first().waitFor({ state: 'attached' })
  await ACTS[name]?.opened?.(page, served)
  await settled(page)
  return { leave: () => ACTS[name]?.left?.(served) }
}

export async function servePages() {
  const gateway = new FakeGateway([large, small, ...waiting, ...ended])
  const scope = gateway.scope(large.run)
  scope.step = large.newestStep
  gateway.archived.push({ ...small.findings(0)[0], id: 'finding-before', state: 'resolved', since_step: 200, opened_unix_ns: small.startOf(204) * 1e9, resolved_step: 240, resolved_unix_ns: small.startOf(240) * 1e9 })
  gateway.annotations.push({ id: 'said', finding: `${small.run}-finding-0`, kind: 'acknowledge', by: 'ann', text: 'I look at node-0', silence: '', unix_ns: small.startOf(870) * 1e9, until_unix_ns: 0 })
  record(scope)
  const { server, url } = await serve(gateway, BUILT)
  return { gateway, scope, url, close: () => (server.closeAllConnections(), server.close()) }
}

/** Somebody looks for a while, and keeps what is seen. */
function record(scope) {
  const { hear, leave } = scope.connect(() => undefined, () => undefined)
  const say = (message) => hear(JSON.stringify(message))
  const shown = VIEWS.slice(0, 2)
  say({ join: { client: 'made-up', run: large.run } })
  shown.forEach((expression, i) => say({ subscribe: { id: i + 1, expression, credits: 1000 } }))
  for (const [id, steps] of [['a', 8], ['b', 3]]) {
    say({ command: { id, record: { do: 'start', view: `/jobs/${large.run}/scope?${shown.map((view) => `p=${encodeURIComponent(view)}`).join('&')}` } } })
    for (let step = 0; step < steps; step += 1) scope.advance()
    say({ command: { id: `${id}-end`, record: { do: 'stop' } } })
  }
  leave()
}

/** Plans in force, and who has put them there. */
function disturb(scope) {
  scope.audit.length = 0
  const { hear, leave } = scope.connect(() => undefined, () => undefined)
  hear(JSON.stringify({ join: { client: 'made-up', run: large.run } }))
  hear(JSON.stringify({ command: { id: 'plan', reason: 'Does the loss survive a hot GPU?', perturb: { plan: 'hot-gpu', seed: 7, perturbations: [{ place: 'calculation', site: 'mlp.out', kind: 'noise2', coefficient: 0.1, layers: '2' }] } } }))
  leave()
}

/** Each step is on every panel before the next one comes: of frames that come faster than they are painted, some are passed over. */
async function trains(page, { scope }) {
  await page.waitForFunction(() => [...document.querySelectorAll('.card .cost')].length && [...document.querySelectorAll('.card .cost')].every((cost) => cost.textContent))
  for (let step = 0; step < 8; step += 1) {
    scope.advance()
    await page.waitForFunction((shown) => [...document.querySelectorAll('.card .facts')].every((facts) => facts.firstElementChild?.textContent.includes(shown)), scope.step.toLocaleString('en'))
  }
}

async function generates(page, { scope }) {
  await page.locator('.status .number').first().waitFor()
  await page.locator('textarea').fill('The king of the land\nOnce upon a time')
  await page.locator('button[type=submit]').first().click()
  const second = page.locator('.strip').nth(1)
  await second.waitFor()
  for (let i = 0; i < 9; i += 1) scope.generation.advance()
  await second.getByRole('button').nth(5).click()
}

async function loses(page, { gateway }) {
  await page.locator('main a').first().waitFor()
  gateway.turn('down')
  await page.getByRole('alert').first().waitFor()
}
