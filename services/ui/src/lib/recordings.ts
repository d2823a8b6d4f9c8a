import type { LocationQueryRaw, RouteLocationRaw } from 'vue-router'

/** What leads back to a kept view. */
interface Kept {
  readonly id: string
  readonly run: string
  /** Path and query of the page that made it; of a file of somebody else's, whatever it says. */
  readonly view: string
}

const PAGES = /^\/(jobs\/[^/?#]+\/scope|scope\/generate)$/

/** Where a recording is shown: the page on which it was made, as it was looked at, with the recording in place of its run. */
export function placeOf({ id, run, view }: Kept): RouteLocationRaw {
  const [path = '', query = ''] = view.split('?')
  const found: LocationQueryRaw = {}
  for (const [key, value] of new URLSearchParams(query)) {
    const before = found[key]
    found[key] = before === undefined ? value : [...(Array.isArray(before) ? before : [before]), value]
  }
  return { path: PAGES.test(path) ? path : `/jobs/${encodeURIComponent(run || 'recording')}/scope`, query: { ...found, recording: id } }
}

/** A page's address as a recording keeps it: of a recording that is looked at, without it. */
export function viewOf(path: string, query: string): string {
  const kept = new URLSearchParams(query)
  for (const key of ['recording', 't', 'embed']) kept.delete(key)
  const text = kept.toString()
  return text ? `${path}?${text}` : path
}

/** `83.4` → `1:23`. */
export function clock(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds))
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60]
  const two = (value: number): string => String(value).padStart(2, '0')
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`
}
