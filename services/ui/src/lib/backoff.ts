const FIRST_MS = 500
const LONGEST_MS = 15_000

/** Pause before attempt `n` (from 1): doubling from half a second to 15 s, spread by a quarter so that viewers of a restarted server come back one by one. */
export function backoffMs(attempt: number, random: () => number = Math.random): number {
  const base = Math.min(LONGEST_MS, FIRST_MS * 2 ** (attempt - 1))
  return Math.round(base * (0.75 + random() * 0.5))
}
