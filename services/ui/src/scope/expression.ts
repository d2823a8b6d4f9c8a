/**
 * Small changes to an expression as text, for arrows and menus. What it means the gateway alone says: it parses, plans
 * and answers with a place and a hint where something is wrong.
 */

const LAYERS = /layers\[([^\]]*)\]\./
const slice = (axis: string): RegExp => new RegExp(`\\|\\s*${axis}\\(\\s*(-?\\d+)\\s*\\)`)

/** The one layer that is meant; null: none, or several. */
export function layerOf(expression: string): number | null {
  const [, picked] = LAYERS.exec(expression) ?? []
  return picked !== undefined && /^\s*\d+\s*$/.test(picked) ? Number(picked) : null
}

export function withLayer(expression: string, layer: number): string {
  return expression.replace(LAYERS, `layers[${layer}].`)
}

export function siteOf(expression: string): string {
  return expression.split('|')[0].trim().replace(/^model\./, '').replace(LAYERS, '')
}

/** The one index that is taken of an axis (`head(3)`); null: it is not. */
export function indexOf(expression: string, axis: string): number | null {
  const found = slice(axis).exec(expression)
  return found ? Number(found[1]) : null
}

export function withIndex(expression: string, axis: string, index: number): string {
  return expression.replace(slice(axis), `| ${axis}(${index})`)
}
