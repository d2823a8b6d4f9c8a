import { useIntervalFn } from '@vueuse/core'
import type { ShallowRef } from 'vue'
import { onScopeDispose, shallowRef, watch } from 'vue'
import { getRankStatus } from '@/api/client'
import { useLive } from '@/api/live'
import type { RankStatus } from '@/api/types'
import { isOver, waits } from '@/lib/jobs'

const REFRESH_MS = 2000

/** Ranks of all jobs that have not ended, looked at every few seconds while the page is seen: one request, however many jobs there are. */
export function useAllRanks(): ShallowRef<readonly RankStatus[]> {
  const live = useLive()
  const ranks = shallowRef<readonly RankStatus[]>([])
  const stop = new AbortController()

  const shown = ({ run }: RankStatus): boolean => {
    const job = live.jobs.get(run)
    return job !== undefined && (job.state === 'lost' || (!isOver(job.state) && !waits(job)))
  }
  const refresh = async (): Promise<void> => {
    // Without an answer what was known last stays, as such.
    if (live.lostSince.value !== null || !live.ready.value) return
    const answer = await getRankStatus(stop.signal).catch(() => null)
    if (answer && live.lostSince.value === null) ranks.value = answer.filter(shown)
  }
  useIntervalFn(() => void (document.hidden || refresh()), REFRESH_MS)
  watch(() => [...live.jobs.keys()].join(), () => void refresh(), { immediate: true })
  onScopeDispose(() => stop.abort())
  return ranks
}
