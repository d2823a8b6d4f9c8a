import type { InjectionKey, Ref } from 'vue'
import { computed, inject } from 'vue'
import type { Role, Session } from '@/api/types'

export const ROLE: InjectionKey<Ref<Role | null>> = Symbol('role')

export const SESSION: InjectionKey<Ref<Session | undefined>> = Symbol('session')

/** Whether the person may silence findings: an operator, where the gateway knows an Alertmanager. */
export function useCanSilence(): Ref<boolean> {
  const session = inject(SESSION, undefined)
  return computed(() => session?.value?.can_silence ?? false)
}

/** Whether the person may change anything; the gateway refuses it in any case. */
export function useOperator(): Ref<boolean> {
  const role = inject(ROLE)
  return computed(() => role?.value === 'operator')
}
