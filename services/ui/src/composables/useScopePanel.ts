import type { Ref, ShallowRef } from 'vue'
import { onScopeDispose, shallowRef, watch } from 'vue'
import type { Refused, Subscribe, Subscribed } from '@/scope/messages'
import type { Picture } from '@/scope/picture'
import { layerOf, siteOf } from '@/scope/expression'
import { showsReplicas } from '@/lib/replicas'
import { fetchExact, placeOf } from './fetchExact'
import type { Scope, Subscription } from './useScope'

/** Cells of a picture at most, as the page can show them. */
const LONG = { width: 4096, height: 480 }
const SQUARE = { width: 1408, height: 1408 }
const MAX_FPS = 15
/** Of a stall’s reasons those with which other pictures come all the same. */
const LACKS = ['left_out', 'overrun']
/** Frames that may be on their way at once: of one picture, and of every layer where several are shown. */
const CREDITS = { one: 2, layers: 64 }

export interface ScopePanel {
  readonly answer: Readonly<ShallowRef<Subscribed | undefined>>
  readonly refused: Readonly<ShallowRef<Refused | undefined>>
  /** Why nothing comes: no_producer, overbudget, paused. */
  readonly stalled: Readonly<Ref<string>>
  /** Why some of what was asked for is missing in what is shown, or may be: left_out, overrun. */
  readonly lacks: Readonly<ShallowRef<readonly string[]>>
  /** The newest of each layer; -1: of the model. Grows with `version`. */
  readonly pictures: ReadonlyMap<number, Picture>
  readonly newest: Readonly<ShallowRef<Picture | undefined>>
  readonly version: Readonly<Ref<number>>
  /** What was shown, once more and exactly, in the order of its steps; what is known no more comes as it was. */
  readonly exact: () => Promise<{ readonly pictures: readonly Picture[]; readonly all: boolean }>
}

/**
 * One subscription, and the newest picture of each of its layers. Pictures are plain typed arrays: what changes is a
 * number, once a frame of the screen, and only then the gateway is told that more may come.
 */
export function useScopePanel(scope: Scope, expression: Ref<string>, of: { readonly request: Ref<string>; /** That share the cells of a picture. */ readonly planes: Ref<number> }, each: (picture: Picture) => void): ScopePanel {
  const answer = shallowRef<Subscribed>()
  const refused = shallowRef<Refused>()
  const stalled = shallowRef('')
  const lacks = shallowRef<readonly string[]>([])
  const newest = shallowRef<Picture>()
  const version = shallowRef(0)
  const pictures = new Map<number, Picture>()
  const taken = new Map<string, Picture>()
  let asking: Omit<Subscribe, 'id'> | undefined
  let subscription: Subscription | undefined
  let waiting: Picture | undefined
  let frame = 0

  function show(): void {
    frame = 0
    newest.value = waiting
    version.value += 1
    // Painting is done in this frame too, by whoever watches the version.
    requestAnimationFrame(() => subscription?.painted())
  }
  function take(picture: Picture): void {
    pictures.set(picture.frame.layer ?? -1, picture)
    taken.set(placeOf(picture), picture)
    waiting = picture
    stalled.value = ''
    each(picture)
    frame ||= requestAnimationFrame(show)
  }

  watch(
    [expression, of.request, scope.passes],
    ([text, request]) => {
      subscription?.end()
      subscription = undefined
      pictures.clear()
      taken.clear()
      asking = undefined
      newest.value = waiting = undefined
      answer.value = refused.value = undefined
      stalled.value = ''
      lacks.value = []
      version.value += 1
      if (!text.trim()) return
      const size = shared(/attn\.(probs|scores|pattern)/.test(siteOf(text)) ? SQUARE : LONG, Math.max(1, of.planes.value))
      const asked = (asking = { expression: text, ...size, maxFps: MAX_FPS, credits: layerOf(text) === null && text.includes('layers[') ? CREDITS.layers : CREDITS.one, ...(request ? { request } : {}), ...(showsReplicas(text) ? { quantizer: 'f32' } : {}) })
      subscription = scope.subscribe(asked, {
        subscribed: (told) => {
          answer.value = told
          refused.value = undefined
        },
        refused: (why) => (refused.value = why),
        picture: take,
        stalled: (reason) => {
          if (LACKS.includes(reason)) lacks.value = [...new Set([...lacks.value, reason])]
          else stalled.value = reason
        },
      })
    },
    { immediate: true },
  )
  onScopeDispose(() => {
    cancelAnimationFrame(frame)
    subscription?.end()
  })
  async function exact(): Promise<{ pictures: Picture[]; all: boolean }> {
    const shown = new Map(taken)
    const found = asking && shown.size ? await fetchExact(scope, asking, new Set(shown.keys())) : new Map<string, Picture>()
    const all = [...shown].map(([place, picture]) => found.get(place) ?? picture)
    return { pictures: all.sort((a, b) => a.frame.step - b.frame.step), all: [...shown.keys()].every((place) => found.has(place)) }
  }
  return { answer, refused, stalled, lacks, pictures, newest, version, exact }
}

/** Several planes are together no larger than one: both sides become shorter, of long pictures the lesser one alone. */
function shared({ width, height }: typeof LONG, planes: number): typeof LONG {
  if (width !== height) return { width, height: Math.floor(height / planes) }
  const side = Math.floor(width / Math.sqrt(planes))
  return { width: side, height: side }
}
