import type { Component } from 'vue'
import GenerateView from '@/views/GenerateView.vue'
import HealthView from '@/views/HealthView.vue'
import JobsView from '@/views/JobsView.vue'
import JobView from '@/views/JobView.vue'
import NotFound from '@/views/NotFound.vue'
import PerturbView from '@/views/PerturbView.vue'
import RecordingLink from '@/views/RecordingLink.vue'
import RecordingsView from '@/views/RecordingsView.vue'
import ReportView from '@/views/ReportView.vue'
import ScopeView from '@/views/ScopeView.vue'
import TimelineView from '@/views/TimelineView.vue'
import { FakeGateway } from './gateway'
import { World } from './world'

export interface PageOfTable {
  readonly view: Component
  readonly at: string
}

/** Every view, by the name of its route, and where it shows the run `run-0`. */
export const VIEWS: Readonly<Record<string, PageOfTable>> = {
  jobs: { view: JobsView, at: '/jobs' },
  job: { view: JobView, at: '/jobs/run-0' },
  timeline: { view: TimelineView, at: '/jobs/run-0/timeline' },
  scope: { view: ScopeView, at: '/jobs/run-0/scope' },
  perturb: { view: PerturbView, at: '/jobs/run-0/perturb' },
  generate: { view: GenerateView, at: '/scope/generate' },
  recordings: { view: RecordingsView, at: '/recordings' },
  recording: { view: RecordingLink, at: '/r/nothing' },
  health: { view: HealthView, at: '/health' },
  report: { view: ReportView, at: '/report' },
  'not-found': { view: NotFound, at: '/nowhere' },
}

/** So many runs of eight ranks, each second of which has a slow one, the first with MegaScope. */
export function gatewayOf(count: number): FakeGateway {
  const runs = Array.from({ length: count }, (_, i) => new World({ run: `run-${i}`, name: `team/job-${i}`, ranks: 8, steps: 90, faults: i % 2 ? [] : [{ ranks: [3], since: 60, effect: 1.3 }] }))
  const gateway = new FakeGateway(runs)
  if (count) gateway.scope('run-0')
  return gateway
}
