import type { ComputedRef, Ref } from 'vue'
import { computed, onScopeDispose, shallowRef, watch } from 'vue'
import type { Text, TokenAt } from '@/lib/tokenTexts'
import { POSITIONS, positionsOf, textExpression, textOf } from '@/lib/tokenTexts'
import { indexOf } from '@/scope/expression'
import type { Picture } from '@/scope/picture'
import type { Scope } from './useScope'

const MAX_FPS = 15
/** Microbatches whose texts are kept: pictures and texts come by themselves. */
const KEPT = 64

export interface TokenTexts {
  /** Of the microbatch that is shown; undefined: not known. */
  readonly text: ComputedRef<Text | undefined>
  /** The tokens of an axis' entries; undefined: entries are no positions, or not known. */
  readonly tokensOf: (axis: string) => ((at: number) => TokenAt) | undefined
}

const momentOf = ({ frame }: Picture): string => `${frame.step} ${frame.microbatch}`

/** What a training is given where a picture of it has positions: asked for while such a picture is looked at. */
export function useTokenTexts(scope: Scope, expression: Ref<string>, of: { readonly picture: ComputedRef<Picture | undefined>; readonly axes: ComputedRef<readonly string[]>; /** At the leading axes. */ readonly leading: Ref<readonly number[]>; readonly training: () => boolean }): TokenTexts {
  const kept = shallowRef<ReadonlyMap<string, Text>>(new Map())
  const row = computed(() => {
    const leading = of.axes.value.slice(0, -2).indexOf('batch')
    return indexOf(expression.value, 'batch') ?? (leading < 0 ? null : (of.leading.value[leading] ?? 0))
  })
  const wanted = computed(() => {
    const known = scope.description.value?.sites?.some(({ name }) => name === 'tokens') ?? false
    const hasPositions = of.axes.value.slice(-2).some((axis) => POSITIONS.includes(axis))
    return of.training() && known && hasPositions && row.value !== null ? textExpression(row.value) : ''
  })

  let end = (): void => undefined
  watch(
    [wanted, scope.passes],
    ([asked]) => {
      end()
      end = () => undefined
      kept.value = new Map()
      if (!asked) return
      const subscription = scope.subscribe({ expression: asked, maxFps: MAX_FPS, credits: 2 }, { subscribed: () => undefined, refused: () => undefined, stalled: () => undefined, picture: take })
      end = () => subscription.end()
      function take(picture: Picture): void {
        if (picture.frame.kind === 'TENSOR' && picture.frame.dims.length === 1) kept.value = new Map([...kept.value, [momentOf(picture), textOf(picture)] as const].slice(-KEPT))
        subscription.painted()
      }
    },
    { immediate: true },
  )
  onScopeDispose(() => end())

  const text = computed(() => of.picture.value && kept.value.get(momentOf(of.picture.value)))
  function tokensOf(axis: string): ((at: number) => TokenAt) | undefined {
    const known = text.value
    const positions = known && positionsOf(expression.value, axis, known.texts.length)
    const size = of.picture.value?.frame.dims[of.axes.value.indexOf(axis)]
    return positions?.length === size ? (at) => ({ position: positions![at] ?? at, text: known!.texts[positions![at]] }) : undefined
  }
  return { text, tokensOf }
}
