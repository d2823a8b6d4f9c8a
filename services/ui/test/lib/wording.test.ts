// Words that were once unclear, wrong or another program's, as they read now, and that they are not said any more.
import { describe, expect, it } from 'vitest'
import type { MessageKey } from '@/composables/useText'
import { fillIn } from '@/composables/useText'
import { en } from '@/locales/en'
import { zh } from '@/locales/zh'

const SLOW = { who: 'Rank 3', effect: '25 %' }
const READS: [MessageKey, Record<string, string | number>, string][] = [
  ['finding.oneHangs', { who: 'Rank 39' }, 'Rank 39 hangs'],
  ['health.fine', {}, 'No open findings'],
  ['finding.pages', {}, 'Alerted on-call'],
  ['signal.own_history', {}, 'Compared with its history'],
  ['report.offenders', {}, 'Repeat offenders'],
  ['report.days.one', {}, '1 day'],
  ['mark.bad', {}, 'critical'],
  ['mark.warn', {}, 'warning'],
  ['keys.enabled', {}, 'Enable single-key shortcuts'],
  ['trace.interval', {}, 'Trace every N steps'],
  ['trace.window', {}, 'for N consecutive steps'],
  ['trace.confirmed', { confirmed: 4, ranks: 4 }, 'Confirmed by 4 of 4 ranks'],
  ['ranks.unfitted', {}, 'Single host clock'],
  ['signIn.linkRefused', {}, 'This link has expired or was already used.'],
]
const NEVER = ['hang hangs', 'No finding', 'confidence 100', 'Against its own past', 'Again and again', '1 days', 'node node', 'bad/advice', 'Single keys', 'ranks confirm', 'nothing to align', 'works once', 'ignored on a laptop', 'listened on']

describe('wording', () => {
  it.each(READS)('%s', (key, values, text) => expect(fillIn(en[key], values)).toBe(text))

  it('tells what a slow rank does, since when, and what a step takes for it', () => {
    const says = fillIn(en['says.slow_gpu'], SLOW)
    const said = fillIn(en['says.sentence'], { says, since: fillIn(en['says.since'], { step: 60 }), costs: fillIn(en['says.cost'], { cost: '22 %' }) })
    expect(said).toBe('Rank 3 has computed 25 % slower than its peers since step 60; each step takes 22 % longer.')
  })

  it('names the axes of a picture in Chinese, too', () => {
    const axes = Object.entries(zh).filter(([key]) => key.startsWith('scope.axis.'))
    expect(axes.filter(([, text]) => /[a-z]/i.test(text))).toEqual([])
  })

  it.each(NEVER)('never says “%s”', (words) => {
    expect(Object.values<string>(en).filter((text) => text.toLowerCase().includes(words.toLowerCase()))).toEqual([])
  })
})
