import { describe, expect, it } from 'vitest'
import type { Finding, Job, RankStatus } from '@/api/types'
import { backoffMs } from '@/lib/backoff'
import { findingHealth, groupByNode, rankHealth } from '@/lib/health'
import { byStart, byUrgency, lasts, layoutText, shortRun, wasOpenAtEnd } from '@/lib/jobs'
import { timelineAround } from '@/lib/links'
import { median, quantile } from '@/lib/statistics'

const finding = (fields: Partial<Finding>): Finding =>
  ({ id: '', state: 'open', page: true, cost_ratio: 1, opened_unix_ns: 0, ranks: [], ...fields }) as Finding
const job = (fields: Partial<Job>): Job => ({ run: '', state: 'running', attempt: 1, started_unix_seconds: 0, ...fields }) as Job
const rank = (fields: Partial<RankStatus>): RankStatus => ({ connected: true, ended: false, ...fields }) as RankStatus

describe('byUrgency', () => {
  it('puts open before resolved, paging before advice, a hang before what is dear', () => {
    const list = [
      finding({ id: 'over', state: 'resolved', cost_ratio: 9 }),
      finding({ id: 'advice', page: false, cost_ratio: 3 }),
      finding({ id: 'cheap', cost_ratio: 1.1 }),
      finding({ id: 'dear', cost_ratio: 1.5 }),
      finding({ id: 'hang', cost_ratio: null }),
    ]
    expect(list.sort(byUrgency).map(({ id }) => id)).toEqual(['hang', 'dear', 'cheap', 'advice', 'over'])
  })
})

describe('byUrgency of resolved findings', () => {
  it('puts the newest first, whatever it cost', () => {
    const old = finding({ id: 'old', state: 'resolved', cost_ratio: null, opened_unix_ns: 1 })
    const fresh = finding({ id: 'fresh', state: 'resolved', cost_ratio: 1.1, opened_unix_ns: 2 })
    expect([old, fresh].sort(byUrgency)[0].id).toBe('fresh')
  })

  it('orders two hangs by when they opened', () => {
    const hangs = [1, 2].map((ns) => finding({ id: `${ns}`, cost_ratio: null, opened_unix_ns: ns }))
    expect(hangs.sort(byUrgency)[0].id).toBe('2')
  })
})

describe('byStart', () => {
  it('puts jobs that go on first, then the newest, whoever spoke last', () => {
    const list = [
      job({ run: 'failed', state: 'failed', started_unix_seconds: 9 }),
      job({ run: 'old', started_unix_seconds: 1, updated_unix_seconds: 99 }),
      job({ run: 'new', started_unix_seconds: 5, updated_unix_seconds: 7 }),
    ]
    expect(list.sort(byStart).map(({ run }) => run)).toEqual(['new', 'old', 'failed'])
  })
})

describe('shortRun', () => {
  it('is what the terminal shows', () => expect(shortRun('0123456789abcdef')).toBe('01234567'))
})

describe('a finding of a job that has ended', () => {
  const ended = finding({ state: 'resolved', resolved_step: null, attempt: 1 })
  const better = finding({ state: 'resolved', resolved_step: 90, attempt: 1 })

  it('was open at the end unless it was seen to get better', () => {
    expect([ended, better].map(wasOpenAtEnd)).toEqual([true, false])
    expect([ended, better].map(findingHealth)).toEqual(['bad', 'ok'])
  })

  it('lasts when the job ended with it, in that attempt', () => {
    expect(lasts(ended, job({ state: 'finished' }))).toBe(true)
    expect(lasts(ended, job({ state: 'finished', attempt: 2 }))).toBe(false)
    expect(lasts(ended, job({ state: 'running' }))).toBe(false)
    expect(lasts(better, job({ state: 'finished' }))).toBe(false)
    expect(lasts(finding({}), job({}))).toBe(true)
  })
})

describe('rankHealth', () => {
  it('tells a fault from advice from silence', () => {
    expect(rankHealth(rank({}), undefined)).toBe('ok')
    expect(rankHealth(rank({}), finding({ page: false }))).toBe('warn')
    expect(rankHealth(rank({ connected: false }), finding({ page: true }))).toBe('bad')
    expect(rankHealth(rank({ connected: false }), undefined)).toBe('stale')
  })

  it('calls nobody well while the platform is not heard', () => {
    expect(rankHealth(rank({}), undefined, true)).toBe('stale')
    expect(rankHealth(rank({}), finding({ page: true }), true)).toBe('bad')
  })
})

describe('groupByNode', () => {
  it('orders nodes by number and ranks by their place on the node', () => {
    const ranks = [rank({ node: 'n10', local_rank: 0 }), rank({ node: 'n2', local_rank: 1 }), rank({ node: 'n2', local_rank: 0 })]
    expect(groupByNode(ranks).map(({ node, ranks: own }) => [node, own.map((one) => one.local_rank)])).toEqual([
      ['n2', [0, 1]],
      ['n10', [0]],
    ])
  })
})

describe('layoutText', () => {
  it('names the dimensions that are split', () => {
    const sizes = { world: 8, tensor: 2, pipeline: 1, data: 4, context: 1, expert: 0, virtual_pipeline: 1 }
    expect(layoutText(sizes)).toBe('TP 2 · DP 4')
  })
})

describe('timelineAround', () => {
  it('shows the steps around the onset and selects the rank', () => {
    expect(timelineAround({ id: 'f', run: 'r', attempt: 2, ranks: [3], since_step: 60 })).toEqual({
      name: 'timeline',
      params: { run: 'r' },
      query: { from: 50, to: 90, step: 60, rank: 3, attempt: 2, finding: 'f' },
    })
  })
  it('works without an onset', () => {
    expect(timelineAround({ id: 'f', run: 'r', attempt: 1, ranks: [], since_step: null })).toMatchObject({ query: { finding: 'f' } })
  })
})

describe('backoffMs', () => {
  it('doubles from half a second to 15 s, give or take a quarter', () => {
    const pauses = [1, 2, 3, 10].map((attempt) => backoffMs(attempt, () => 0.5))
    expect(pauses).toEqual([500, 1000, 2000, 15_000])
    expect(backoffMs(1, () => 0)).toBe(375)
    expect(backoffMs(1, () => 1)).toBe(625)
  })
})

describe('median and quantile', () => {
  it('leave out what is not a number', () => {
    expect(median([3, NaN, 1, 2])).toBe(2)
    expect(median([4, 1, 2, 3])).toBe(2.5)
    expect(median([])).toBeNaN()
    expect(quantile([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 0.95)).toBe(10)
    expect(quantile([NaN], 0.5)).toBeNaN()
  })
})

describe('rankHealth of a rank that has said that it ends', () => {
  it('is over, not silent, unless a finding that pages names it', () => {
    const over = rank({ connected: false, ended: true })
    expect([rankHealth(over, undefined), rankHealth(over, undefined, true)]).toEqual(['over', 'over'])
    expect(rankHealth(over, finding({ page: true }))).toBe('bad')
  })
})

describe('rankHealth of a rank that is connected', () => {
  it('is silent when no heartbeat has come for a few of its seconds', () => {
    expect([0.4, 2.9, 3.1, null].map((age) => rankHealth(rank({ connected: true, heartbeat_age_seconds: age }), undefined))).toEqual(['ok', 'ok', 'stale', 'ok'])
  })
})
