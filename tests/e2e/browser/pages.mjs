// Every page over made-up runs: what pictures are taken of and what is checked for accessibility.
import { BUILT, FakeGateway, serve, World } from '../../../services/ui/test/support/load.mjs'

const FAULT = { ranks: [312], since: 1150, effect: 1.22 }
const large = new World({ run: '7f3a90c2', name: 'research/llama-70b', ranks: 512, steps: 1200, pipeline: 8, faults: [FAULT], restartedAt: 700, attempt: 2 })
const small = new World({ run: '51c0de77', name: 'research/moe-ablation', ranks: 8, steps: 900, pipeline: 2, perNode: 4, faults: [{ ranks: [3], since: 860, effect: 1.25 }], settings: { lr: '0.0001' }, worse: 0.3 })
const ended = ['finished', 'stopped', 'failed', 'lost'].map((state, i) => new World({ run: `e${i}b1d2f3`, name: `team/${state}-run`, ranks: 4, steps: 300, state }))
const waiting = [
  new World({ run: 'p0b1d2f3', name: 'team/waits', ranks: 16, steps: 0, state: 'pending', unheard: true, reason: 'Unschedulable', message: 'no place for 2 of 2 pods: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu' }),
  new World({ run: 's0b1d2f3', name: 'team/paused', ranks: 4, steps: 300, state: 'suspended', reason: 'SuspendedByUser', message: 'spec.suspend is true; no pod runs' }),
]

/** Name of each page, and its path. */
export const PAGES = {
  jobs: '/jobs',
  'jobs-none': '/jobs?search=nothing',
  job: `/jobs/${small.run}`,
  'job-pending': `/jobs/${waiting[0].run}`,
  compare: `/jobs/${small.run}?with=${large.run}`,
  timeline: `/jobs/${large.run}/timeline?rank=312&step=1180`,
  'timeline-table': `/jobs/${small.run}/timeline`,
  inside: `/jobs/${small.run}/timeline?rank=3&inside=890`,
  health: '/health',
  finding: `/health?finding=${small.run}-finding-0`,
  report: '/report',
  scope: `/jobs/${large.run}/scope`,
  perturb: `/jobs/${large.run}/perturb`,
  generate: '/scope/generate',
  recordings: '/recordings',
  'not-found': '/nowhere',
}

export async function servePages() {
  const gateway = new FakeGateway([large, small, ...waiting, ...ended])
  gateway.scope(large.run)
  gateway.archived.push({ ...small.findings(0)[0], id: 'finding-before', state: 'resolved', since_step: 200, resolved_step: 240, resolved_unix_ns: small.startOf(240) * 1e9 })
  gateway.annotations.push({ id: 'said', finding: `${small.run}-finding-0`, kind: 'acknowledge', by: 'ann', text: 'I look at node-0', silence: '', unix_ns: small.startOf(870) * 1e9, until_unix_ns: 0 })
  const { server, url } = await serve(gateway, BUILT)
  return { gateway, url, close: () => (server.closeAllConnections(), server.close()) }
}
