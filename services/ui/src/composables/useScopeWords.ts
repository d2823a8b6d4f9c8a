import type { Cut } from '@/scope/connection'
import { ScopeRefusal } from './useScope'
import { useKnownWord, useText } from './useText'

/** A code of two meanings: who takes too little, and a run that changes hands, are to connect again alike. */
const TRY_AGAIN = 1013
const TOO_SLOW = 'too slow'

export interface ScopeWords {
  /** Why a connection is not there, and what to do. */
  readonly cut: (cut: Cut) => string
  readonly refusal: (why: ScopeRefusal) => string
  readonly problem: (error: unknown) => string
}

/** Close codes and refusals in words. What a newer gateway says stays as it said it. */
export function useScopeWords(): ScopeWords {
  const t = useText()
  const known = useKnownWord()
  const refusal = ({ code, message, hint }: ScopeRefusal): string => {
    const said = [message, message.includes(hint) ? '' : hint].filter(Boolean).join('; ')
    const name = known('scope.refused', code)
    return name && said ? `${name}: ${said}` : (name ?? said) || t('scope.refused.failed')
  }
  return {
    cut: ({ code, reason }) => {
      const meaning = known('scope.close', code === TRY_AGAIN && reason && !reason.startsWith(TOO_SLOW) ? 'moved' : String(code))
      if (meaning) return meaning
      return reason ? t('scope.close.other', { reason }) : ''
    },
    refusal,
    problem: (error) => (error instanceof ScopeRefusal ? refusal(error) : error instanceof Error ? error.message : String(error)),
  }
}
