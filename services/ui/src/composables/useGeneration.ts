import type { ShallowRef } from 'vue'
import { nextTick, onScopeDispose, shallowRef } from 'vue'
import type { Generation, GenerationSettings } from '@/lib/generation'
import { afterEvent, asked, readEvent, requestOf } from '@/lib/generation'
import { ScopeRefusal, type Scope } from './useScope'

export interface GenerationFeed {
  readonly generation: Readonly<ShallowRef<Generation | undefined>>
  /** Throws ScopeRefusal. */
  readonly start: (settings: GenerationSettings) => Promise<void>
  readonly control: (action: 'pause' | 'resume' | 'step' | 'cancel') => Promise<void>
}

/** The generation that this page has asked for, as it grows. */
export function useGeneration(scope: Scope): GenerationFeed {
  const generation = shallowRef<Generation>()
  onScopeDispose(
    scope.onEvent(({ event }) => {
      const told = event.generation
      const current = generation.value
      if (!told || !current || told.request !== current.id) return
      const read = readEvent(told.event)
      if (read) generation.value = afterEvent(current, read)
    }),
  )
  return {
    generation,
    start: async (settings) => {
      // Not randomUUID, which pages without TLS lack.
      const id = `page-${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 8)}`
      generation.value = asked(id)
      // What is shown of it is asked for before it begins: its first step has the prompts.
      await nextTick()
      try {
        await scope.command({ generation: { command: JSON.stringify(requestOf(id, settings)) } })
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
