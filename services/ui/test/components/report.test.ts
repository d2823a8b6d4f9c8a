// @vitest-environment happy-dom
import { createPinia } from 'pinia'
import { expect, it } from 'vitest'
import { createApp } from 'vue'
import type { Report } from '@/api/types'
import ReportTables from '@/components/report/ReportTables.vue'

it('names the kind of an offender once', () => {
  const named = (kind: 'node' | 'gpu' | 'job', name: string) => ({ kind, name, incidents: 2, alerts: [] })
  const report = { levels: [], causes: [], repeat_offenders: [named('node', 'node-3'), named('gpu', 'GPU-00000003'), named('node', 'h100-7'), named('job', 'team/run')] } as unknown as Report
  const place = document.createElement('div')
  createApp(ReportTables, { report }).use(createPinia()).mount(place)
  expect([...place.querySelectorAll('tbody th')].map((one) => one.textContent.trim())).toEqual(['node-3', 'GPU-00000003', 'node h100-7', 'job team/run'])
})
