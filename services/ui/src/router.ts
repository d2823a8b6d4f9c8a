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
    rail?: 'jobs' | 'timeline' | 'health'
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
    { path: '/health', name: 'health', component: () => import('./views/HealthView.vue'), meta: { title: 'nav.health', rail: 'health' } },
    { path: '/report', name: 'report', component: () => import('./views/ReportView.vue'), meta: { title: 'report.title', rail: 'health', above: ['health'] } },
    { path: '/:path(.*)*', name: 'not-found', component: () => import('./views/NotFound.vue'), meta: { title: 'notFound.title' } },
  ],
})
