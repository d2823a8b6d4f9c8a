// @vitest-environment happy-dom
import { createPinia } from 'pinia'
import { expect, it } from 'vitest'
import { createApp, shallowRef } from 'vue'
import TimelineToolbar from '@/components/timeline/TimelineToolbar.vue'

function keys(marked: readonly string[]): (string | undefined)[] {
  const view = { axis: shallowRef('steps'), following: shallowRef(false), steps: shallowRef(null) }
  const rows = { filter: shallowRef(''), grouping: shallowRef('stage'), sorting: shallowRef('rank'), quantity: shallowRef('peers'), bars: shallowRef(false) }
  const place = document.createElement('div')
  createApp(TimelineToolbar, { view, rows, table: false, traceable: true, clock: '', marked, dense: false, attempts: 1, attempt: 1 }).use(createPinia()).mount(place)
  return [...place.querySelectorAll('.legend > span')].map((key) => key.textContent.trim())
}

it('explains the colours of rows that are seen', () => {
  expect(keys(['slow', 'watched'])).toEqual(['Compute', 'Wait', 'Host', 'slow', 'watched'])
  expect(keys([])).toEqual(['Compute', 'Wait', 'Host'])
})
