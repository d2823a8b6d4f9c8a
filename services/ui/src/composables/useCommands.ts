import type { ComputedRef } from 'vue'
import { computed, onScopeDispose, shallowReactive } from 'vue'

/** Something that can be chosen by name in the command palette. */
export interface Command {
  readonly id: string
  readonly text: string
  /** Keys that do the same. */
  readonly keys?: readonly string[]
  readonly run: () => void
}

const sources = shallowReactive(new Set<() => readonly Command[]>())

/** Offers commands as long as the calling component lives. */
export function useCommands(commands: () => readonly Command[]): void {
  sources.add(commands)
  onScopeDispose(() => sources.delete(commands))
}

export function useAllCommands(): ComputedRef<Command[]> {
  return computed(() => [...sources].flatMap((source) => source()))
}
