import type { InjectionKey, Ref } from 'vue'
import { computed, inject } from 'vue'
import type { Role } from '@/api/types'

export const ROLE: InjectionKey<Ref<Role | null>> = Symbol('role')

/** Whether the person may change anything; the gateway refuses it in any case. */
export function useOperator(): Ref<boolean> {
  const role = inject(ROLE)
  return computed(() => role?.value === 'operator')
}
