import type { LocationQuery, LocationQueryRaw } from 'vue-router'

/** Panels at most: the gateway serves 16 subscriptions a viewer. */
export const MOST_PANELS = 8

/** What is looked at in a model: one panel, one subscription, one part of the address. */
export interface ScopeAddress {
  readonly panels: readonly string[]
  /** The panel that menus and keys act on. */
  readonly active: number
  /** Of the active panel: the cell that is chosen. */
  readonly cell: { readonly row: number; readonly column: number } | null
}

export function readScope(query: LocationQuery): ScopeAddress {
  const given = Array.isArray(query.p) ? query.p : [query.p]
  const panels = given.filter((text): text is string => typeof text === 'string' && text !== '').slice(0, MOST_PANELS)
  const at = Number(typeof query.at === 'string' && /^\d$/.test(query.at) ? query.at : 0)
  const [, row, column] = /^(\d{1,6}),(\d{1,6})$/.exec(typeof query.cell === 'string' ? query.cell : '') ?? []
  return { panels, active: Math.min(at, Math.max(0, panels.length - 1)), cell: row === undefined ? null : { row: Number(row), column: Number(column) } }
}

export function scopeQuery({ panels, active, cell }: ScopeAddress): LocationQueryRaw {
  return { p: panels.length ? [...panels] : undefined, at: active || undefined, cell: cell ? `${cell.row},${cell.column}` : undefined }
}

/** Of a link into a recording: seconds since its begin; null: none is named. */
export function momentOf(query: LocationQuery): number | null {
  return typeof query.t === 'string' && /^\d{1,6}(\.\d+)?$/.test(query.t) ? Number(query.t) : null
}
