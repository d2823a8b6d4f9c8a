// @vitest-environment happy-dom
import { afterEach, expect, it, vi } from 'vitest'
import { mountApp } from '../support/mount'
import { gatewayOf } from '../support/pages'

let page: Awaited<ReturnType<typeof mountApp>>
afterEach(() => page.end())

it('a page that is gone to has its name in the title and the focus at its heading', async () => {
  page = await mountApp(gatewayOf(2), '/jobs')
  await vi.waitFor(() => expect(document.title).toBe('(1) Jobs – MegatronApp'))
  await page.router.push('/health')
  await vi.waitFor(() => expect(document.activeElement?.textContent).toBe('Health'))
  expect(document.title).toBe('(1) Health – MegatronApp')
  await page.router.push('/jobs/run-0/timeline')
  await vi.waitFor(() => expect(document.title).toBe('(1) Timeline · team/job-0 – MegatronApp'))
  expect(document.activeElement).not.toBe(document.body)
})
