import type { Picture } from '@/scope/picture'

/** Steps that are kept of each layer and statistic. */
const KEPT_STEPS = 240

/** What statistics said, by step: the newest of each layer, and a history for a picture of layers over steps. */
export class LayerStatistics {
  names: readonly string[] = []
  readonly steps: number[] = []
  private readonly rows = new Map<number, Map<number, Float32Array>>()

  clear(): void {
    this.steps.length = 0
    this.rows.clear()
  }

  /** Of several rows in a frame (`over=`), the first. */
  take({ frame, values }: Pick<Picture, 'frame' | 'values'>): void {
    const { step, layer } = frame
    const count = frame.dims.at(-1) ?? 0
    if (!this.rows.has(step)) {
      this.rows.set(step, new Map())
      this.steps.push(step)
      this.steps.sort((a, b) => a - b)
      while (this.steps.length > KEPT_STEPS) this.rows.delete(this.steps.shift()!)
    }
    this.rows.get(step)?.set(layer ?? 0, values.slice(0, count))
  }

  has(step: number, layer: number): boolean {
    return this.rows.get(step)?.has(layer) ?? false
  }

  get layers(): number[] {
    const found = new Set<number>()
    for (const byLayer of this.rows.values()) for (const layer of byLayer.keys()) found.add(layer)
    return [...found].sort((a, b) => a - b)
  }

  /** Of each layer its newest value; null: none is known. */
  newest(statistic: number): (number | null)[] {
    return this.layers.map((layer) => {
      for (let i = this.steps.length - 1; i >= 0; i -= 1) {
        const value = this.rows.get(this.steps[i])?.get(layer)?.[statistic]
        if (value !== undefined) return Number.isFinite(value) ? value : null
      }
      return null
    })
  }

  /** Layers × steps, row-major; NaN: it was not watched. */
  over(statistic: number): Float32Array<ArrayBuffer> {
    const { layers, steps } = this
    const all = new Float32Array(layers.length * steps.length).fill(NaN)
    steps.forEach((step, column) => layers.forEach((layer, row) => (all[row * steps.length + column] = this.rows.get(step)?.get(layer)?.[statistic] ?? NaN)))
    return all
  }
}

/** A table of numbers as a picture: what is NaN is missing. */
export function pictureOfTable(values: Float32Array<ArrayBuffer>, rows: number, columns: number): Picture {
  let [low, high] = [Infinity, -Infinity]
  for (const value of values) if (Number.isFinite(value)) [low, high] = [Math.min(low, value), Math.max(high, value)]
  const states = Uint8Array.from(values, (value) => (Number.isNaN(value) ? 3 : 0))
  return {
    frame: {
      kind: 'TENSOR', subscription: 0, sequence: 0, capturedUnixUs: 0, step: 0, microbatch: null, layer: null, dtype: 'F32', quantizer: 'NONE', codec: 'RAW',
      flags: 0, missingShards: 0, dims: [rows, columns], scale: 1, bias: 0, low, high, sections: new Map(), payload: new Uint8Array(0),
    },
    cells: values, values, states, logSumExp: null, explained: null, rows: null, request: '', counts: null,
  }
}
