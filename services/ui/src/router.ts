import { createRouter, createWebHistory } from 'vue-router'
import type { MessageKey } from '@/composables/useText'

/** A key, or several for one purpose, as the list of keys shows them. */
export interface KeyHelp {
  readonly keys: readonly string[]
  readonly text: MessageKey
}

declare module 'vue-router' {
  interface RouteMeta {
    /** The page's name: in the document's title, the breadcrumb and the list of keys. */
    title?: MessageKey
    /** Which entry of the rail it belongs to. */
    rail?: 'jobs' | 'timeline' | 'health' | 'scope'
    /** The pages above it, outermost first, by the names of their routes. */
    above?: readonly string[]
    /** It shows one job: its name is part of the title. */
    ofJob?: boolean
    /** Keys that work there. */
    keys?: readonly KeyHelp[]
  }
}

const TIMELINE_KEYS: readonly KeyHelp[] = [
  { keys: ['W', 'S'], text: 'keys.zoom' },
  { keys: ['A', 'D'], text: 'keys.pan' },
  { keys: ['0'], text: 'keys.fit' },
  { keys: ['f'], text: 'keys.follow' },
  { keys: ['←', '→', '↑', '↓'], text: 'keys.select' },
  { keys: ['Enter'], text: 'keys.perfetto' },
  { keys: ['Esc'], text: 'keys.escape' },
]

const SCOPE_KEYS: readonly KeyHelp[] = [
  { keys: ['j', 'k'], text: 'keys.scopeLayer' },
  { keys: ['h', 'l'], text: 'keys.scopeHead' },
  { keys: ['[', ']'], text: 'keys.scopePanel' },
  { keys: ['n'], text: 'keys.scopeAdd' },
  { keys: ['+', '−', '0'], text: 'keys.scopeZoom' },
  { keys: ['r'], text: 'keys.scopeRange' },
  { keys: ['e'], text: 'keys.scopeExport' },
  { keys: ['c'], text: 'action.copyLink' },
  { keys: ['␣'], text: 'keys.scopePause' },
  { keys: ['.'], text: 'keys.scopeStep' },
]

const GENERATE_KEYS: readonly KeyHelp[] = [
  { keys: ['G'], text: 'keys.generate' },
  { keys: ['␣'], text: 'keys.generatePause' },
  { keys: ['.'], text: 'keys.generateStep' },
  { keys: ['[', ']'], text: 'keys.generateToken' },
]

export const router = createRouter({
  history: createWebHistory(),
  routes: [
    { path: '/', redirect: { path: '/jobs', query: {} } },
    { path: '/jobs', name: 'jobs', component: () => import('./views/JobsView.vue'), meta: { title: 'nav.jobs', rail: 'jobs' } },
    {
      path: '/jobs/:run',
      name: 'job',
      component: () => import('./views/JobView.vue'),
      props: true,
      meta: { title: 'jobs.job', rail: 'jobs', above: ['jobs'], ofJob: true },
    },
    {
      path: '/jobs/:run/timeline',
      name: 'timeline',
      component: () => import('./views/TimelineView.vue'),
      props: true,
      meta: { title: 'nav.timeline', rail: 'timeline', above: ['jobs', 'job'], ofJob: true, keys: TIMELINE_KEYS },
    },
    {
      path: '/jobs/:run/scope',
      name: 'scope',
      component: () => import('./views/ScopeView.vue'),
      props: true,
      meta: { title: 'nav.scope', rail: 'scope', above: ['jobs', 'job'], ofJob: true, keys: SCOPE_KEYS },
    },
    {
      path: '/jobs/:run/perturb',
      name: 'perturb',
      component: () => import('./views/PerturbView.vue'),
      props: true,
      meta: { title: 'nav.perturb', rail: 'scope', above: ['jobs', 'job', 'scope'], ofJob: true },
    },
    { path: '/scope/generate', name: 'generate', component: () => import('./views/GenerateView.vue'), meta: { title: 'nav.generate', rail: 'scope', keys: GENERATE_KEYS } },
    { path: '/recordings', name: 'recordings', component: () => import('./views/RecordingsView.vue'), meta: { title: 'recordings.title', rail: 'scope' } },
    { path: '/r/:recording', name: 'recording', component: () => import('./views/RecordingLink.vue'), props: true, meta: { title: 'recordings.one', rail: 'scope', above: ['recordings'] } },
    { path: '/health', name: 'health', component: () => import('./views/HealthView.vue'), meta: { title: 'nav.health', rail: 'health' } },
    { path: '/report', name: 'report', component: () => import('./views/ReportView.vue'), meta: { title: 'report.title', rail: 'health', above: ['health'] } },
    { path: '/:path(.*)*', name: 'not-found', component: () => import('./views/NotFound.vue'), meta: { title: 'notFound.title' } },
  ],
})
