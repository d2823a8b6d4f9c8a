import type { Scope, Subscription } from './useScope'
import type { Subscribe } from '@/scope/messages'
import type { Picture } from '@/scope/picture'

/** Without a frame for so long, what is missing does not come: it was too much to be kept. */
const QUIET_MS = 3000
const CREDITS = 4096
/** The first that a frame has room for. */
const EXACT = ['f32', 'f16'] as const

type Asked = Omit<Subscribe, 'id'>

/** Where a frame belongs: of a training the newest of each layer, of a generation each step. */
export const placeOf = ({ frame, request }: Picture): string => (request ? `${frame.layer ?? -1} ${frame.step}` : String(frame.layer ?? -1))

/**
 * What a subscription shows, exactly: the ranks' agents keep its values, and tell them to a second subscription of the
 * same expression that asks for floats. By place; what does not come is not in it.
 */
export async function fetchExact(scope: Pick<Scope, 'subscribe'>, shown: Asked, places: ReadonlySet<string>): Promise<Map<string, Picture>> {
  for (const quantizer of EXACT) {
    const found = await fetchAs(scope, { ...shown, quantizer, credits: CREDITS }, places)
    if (found) return found
  }
  return new Map()
}

/** null: refused. */
async function fetchAs(scope: Pick<Scope, 'subscribe'>, asked: Asked, places: ReadonlySet<string>): Promise<Map<string, Picture> | null> {
  const found = new Map<string, Picture>()
  const held: { subscription?: Subscription; timer?: ReturnType<typeof setTimeout> } = {}
  const taken = await new Promise<boolean>((resolve) => {
    const wait = (): void => {
      clearTimeout(held.timer)
      held.timer = setTimeout(() => resolve(true), QUIET_MS)
    }
    wait()
    held.subscription = scope.subscribe(asked, {
      subscribed: () => undefined,
      refused: () => resolve(false),
      picture: (picture) => {
        held.subscription?.painted()
        if (!picture.frame.missingShards) found.set(placeOf(picture), picture)
        if ([...places].every((place) => found.has(place))) resolve(true)
        else wait()
      },
      stalled: () => undefined,
    })
  })
  clearTimeout(held.timer)
  held.subscription?.end()
  return taken ? found : null
}
