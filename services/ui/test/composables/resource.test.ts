import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { effectScope, ref } from 'vue'
import { ApiError } from '@/api/client'
import type { Resource } from '@/composables/useResource'
import { useResource } from '@/composables/useResource'

const lost = new TypeError('Failed to fetch')
const refusal = (status: number): ApiError => new ApiError(status, 'code', 'message', 'hint')

describe('a resource', () => {
  let [scope, key] = [effectScope(), ref('a')]
  const load = vi.fn<(key: string) => Promise<string>>()
  const open = (): Resource<string> => scope.run(() => useResource(key, load))!
  beforeEach(() => {
    vi.useFakeTimers()
    ;[scope, key] = [effectScope(), ref('a')]
  })
  afterEach(() => {
    scope.stop()
    vi.useRealTimers()
    load.mockReset()
  })

  it.each([['the platform is lost', lost], ['a proxy says so', refusal(502)]])('is asked for again while %s', async (_, failure) => {
    load.mockRejectedValueOnce(failure).mockRejectedValueOnce(failure).mockResolvedValue('answer')
    const resource = open()
    await vi.advanceTimersByTimeAsync(0)
    expect(resource.error.value).toBe(failure)
    await vi.advanceTimersByTimeAsync(10_000)
    expect([resource.data.value, resource.error.value, load.mock.calls.length]).toEqual(['answer', undefined, 3])
  })

  it('that was refused is not asked for again', async () => {
    load.mockRejectedValue(refusal(404))
    const resource = open()
    await vi.advanceTimersByTimeAsync(10_000)
    expect([resource.error.value, load.mock.calls.length]).toEqual([refusal(404), 1])
  })

  it('of another key is not asked for with the old one', async () => {
    load.mockRejectedValueOnce(lost).mockResolvedValue('of b')
    const resource = open()
    await vi.advanceTimersByTimeAsync(0)
    key.value = 'b'
    await vi.advanceTimersByTimeAsync(10_000)
    expect([resource.data.value, load.mock.calls]).toEqual(['of b', [['a', expect.anything()], ['b', expect.anything()]]])
  })

  it('that nobody shows any more is not asked for', async () => {
    load.mockRejectedValue(lost)
    open()
    await vi.advanceTimersByTimeAsync(0)
    scope.stop()
    await vi.advanceTimersByTimeAsync(10_000)
    expect(load).toHaveBeenCalledOnce()
  })
})
