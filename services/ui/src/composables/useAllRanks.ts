import { useIntervalFn } from '@vueuse/core'
import type { ShallowRef } from 'vue'
import { onScopeDispose, shallowRef, watch } from 'vue'
import { getRanks } from '@/api/client'
import { useLive } from '@/api/live'
import type { Rank } from '@/api/types'
import { isOver, waits } from '@/lib/jobs'

const REFRESH_MS = 2000

export type RunRank = Rank & { readonly run: string }

/** Ranks of all jobs that have not ended, looked at every few seconds while the page is seen. */
export function useAllRanks(): ShallowRef<readonly RunRank[]> {
  const live = useLive()
  const ranks = shallowRef<readonly RunRank[]>([])
  const stop = new AbortController()

  /** Of a job that can't be asked now, what was known last. */
  const known = (run: string): RunRank[] => ranks.value.filter((rank) => rank.run === run)
  const refresh = async (): Promise<void> => {
    // Without the platform what was known last stays, as such.
    if (live.lostSince.value !== null) return
    const runs = [...live.jobs.values()].filter((job) => job.state === 'lost' || (!isOver(job.state) && !waits(job))).map(({ run }) => run)
    const ask = async (run: string): Promise<RunRank[]> => (await getRanks(run, stop.signal)).map((rank) => ({ ...rank, run }))
    const answers = await Promise.all(runs.map((run) => ask(run).catch(() => known(run))))
    if (live.lostSince.value === null) ranks.value = answers.flat()
  }
  useIntervalFn(() => void (document.hidden || refresh()), REFRESH_MS)
  watch(() => [...live.jobs.keys()].join(), () => void refresh(), { immediate: true })
  onScopeDispose(() => stop.abort())
  return ranks
}
