/** Numbers and times for people. Everything takes SI base units; "–" stands for a value that is not known. */

export type Zone = 'local' | 'utc'

export const UNKNOWN = '–'

type Maybe = number | null | undefined

const known = (value: Maybe): value is number => typeof value === 'number' && Number.isFinite(value)

/** At most `digits` significant digits, without an exponent in the range people read. */
export function formatNumber(value: Maybe, digits = 3): string {
  if (!known(value)) return UNKNOWN
  const magnitude = Math.abs(value)
  if (magnitude !== 0 && (magnitude < 1e-3 || magnitude >= 1e9)) return value.toExponential(digits - 1)
  if (magnitude >= 10 ** (digits - 1)) return INTEGERS.format(Math.round(value))
  const decimals = magnitude === 0 ? 0 : Math.max(0, digits - 1 - Math.floor(Math.log10(magnitude)))
  return value.toFixed(decimals)
}

// Made once: toLocaleString makes one each time.
const INTEGERS = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 })

export function formatInteger(value: Maybe): string {
  return known(value) ? INTEGERS.format(Math.round(value)) : UNKNOWN
}

/** 1234567 → "1.23 M". */
export function formatCount(value: Maybe): string {
  if (!known(value)) return UNKNOWN
  const units = ['', ' k', ' M', ' G', ' T']
  let scaled = value
  let unit = 0
  while (Math.abs(scaled) >= 1000 && unit < units.length - 1) {
    scaled /= 1000
    unit += 1
  }
  return `${formatNumber(scaled)}${units[unit]}`
}

/** 1234567 bytes → "1.23 MB". */
export function formatBytes(bytes: Maybe): string {
  if (!known(bytes)) return UNKNOWN
  const counted = formatCount(bytes)
  return counted.includes(' ') ? `${counted}B` : `${counted} B`
}

/** A measured duration: "850 ns", "12.4 µs", "318 ms", "1.42 s". */
export function formatSeconds(seconds: Maybe): string {
  if (!known(seconds)) return UNKNOWN
  const magnitude = Math.abs(seconds)
  if (magnitude === 0) return '0 s'
  if (magnitude < 1e-6) return `${formatNumber(seconds * 1e9)} ns`
  if (magnitude < 1e-3) return `${formatNumber(seconds * 1e6)} µs`
  if (magnitude < 1) return `${formatNumber(seconds * 1e3)} ms`
  if (magnitude < 120) return `${formatNumber(seconds)} s`
  return formatSpan(seconds)
}

/** A span of time as people say it: "45 s", "3 min", "2 h 10 min", "4 d 3 h". */
export function formatSpan(seconds: Maybe): string {
  if (!known(seconds)) return UNKNOWN
  const total = Math.max(0, Math.round(seconds))
  if (total < 60) return `${total} s`
  const minutes = Math.round(total / 60)
  if (minutes < 60) return `${minutes} min`
  const hours = Math.floor(minutes / 60)
  if (hours < 24) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`
  const days = Math.floor(hours / 24)
  return hours % 24 ? `${days} d ${hours % 24} h` : `${days} d`
}

/** 1.2 → "+20 %", 0.95 → "−5 %", 63 → "63×". Below ten percent one decimal is kept. */
export function formatExcess(ratio: Maybe): string {
  if (!known(ratio)) return UNKNOWN
  if (ratio >= 10) return `${formatNumber(ratio, 2)}×`
  const percent = (ratio - 1) * 100
  if (Math.abs(percent) < 0.05) return '±0 %'
  const digits = Math.abs(percent) < 9.95 ? 1 : 0
  const sign = percent < 0 ? '−' : '+'
  return `${sign}${Math.abs(percent).toFixed(digits)} %`
}

/** 0.973 → "97 %". What is not certain is never called so: 0.998 → "> 99 %". */
export function formatPercent(share: Maybe): string {
  if (!known(share)) return UNKNOWN
  return share > 0.99 && share < 1 ? '> 99 %' : `${Math.round(share * 100)} %`
}

/** What is a cost, mostly a small one: 0.0062 → "0.6 %", 0.23 → "23 %". */
export function formatShare(share: Maybe): string {
  if (!known(share)) return UNKNOWN
  return `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)} %`
}

/** 1.2 → "1.20×", 63.2 → "63×". */
export function formatRatio(ratio: Maybe): string {
  if (!known(ratio)) return UNKNOWN
  return ratio >= 10 ? formatExcess(ratio) : `${ratio.toFixed(2)}×`
}

/** Ranks as short as can be: [0, 1, 2, 5] → "0–2, 5". */
export function formatRanks(ranks: readonly number[]): string {
  const sorted = [...ranks].sort((a, b) => a - b)
  const parts: string[] = []
  for (let i = 0; i < sorted.length; ) {
    let j = i
    while (j + 1 < sorted.length && sorted[j + 1] === sorted[j] + 1) j += 1
    parts.push(j === i ? `${sorted[i]}` : j === i + 1 ? `${sorted[i]}, ${sorted[j]}` : `${sorted[i]}–${sorted[j]}`)
    i = j + 1
  }
  return parts.join(', ')
}

/** "14:03:05"; of UTC that is said with it. */
export function formatClock(unixSeconds: Maybe, locale: string, zone: Zone = 'local'): string {
  if (!known(unixSeconds) || unixSeconds <= 0) return UNKNOWN
  return marked(timesOf('clock', locale, zone).format(unixSeconds * 1000), zone)
}

/** "14:03" of today, "22 Nov, 14:03" of another day, "14:03 UTC". */
export function formatMoment(unixSeconds: Maybe, locale: string, zone: Zone = 'local', now = new Date()): string {
  if (!known(unixSeconds) || unixSeconds <= 0) return UNKNOWN
  const day = timesOf('day', 'en', zone)
  const today = day.format(unixSeconds * 1000) === day.format(now)
  return marked(timesOf(today ? 'today' : 'moment', locale, zone).format(unixSeconds * 1000), zone)
}

const MINUTES = { hour: '2-digit', minute: '2-digit', hour12: false } as const
const TIMES = {
  clock: { hour: 'numeric', minute: 'numeric', second: 'numeric', hour12: false },
  day: { year: 'numeric', month: 'numeric', day: 'numeric' },
  today: MINUTES,
  moment: { day: 'numeric', month: 'short', ...MINUTES },
} as const
/** Making one takes as long as writing some hundred times with it. */
const made = new Map<string, Intl.DateTimeFormat>()

function timesOf(what: keyof typeof TIMES, locale: string, zone: Zone): Intl.DateTimeFormat {
  const key = `${what} ${locale} ${zone}`
  const format = made.get(key) ?? new Intl.DateTimeFormat(locale, { ...TIMES[what], timeZone: nameOf(zone) })
  made.set(key, format)
  return format
}

const nameOf = (zone: Zone): string | undefined => (zone === 'utc' ? 'UTC' : undefined)
const marked = (time: string, zone: Zone): string => (zone === 'utc' ? `${time} UTC` : time)

/** For tooltips: the moment in ISO 8601. */
export function formatIso(unixSeconds: Maybe): string {
  return known(unixSeconds) && unixSeconds > 0 ? new Date(unixSeconds * 1000).toISOString() : UNKNOWN
}
