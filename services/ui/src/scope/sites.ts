import { siteOf } from './expression'
import type { Axis, Description, Site } from './messages'

/** Sites as people think of them. What is not known here stands at the end. */
export const SITE_GROUPS = ['ends', 'residual', 'attention', 'mlp', 'router', 'features', 'gradients', 'weights', 'optimizer', 'other'] as const
export type SiteGroup = (typeof SITE_GROUPS)[number]

export function groupOf(name: string): SiteGroup {
  if (name.startsWith('grad.')) return 'gradients'
  if (name.startsWith('weight.')) return 'weights'
  if (name.startsWith('opt.')) return 'optimizer'
  if (name.startsWith('sae.')) return 'features'
  if (name.startsWith('attn.')) return 'attention'
  if (name.startsWith('mlp.')) return 'mlp'
  if (name.startsWith('router.') || name.startsWith('experts.')) return 'router'
  if (name.startsWith('resid_')) return 'residual'
  return ['tokens', 'embed', 'final_norm', 'logits', 'loss'].includes(name) ? 'ends' : 'other'
}

/** Sites of a kind of run: generation has entries of its own where its axes are split otherwise. */
export function sitesOf(description: Description | undefined, generating = false): Site[] {
  const named = new Map<string, Site>()
  for (const site of description?.sites ?? []) {
    const own = site.passes?.includes('generate') ?? false
    if (!named.has(site.name) || own === generating) named.set(site.name, site)
  }
  return [...named.values()]
}

/** In the order of the model: ends, residual, attention, … */
export function grouped(sites: readonly Site[]): { readonly group: SiteGroup; readonly sites: readonly Site[] }[] {
  return SITE_GROUPS.map((group) => ({ group, sites: sites.filter((site) => groupOf(site.name) === group) })).filter((one) => one.sites.length > 0)
}

/** What can be shown of a site. */
export const VIEWS = ['values', 'statistics', 'histogram', 'entropy', 'candidates', 'features', 'lens', 'pca', 'wall', 'replicas'] as const
export type SiteView = (typeof VIEWS)[number]

const names = (site: Site): string[] => (site.axes ?? []).map(({ name }) => name)

/** `replicas`: how many data-parallel ones there are. */
export function viewsOf(site: Site, replicas = 1): SiteView[] {
  const axes = names(site)
  const plain = !site.name.startsWith('grad.')
  const fits: Record<SiteView, boolean> = {
    values: site.name !== 'logits',
    statistics: axes.length > 0,
    histogram: axes.length > 0,
    entropy: plain && axes.includes('key'),
    candidates: site.name === 'logits',
    features: groupOf(site.name) === 'features',
    lens: plain && site.name.startsWith('resid_'),
    pca: plain && axes.at(-1) === 'chan',
    wall: site.name === 'attn.probs',
    replicas: replicas > 1 && axes.length > 0 && !axes.includes('shard') && !/(^|\.)experts\./.test(site.name),
  }
  return VIEWS.filter((view) => fits[view])
}

export const STATISTICS = 'mean,std,absmax,p01,p50,p99,zero,nonfinite'
const OF_REPLICAS = 'mean,std,absmax,l2,nonfinite'
const LENS_ROWS = 8

/** A first look at a site, for a person to write on. `together`: of all entries of the batch. */
export function expressionOf(site: Site, view: SiteView, layer: number, together = false): string {
  const layered = (site.layers?.length ?? 0) > 0
  const at = (which: string): string => (layered ? `layers[${which}].` : '') + site.name
  const axes = names(site)
  const one = at(String(layer))
  const slices = ['batch', 'head', 'group', 'expert'].flatMap((axis) => (axes.includes(axis) && axes.length > 1 ? [` | ${axis}(0)`] : []))
  const kept = slices.slice(0, Math.max(0, axes.length - 2)).filter((slice) => !together || slice !== ' | batch(0)')
  const plane = one + kept.join('')
  switch (view) {
    case 'values':
      return plane
    case 'statistics':
      return `${at('*')} | stats(${STATISTICS})`
    case 'histogram':
      return `${one} | hist(64,asinh)`
    case 'entropy':
      return `${at('*')} | entropy(key) | mean(query) | batch(0)`
    case 'candidates':
      return `${site.name} | batch(0) | last(4) | topk(20)`
    case 'features':
      return `${plane} | last(${LENS_ROWS}) | topk(10)`
    case 'lens':
      return `${at('*')} | batch(0) | last(${LENS_ROWS}) | logitlens(5)`
    case 'replicas':
      return `${at('*')} | stats(${OF_REPLICAS}) | replicas`
    case 'wall':
      return `${at('*')} | batch(0)`
    case 'pca':
      return `${plane} | pca(2)`
  }
}

/** Groups that hold a place in the model's pass; the others are long, and folded until they are looked for. */
export const isFolded = (group: SiteGroup): boolean => ['gradients', 'weights', 'optimizer'].includes(group)

/** What the numbers of a top-k are: ids of the vocabulary with the model's own probabilities, an SAE's features, or entries of the last axis. */
export type EntryKind = 'tokens' | 'features' | 'entries'
export function entriesOf(expression: string): EntryKind {
  const site = siteOf(expression)
  if (site === 'logits' || /\|\s*logitlens\(/.test(expression)) return 'tokens'
  return groupOf(site) === 'features' ? 'features' : 'entries'
}

export const sizeOf = (site: Site | undefined, axis: string): number => site?.axes?.find(({ name }: Axis) => name === axis)?.size ?? 0

/** The layers that a pipeline stage holds, where they are one stretch; null: they are interleaved, or it is not known. */
export function stageLayers(stage: number, description: Description | undefined): { readonly first: number; readonly last: number } | null {
  const layers = description?.model?.layers ?? 0
  const stages = description?.sizes?.pipeline ?? 1
  if (!layers || layers % stages || (description?.sizes?.virtualPipeline ?? 1) > 1) return null
  const each = layers / stages
  return { first: stage * each, last: (stage + 1) * each - 1 }
}
