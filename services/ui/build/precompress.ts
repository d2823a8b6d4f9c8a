import { readdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { brotliCompress, constants, gzip } from 'node:zlib'
import type { Plugin, ResolvedConfig } from 'vite'

const COMPRESSIBLE = /\.(js|css|html|svg|json|txt)$/

/** Writes `.br` and `.gz` beside every text asset, so that the server only has to pick one. */
export function precompress(): Plugin {
  let config: ResolvedConfig
  return {
    name: 'precompress',
    apply: 'build',
    configResolved(resolved) {
      config = resolved
    },
    async closeBundle() {
      const folder = config.build.outDir
      const entries = await readdir(folder, { recursive: true, withFileTypes: true })
      const files = entries.filter((e) => e.isFile() && COMPRESSIBLE.test(e.name)).map((e) => join(e.parentPath, e.name))
      await Promise.all(files.map(compressFile))
    },
  }
}

async function compressFile(path: string): Promise<void> {
  const data = await readFile(path)
  const brotli = await promisify(brotliCompress)(data, { params: { [constants.BROTLI_PARAM_QUALITY]: 11 } })
  const gzipped = await promisify(gzip)(data, { level: 9 })
  await Promise.all([writeFile(`${path}.br`, brotli), writeFile(`${path}.gz`, gzipped)])
}
