// The fake gateway for scripts that Node runs as they are: its modules are TypeScript.
import { fileURLToPath } from 'node:url'
import { runnerImport } from 'vite'

const here = (path) => fileURLToPath(new URL(path, import.meta.url))
const options = { configFile: false, logLevel: 'error', resolve: { alias: { '@': here('../../src') } } }
const load = async (name) => (await runnerImport(here(name), options)).module

export const { World } = await load('./world.ts')
export const { FakeGateway } = await load('./gateway.ts')
export const { serve } = await load('./server.ts')
/** Where `npm run build` puts the page. */
export const BUILT = here('../../../scope-gateway/megatronapp/gateway/_ui')
