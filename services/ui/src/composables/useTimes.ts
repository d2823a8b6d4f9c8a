import { formatClock, formatMoment } from '@/lib/format'
import { usePreferences } from '@/stores/preferences'

export interface Times {
  /** "14:03:05" */
  readonly clock: (unixSeconds: number | null | undefined) => string
  /** "14:03", with the day where it is another one. */
  readonly moment: (unixSeconds: number | null | undefined) => string
}

/** Points in time in the language and the time zone that a person has chosen. */
export function useTimes(): Times {
  const preferences = usePreferences()
  return {
    clock: (at) => formatClock(at, preferences.locale, preferences.zone),
    moment: (at) => formatMoment(at, preferences.locale, preferences.zone),
  }
}
