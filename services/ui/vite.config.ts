import { fileURLToPath } from 'node:url'
import vue from '@vitejs/plugin-vue'
import { defineConfig } from 'vite'
import { precompress } from './build/precompress.ts'

const here = (path: string): string => fileURLToPath(new URL(path, import.meta.url))
const gateway = process.env.MEGATRONAPP_UI_GATEWAY ?? 'http://127.0.0.1:8080'

export default defineConfig({
  plugins: [vue(), precompress()],
  logLevel: 'warn',
  resolve: { alias: { '@': here('./src') } },
  build: {
    outDir: here('../scope-gateway/megatronapp/gateway/_ui'),
    emptyOutDir: true,
    target: 'es2022',
    // Everything is a file of its own: the page's Content-Security-Policy allows no data: URIs.
    assetsInlineLimit: 0,
    rolldownOptions: { checks: { pluginTimings: false } },
  },
  server: {
    host: '127.0.0.1',
    proxy: { '/api': { target: gateway, ws: true }, '/perfetto': gateway },
  },
})
