import type { Health } from '@/lib/health'

/** A shape for each state, of 14 × 14: colour is never alone. How they are filled says `.health-mark` in base.css. */
export const MARKS: Readonly<Record<Health, string>> = {
  ok: 'M4 2h6a2 2 0 0 1 2 2v6a2 2 0 0 1-2 2H4a2 2 0 0 1-2-2V4a2 2 0 0 1 2-2z',
  warn: 'M7 1.500 13 12.500H1z',
  bad: 'M2.500 2.500l9 9M11.500 2.500l-9 9',
  over: 'M2 7.500l3.500 3.500 6.500-8',
  stale: 'M7 2a5 5 0 1 0 0 10 5 5 0 0 0 0-10z',
}
