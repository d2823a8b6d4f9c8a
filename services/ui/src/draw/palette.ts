/** Colours of the canvases: the CSS properties of styles/tokens.css, read once per theme. */
export interface Palette {
  readonly background: string
  readonly surface: string
  readonly line: string
  readonly border: string
  readonly text: string
  readonly muted: string
  readonly accent: string
  readonly selected: string
  readonly compute: string
  /** Of the same family, lighter: backward passes. */
  readonly computeSoft: string
  readonly onSoft: string
  readonly wait: string
  readonly waitInk: string
  readonly host: string
  readonly hostInk: string
  readonly culprit: string
  readonly critSurface: string
  readonly warn: string
  readonly warnSurface: string
  readonly expected: string
  readonly font: string
}

const NAMES: Record<keyof Palette, string> = {
  background: '--background',
  surface: '--surface',
  line: '--line',
  border: '--border',
  text: '--text',
  muted: '--muted',
  accent: '--accent',
  selected: '--selected',
  compute: '--compute',
  computeSoft: '--compute-soft',
  onSoft: '--on-soft',
  wait: '--wait',
  waitInk: '--wait-ink',
  host: '--host',
  hostInk: '--host-ink',
  culprit: '--culprit',
  critSurface: '--crit-surface',
  warn: '--warn',
  warnSurface: '--warn-surface',
  expected: '--expected',
  font: '--font',
}

export function readPalette(element: Element): Palette {
  const style = getComputedStyle(element)
  const entries = Object.entries(NAMES).map(([key, name]) => [key, style.getPropertyValue(name).trim()])
  return Object.fromEntries(entries) as Record<keyof Palette, string>
}
