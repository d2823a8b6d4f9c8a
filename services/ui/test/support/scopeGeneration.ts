/** Generation of a made-up model: events of core/generation.py, a token at a time. */

type Event = Readonly<Record<string, unknown>>

const WORDS = [' the', ' king', ' rode', ' out', ' and', ' saw', ' a', ' river', ',', ' where', ' he', ' slept', '.', ' Then', ' night', ' came']
const PIECES = /\s?[^\s]+|\s+/g

interface Running {
  readonly rows: { readonly tokens: number; text: string }[]
  readonly most: number
  readonly candidates: number
  readonly beams: number
  step: number
  paused: boolean
}

export class FakeGeneration {
  readonly requests: Record<string, unknown>[] = []
  readonly controls: Record<string, unknown>[] = []
  private readonly running = new Map<string, Running>()

  constructor(
    private readonly say: (request: string, event: Event) => void,
    private readonly shown: (request: string, position: number, rows: number) => void,
  ) {}

  command(text: string): void {
    const document = JSON.parse(text) as Record<string, unknown>
    if (document.type === 'control') return this.control(document)
    this.requests.push(document)
    const id = String(document.id)
    const prompts = document.prompts as (string | number[])[]
    const pieces = (prompt: string | number[]): { id: number; text: string }[] => (typeof prompt === 'string' ? (prompt.match(PIECES) ?? [prompt]).map((text) => ({ id: codeOf(text), text })) : prompt.map((id) => ({ id, text: ` ${id}` })))
    const rows = prompts.map((prompt, row) => pieces(prompt).map((piece, position) => ({ row, position, ...piece, origin: 'prompt' })))
    this.running.set(id, { rows: rows.map(({ length }) => ({ tokens: length, text: '' })), most: Number(document.max_new_tokens ?? 16), candidates: Number(document.top_candidates ?? 0), beams: Number(document.beam_width ?? 0), step: 0, paused: document.paused === true })
    this.say(id, { type: 'started', request: id, rows })
    this.say(id, { type: 'state_changed', request: id, state: document.paused ? 'paused' : 'running' })
    this.shown(id, Math.min(...rows.map(({ length }) => length)) - 1, Math.min(...rows.map(({ length }) => length)))
  }

  /** One more token of everything that is under way. */
  advance(): void {
    for (const [id, running] of this.running) if (!running.paused) this.draw(id, running)
  }

  private control({ action, request, steps = 1 }: Record<string, unknown>): void {
    this.controls.push({ action, request, steps })
    const id = String(request)
    const running = this.running.get(id)
    if (!running) return
    if (action === 'cancel') return this.end(id, 'cancelled')
    if (action === 'step') for (let i = 0; i < Number(steps); i += 1) this.draw(id, running)
    running.paused = action === 'pause' || action === 'step'
    if (this.running.has(id)) this.say(id, { type: 'state_changed', request: id, state: running.paused ? 'paused' : 'running' })
  }

  private draw(id: string, running: Running): void {
    running.step += 1
    if (running.beams) return this.search(id, running)
    const tokens = running.rows.map((row, index) => {
      const text = WORDS[(running.step * 5 + index * 3) % WORDS.length]
      row.text += text
      const probability = 0.2 + 0.6 * (((running.step * 37 + index * 11) % 50) / 50)
      const candidates = Array.from({ length: running.candidates }, (_, k) => ({ id: (running.step * 5 + index * 3 + k) % WORDS.length, text: WORDS[(running.step * 5 + index * 3 + k) % WORDS.length], log_probability: Math.log(k === 0 ? probability : ((1 - probability) * 0.6) / 2 ** k) }))
      return { row: index, position: row.tokens + running.step - 1, id: (running.step * 5 + index * 3) % WORDS.length, text, delta: text, origin: 'sampled', log_probability: Math.log(probability), candidates }
    })
    this.say(id, { type: 'stepped', request: id, step: running.step, tokens })
    this.shown(id, Math.min(...tokens.map(({ position }) => position)), 1)
    if (running.step >= running.most) this.end(id, 'done')
  }

  /** A step of a beam search: no tokens, but ways on. */
  private search(id: string, running: Running): void {
    running.rows.forEach((_, row) => {
      const beams = Array.from({ length: running.beams }, (_beam, k) => ({ ids: [k], text: WORDS[(running.step + k) % WORDS.length], log_probability: -1 - k, score: (-1 - k) / running.step, finished: false }))
      this.say(id, { type: 'beams_moved', request: id, row, beams })
    })
    if (running.step >= running.most) this.end(id, 'done')
  }

  private end(id: string, reason: string): void {
    const running = this.running.get(id)!
    running.rows.forEach(({ text }, row) => this.say(id, { type: 'row_finished', request: id, row, reason: reason === 'done' ? 'length' : 'cancelled', text }))
    this.say(id, { type: 'finished', request: id, reason })
    this.running.delete(id)
  }
}

const codeOf = (text: string): number => [...text].reduce((sum, letter) => (sum * 31 + letter.charCodeAt(0)) % 256, 7)
