import type { ShallowRef } from 'vue'
import { computed, onScopeDispose, shallowRef, watch } from 'vue'
import { useLive } from '@/api/live'
import type { Finding, RankStatus } from '@/api/types'
import { useFindingText } from '@/composables/useFindingText'
import { useText } from '@/composables/useText'
import type { Health, NodeRanks } from '@/lib/health'
import { groupByNode, rankHealth } from '@/lib/health'
import { inTurns } from '@/lib/turns'

const WORST: readonly Health[] = ['bad', 'warn', 'stale', 'over', 'ok']

/** Nodes that are put on the page in one turn. */
const DRAWN_AT_ONCE = 100

export interface DeviceCell {
  readonly key: string
  readonly run: string
  readonly rank: number
  readonly localRank: number
  readonly health: Health
  readonly device: string
  readonly finding: Finding | undefined
}

export interface NodeRow {
  readonly node: string
  readonly cells: readonly DeviceCell[]
  /** Place in the order of what is worst. */
  readonly worst: number
  /** All that is shown of it beside the language: equal for two rows that look alike. */
  readonly said: string
}

export interface NodeRows {
  readonly rows: ShallowRef<readonly NodeRow[]>
  readonly label: (cell: DeviceCell) => string
}

/** Nodes and their devices as rows. A cluster has thousands: rows are made in turns, and come as they are made; later ones keep what has not changed. */
export function useNodeRows(ranks: () => readonly RankStatus[], findings: () => readonly Finding[], worstFirst: () => boolean): NodeRows {
  const t = useText()
  const words = useFindingText()
  const live = useLive()
  const rows = shallowRef<readonly NodeRow[]>([])
  let working = new AbortController()

  /** Looked up once for all. The first that names a rank counts. */
  const findingsOf = computed(() => {
    const found = new Map<string, Finding>()
    for (const finding of findings()) {
      if (finding.state !== 'open') continue
      for (const rank of finding.ranks) if (!found.has(`${finding.run}/${rank}`)) found.set(`${finding.run}/${rank}`, finding)
    }
    return found
  })
  const label = ({ rank, localRank, device, finding, health }: DeviceCell): string =>
    `${t(device === 'cpu' ? 'grid.process' : 'grid.gpu')} ${localRank}, ${t('finding.rank', { ranks: rank })}: ${finding ? words.short(finding) : t(`mark.${health}`)}`
  function cellOf(rank: RankStatus): DeviceCell {
    const key = `${rank.run}/${rank.rank}`
    const finding = findingsOf.value.get(key)
    const health = rankHealth(rank, finding, live.lostSince.value !== null)
    return { key, run: rank.run, rank: rank.rank, localRank: rank.local_rank, health, device: rank.device, finding }
  }
  /** Words of thousands of devices that are well are written for those that are drawn alone. */
  function rowOf({ node, ranks: members }: NodeRanks, before: NodeRow | undefined): NodeRow {
    const cells = members.map(cellOf)
    const said = cells.map((cell) => `${cell.key} ${cell.health} ${cell.finding ? label(cell) : ''}`).join()
    return before?.said === said ? before : { node, cells, said, worst: Math.min(...cells.map(({ health }) => WORST.indexOf(health))) }
  }

  async function make(): Promise<void> {
    working.abort()
    const { signal } = (working = new AbortController())
    const before = new Map(rows.value.map((row) => [row.node, row]))
    const growing = !before.size
    const made: NodeRow[] = []
    await inTurns(groupByNode(ranks()), (node) => made.push(rowOf(node, before.get(node.node))), () => growing && (rows.value = [...made]), { signal, most: growing ? DRAWN_AT_ONCE : undefined })
    if (signal.aborted) return
    const ordered = worstFirst() ? made.sort((a, b) => a.worst - b.worst) : made
    if (ordered.length !== rows.value.length || ordered.some((row, i) => row !== rows.value[i])) rows.value = ordered
  }

  watch(() => [ranks(), findingsOf.value, live.lostSince.value !== null], () => void make(), { immediate: true })
  onScopeDispose(() => working.abort())
  return { rows, label }
}
