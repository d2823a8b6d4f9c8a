import type { AuditRecord } from '@/api/scope'
import { describePerturbation } from '@/lib/perturbations'
import type { Plan } from '@/scope/messages'

export interface PlanInForce {
  readonly name: string
  /** Who set it, when (seconds since 1970) and why; null: before what the audit still has. */
  readonly by: string | null
  readonly since: number | null
  readonly reason: string
  readonly plan: Plan | null
}

/**
 * Which plans are in force, by the audit: what was asked for, with its outcome after it. `told` are the names that the
 * ranks have said themselves; null: they have not.
 */
export function plansInForce(audit: readonly AuditRecord[], told: readonly string[] | null): PlanInForce[] {
  const found = new Map<string, PlanInForce>()
  const asked: AuditRecord[] = []
  for (const entry of audit) {
    if (entry.action !== 'perturb' && entry.action !== 'perturb_clear') continue
    if (!entry.outcome) {
      asked.push(entry)
      continue
    }
    const at = asked.findIndex(({ command }) => command === entry.command)
    const [request] = at < 0 ? [] : asked.splice(at, 1)
    if (request && entry.outcome === 'done') apply(found, request)
  }
  for (const name of told ?? []) if (!found.has(name)) found.set(name, { name, by: null, since: null, reason: '', plan: null })
  return [...found.values()]
}

function apply(found: Map<string, PlanInForce>, { action, detail, by, reason, unix_seconds: since }: AuditRecord): void {
  const plan = read(detail)
  const name = plan?.plan ?? ''
  if (action === 'perturb') found.set(name, { name, by, since, reason, plan })
  else if (name) found.delete(name)
  else found.clear()
}

/** A long plan's detail is cut off in the audit. */
function read(detail: string): Plan | null {
  try {
    return JSON.parse(detail) as Plan
  } catch {
    const [, name] = /"plan":\s*"([^"]*)"/.exec(detail) ?? []
    return name === undefined ? null : { plan: name, perturbations: [] }
  }
}

/** The newest first, as given: an outcome joined with what was asked for before it, in words, with a refusal's. */
export function withOutcomes(audit: readonly AuditRecord[]): AuditRecord[] {
  const found: AuditRecord[] = []
  const outcomes: AuditRecord[] = []
  for (const entry of audit) {
    if (entry.outcome) {
      outcomes.push(entry)
      continue
    }
    const at = outcomes.findLastIndex(({ command }) => command === entry.command)
    const [outcome] = at < 0 ? [] : outcomes.splice(at, 1)
    const asked = inWords(entry)
    found.push(outcome ? { ...entry, outcome: outcome.outcome, detail: [asked, outcome.detail].filter(Boolean).join(' – ') } : { ...entry, detail: asked })
  }
  return found
}

/** Of a plan its name and what it disturbs; anything else as it was sent. */
function inWords({ action, detail }: AuditRecord): string {
  const plan = action === 'perturb' ? read(detail) : null
  return plan?.perturbations?.length ? `${plan.plan}: ${plan.perturbations.map(describePerturbation).join('; ')}` : detail
}
