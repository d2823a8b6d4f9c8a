import type { ShallowRef } from 'vue'
import { nextTick, onScopeDispose, shallowRef, watch } from 'vue'
import type { Generation, GenerationOrder } from '@/lib/generation'
import { afterEvent, asked, readEvent, requestOf } from '@/lib/generation'
import { ScopeRefusal, type Scope } from './useScope'

/** Of what is over: texts to go back to. */
const KEPT = 8

export interface GenerationFeed {
  readonly generation: Readonly<ShallowRef<Generation | undefined>>
  /** Throws ScopeRefusal. */
  readonly start: (order: GenerationOrder) => Promise<void>
  /** Of this page, the oldest first: a branch leaves what it comes from. */
  readonly earlier: Readonly<ShallowRef<readonly Generation[]>>
  readonly show: (earlier: Generation) => void
  readonly control: (action: 'pause' | 'resume' | 'step' | 'cancel') => Promise<void>
}

/** The generation that this page has asked for, as it grows; of a recording the one that was shown in it. */
export function useGeneration(scope: Scope): GenerationFeed {
  const generation = shallowRef<Generation>()
  const earlier = shallowRef<readonly Generation[]>([])
  watch(scope.passes, () => scope.replay.value && (generation.value = undefined))
  onScopeDispose(
    scope.onEvent(({ event }) => {
      const told = event.generation
      if (!told) return
      const read = readEvent(told.event)
      if (scope.replay.value && read?.type === 'started' && told.request !== generation.value?.id) generation.value = asked(told.request)
      const current = generation.value
      if (!current || told.request !== current.id) return
      if (read) generation.value = afterEvent(current, read)
    }),
  )
  const keep = (): void => {
    const left = generation.value
    if (left?.rows.length) earlier.value = [...earlier.value.filter(({ id }) => id !== left.id), left].slice(-KEPT)
  }
  return {
    generation,
    earlier,
    show: (wanted) => {
      keep()
      generation.value = wanted
    },
    start: async (order) => {
      keep()
      // Not randomUUID, which pages without TLS lack.
      const id = `page-${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 8)}`
      generation.value = asked(id)
      // What is shown of it is asked for before it begins: its first step has the prompts.
      await nextTick()
      try {
        await scope.command({ generation: { command: JSON.stringify(requestOf(id, order)) } })
      } catch (error) {
        if (generation.value.id === id) generation.value = { ...generation.value, state: 'refused', message: error instanceof ScopeRefusal ? '' : String(error) }
        throw error
      }
    },
    control: async (action) => {
      const current = generation.value
      if (current) await scope.command({ generation: { command: JSON.stringify({ type: 'control', action, request: current.id }) } })
    },
  }
}
