import { useThrottleFn } from '@vueuse/core'
import type { ComputedRef } from 'vue'
import { computed, onScopeDispose, watch } from 'vue'
import type { AuditRecord } from '@/api/scope'
import { getScopeAudit } from '@/api/scope'
import type { PlanInForce } from '@/lib/plans'
import { plansInForce } from '@/lib/plans'
import { useResource } from './useResource'
import type { Scope } from './useScope'

const REFRESH_MS = 500

export interface Plans {
  readonly inForce: ComputedRef<PlanInForce[]>
  /** The newest first. */
  readonly audit: ComputedRef<readonly AuditRecord[]>
  readonly refresh: () => Promise<void>
}

/** What disturbs a run's model, who did it and why; asked for again whenever somebody does something. */
export function usePlans(run: () => string, scope: Scope): Plans {
  const audit = useResource(run, (of, signal) => (of ? getScopeAudit(of, signal) : Promise.resolve([])))
  const soon = useThrottleFn(audit.refresh, REFRESH_MS, true)
  onScopeDispose(scope.onEvent(({ event }) => void (event.audit && soon())))
  // What came of it follows without an event of its own.
  watch(scope.description, () => void soon())
  const told = computed(() => {
    const names = scope.description.value?.state?.plan
    return names ? names.split(', ') : null
  })
  return {
    inForce: computed(() => plansInForce(audit.data.value ?? [], audit.data.value?.length ? null : told.value)),
    audit: computed(() => [...(audit.data.value ?? [])].reverse()),
    refresh: audit.refresh,
  }
}
