import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { Ajv2020 } from 'ajv/dist/2020'
import { describe, expect, it } from 'vitest'
import { decodeColumns, halfToNumber } from '@/api/columns'
import { FakeGateway } from '../support/gateway'
import { gridBytes, numberToHalf } from '../support/grid'
import { columnsOf } from '../support/grids'
import { World } from '../support/world'

const read = (path: string): Buffer => readFileSync(fileURLToPath(new URL(path, import.meta.url)))
const openapi = JSON.parse(read('../../../scope-gateway/openapi.json').toString()) as { components: { schemas: Record<string, object> } }
const ajv = new Ajv2020({ strict: false, validateFormats: false })
ajv.addSchema({ ...openapi, $id: 'openapi.json' })

const world = new World({ ranks: 6, steps: 40, pipeline: 2, faults: [{ ranks: [4], since: 20, effect: 1.3 }] })
const gateway = new FakeGateway([world])
const ask = (path: string): unknown => {
  const { status, body } = gateway.answer('GET', new URL(path, 'http://fake'))
  expect(status).toBe(200)
  return JSON.parse(String(body))
}

function expectSchema(value: unknown, name: string): void {
  const valid = ajv.getSchema(`openapi.json#/components/schemas/${name}`)!
  valid(value)
  expect(valid.errors ?? []).toEqual([])
}

describe('the fake gateway answers as openapi.json says', () => {
  it.each([
    ['/api/v1/session', 'Session'],
    ['/api/v1/jobs/run-fake', 'JobDetail'],
    ['/api/v1/jobs/run-fake/metrics?limit=5', 'Metrics'],
    ['/api/v1/jobs/run-fake/timeline?from_step=3&to_step=4', 'Timeline'],
    ['/api/v1/jobs/run-fake/trace-control', 'TraceControlStatus'],
    ['/api/v1/report', 'Report'],
  ])('%s as %s', (path, schema) => expectSchema(ask(path), schema))

  it.each([
    ['/api/v1/jobs', 'Job', 1],
    ['/api/v1/findings', 'Finding', 1],
    ['/api/v1/jobs/run-fake/ranks', 'Rank', 6],
    ['/api/v1/ranks', 'RankStatus', 6],
    ['/api/v1/jobs/run-fake/clocks', 'Clock', 6],
  ])('%s as a list of %s', (path, schema, count) => {
    const listed = ask(path) as unknown[]
    expect(listed).toHaveLength(count)
    for (const one of listed) expectSchema(one, schema)
  })

  it('in its events', () => {
    const heard: object[] = [...gateway.greeting()]
    const stop = gateway.listen((event) => heard.push(event))
    gateway.advance(world)
    stop()
    const schemas: Record<string, string> = { snapshot: 'SnapshotEvent', ping: 'PingEvent', step: 'StepEvent', job: 'JobEvent' }
    expect(heard.map((event) => (event as { type: string }).type)).toEqual(['snapshot', 'ping', 'step', 'job'])
    for (const event of heard) expectSchema(event, schemas[(event as { type: string }).type])
  })

  it('in its errors', () => {
    gateway.failing.set('/api/v1/jobs', 503)
    const { status, body } = gateway.answer('GET', new URL('/api/v1/jobs', 'http://fake'))
    gateway.failing.clear()
    expect([status, Object.keys((JSON.parse(String(body)) as { error: object }).error)]).toEqual([503, ['code', 'message', 'hint']])
  })
})

describe('of MegaScope', () => {
  it('its audit and tickets are as openapi.json says', () => {
    const scope = gateway.scope('run-fake')
    scope.connect(() => undefined, () => undefined).hear(JSON.stringify({ command: { id: 'a', train: { do: 'pause' } } }))
    const listed = ask('/api/v1/scope/audit?run=run-fake') as unknown[]
    expect(listed).toHaveLength(2)
    for (const one of listed) expectSchema(one, 'AuditEntry')
    expectSchema(JSON.parse(String(gateway.answer('POST', new URL('/api/v1/scope/tickets', 'http://fake')).body)), 'ScopeTicket')
  })

  it('its recordings are as openapi.json says', () => {
    const { hear } = gateway.view(() => undefined, () => undefined)
    hear(JSON.stringify({ join: { client: 'test', run: 'run-fake' } }))
    hear(JSON.stringify({ snapshot: { view: '/scope/generate' } }))
    const [one] = ask('/api/v1/scope/recordings') as { id: string }[]
    expectSchema(one, 'Recording')
    expectSchema(ask(`/api/v1/scope/recordings/${one.id}`), 'Recording')
  })
})

describe('its bytes are laid out as those of a real gateway', () => {
  /** Recorded by tests/contract/test_page_frames.py, which says what was asked for. */
  it.each([['grid-steps.bin', 1], ['grid-buckets.bin', 4]])('%s', (name, bucketSteps) => {
    const real = decodeColumns(new Uint8Array(read(`../data/${name}`)).buffer)
    const fake = decodeColumns(gridBytes(world, { from: 0, to: 0, buckets: 512, bucketSteps }).buffer)
    const shape = (table: Record<string, unknown>): unknown => Object.entries(table).map(([key, value]) => [key, Object.prototype.toString.call(value)])
    expect(shape(fake)).toEqual(shape(real))
    expect(real.bucket_steps).toBe(bucketSteps)
  })
})

describe('its numbers', () => {
  it('are rounded to half floats as nearly as these go', () => {
    for (const value of [0, 1, -2.5, 0.333251953125, 65504, 2 ** -24, 6.1e-5, 0.7392578125]) expect(halfToNumber(numberToHalf(value))).toBeCloseTo(value, 6)
    expect(halfToNumber(numberToHalf(1e9))).toBe(65504)
    expect(halfToNumber(numberToHalf(NaN))).toBeNaN()
  })

  it('are the same in rows and in grids, and in buckets their means and extremes', () => {
    const rows = world.rows(8, 11)
    const grid = columnsOf(world, { from: 8, to: 11, bucketSteps: 4 })
    const of = (values: number[], rank: number): number[] => values.filter((_, i) => rows.rank[i] === rank)
    for (const rank of [0, 4]) {
      expect(grid.compute_seconds[rank]).toBeCloseTo(of(rows.compute_seconds, rank).reduce((a, b) => a + b) / 4, 3)
      expect(grid.longest_seconds![rank]).toBeCloseTo(Math.max(...of(rows.duration_seconds, rank)), 3)
    }
  })
})
