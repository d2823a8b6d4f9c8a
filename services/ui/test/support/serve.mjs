// The page over made-up runs, to look at: node test/support/serve.mjs [PORT [RANKS [STEPS]]]
import { BUILT, FakeGateway, serve, World } from './load.mjs'

const [port = 8091, ranks = 512, steps = 10_000] = process.argv.slice(2).map(Number)
const slow = Math.floor(ranks * 0.61)
const faults = [{ ranks: [slow], since: Math.max(2, Math.floor(steps * 0.97)), effect: 1.22 }]
const worlds = [
  new World({ run: 'run-large', name: 'team/large', ranks, steps, pipeline: 4, faults }),
  new World({ run: 'run-small', name: 'team/small', ranks: 4, steps: 90, pipeline: 2, perNode: 2, faults: [{ ranks: [3], since: 60, effect: 1.25 }] }),
  new World({ run: 'run-one', name: 'team/one', ranks: 1, steps: 12, state: 'finished' }),
]
const gateway = new FakeGateway(worlds)
const scope = gateway.scope('run-large', { layers: 24, heads: 16, channels: 1024, tokens: 128 })
const { url } = await serve(gateway, BUILT, port)
console.log(url)
setInterval(() => {
  worlds.slice(0, 2).forEach((world) => gateway.advance(world))
  scope.advance()
  scope.generation.advance()
}, 1000)
