import { createRouter, createWebHistory } from 'vue-router'
import JobsView from './views/JobsView.vue'

export const router = createRouter({
  history: createWebHistory(),
  routes: [
    { path: '/', redirect: { path: '/jobs', query: {} } },
    { path: '/jobs', name: 'jobs', component: JobsView },
    { path: '/jobs/:run', name: 'job', component: () => import('./views/JobView.vue'), props: true },
    { path: '/jobs/:run/timeline', name: 'timeline', component: () => import('./views/TimelineView.vue'), props: true },
    { path: '/health', name: 'health', component: () => import('./views/HealthView.vue') },
    { path: '/report', name: 'report', component: () => import('./views/ReportView.vue') },
    { path: '/:path(.*)*', name: 'not-found', component: () => import('./views/NotFound.vue') },
  ],
})
