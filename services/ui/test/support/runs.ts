import type { Marker, Recipe, RunHistory, SeriesName, TimeSpent } from '@/api/types'
import { noise, STEP_SECONDS } from './world'
import type { Curves, World } from './world'

const CURVES: readonly (readonly [name: keyof Curves, spread: number])[] = [['loss', 0.02], ['step_seconds', 0.08], ['tokens_per_second', 0.05], ['tflops_per_gpu', 0.05], ['grad_norm', 0.3], ['learning_rate', 0]]

/** What the gateway tells of a made-up run as a whole. */
export interface HistoryQuestion {
  readonly from: number
  readonly to: number
  readonly points: number
}

export function historyOf(world: World, asked: HistoryQuestion): RunHistory {
  const last = Math.min(asked.to || world.newestStep, world.newestStep)
  const first = Math.max(asked.from, world.oldestStep)
  const restart = world.restartedAt
  const attempts =
    restart === null
      ? [attemptOf(world, 1, first, last, asked.points, null)]
      : [attemptOf(world, 1, first, Math.min(last, restart + 20), asked.points, restart), attemptOf(world, 2, Math.max(first, restart + 1), last, asked.points, null)]
  return { run: world.run, job: world.name, attempts: attempts.filter((attempt) => attempt.first_step.length > 0 || attempts.length === 1) }
}

function attemptOf(world: World, attempt: number, first: number, last: number, points: number, kept: number | null): RunHistory['attempts'][number] {
  const count = Math.max(0, last - first + 1)
  const bins = Math.min(count, points)
  const starts = Array.from({ length: bins }, (_, i) => first + Math.floor((i * count) / bins))
  const ends = starts.map((_, i) => (i + 1 < bins ? starts[i + 1] - 1 : last))
  const thinned = bins < count
  const series = (name: SeriesName, value: (step: number) => number, spread: number): RunHistory['attempts'][number]['series'][number] => ({
    name,
    mean: starts.map((step) => value(step)),
    min: thinned ? starts.map((step) => value(step) * (1 - spread)) : null,
    max: thinned ? starts.map((step) => value(step) * (1 + spread)) : null,
    non_finite: [],
  })
  return {
    attempt,
    started_unix_seconds: world.startOf(first),
    ended_unix_seconds: attempt === 1 && kept !== null ? world.startOf(last) : null,
    ended_well: false,
    kept_to_step: kept,
    first_step: starts,
    last_step: ends,
    unix_seconds: ends.map((step) => world.startOf(step + (attempt > 1 ? 300 : 0))),
    series: [
      ...CURVES.map(([name, spread]) => series(name, (step) => world.curves(step)[name], spread)),
      ...(world.pipeline > 1 ? [series('bubble_ratio', (step) => 0.11 + 0.01 * noise(step), 0.1)] : []),
      series('device_memory_bytes', () => 61e9, 0),
    ],
    evaluations: starts.length ? Array.from({ length: Math.floor(last / 500) }, (_, i) => ({ split: 'valid', step: (i + 1) * 500, loss: world.lossOf((i + 1) * 500) + 0.1, microbatches: 4 })).filter(({ step }) => step >= first) : [],
  }
}

export function timeSpentOf(world: World): TimeSpent {
  const wall = world.newestStep * STEP_SECONDS * 1.2
  const shares: Record<string, number> = { compute: 0.72, bubble: 0.08, slow: world.faults.length ? 0.09 : 0, hang: 0, checkpoint: 0.04, evaluation: 0.02, start: 0.03, pause: 0, redone: world.restartedAt === null ? 0 : 0.01 }
  shares.other = 1 - Object.values(shares).reduce((sum, share) => sum + share, 0)
  return {
    from_unix_seconds: world.startOf(world.oldestStep),
    to_unix_seconds: world.startOf(world.oldestStep) + wall,
    wall_seconds: wall,
    parts: Object.entries(shares).map(([part, share]) => ({ part: part as TimeSpent['parts'][number]['part'], share, seconds: share * wall })),
    findings: world.faults.map((_, i) => ({ finding: `${world.run}-finding-${i}`, seconds: shares.slow * wall })),
  }
}

export function markersOf(world: World): Marker[] {
  const checkpoints = Array.from({ length: Math.floor(world.newestStep / 1000) }, (_, i): Marker => ({ kind: 'checkpoint', attempt: 1, step: (i + 1) * 1000, unix_seconds: world.startOf((i + 1) * 1000) }))
  const findings = world.faults.map((fault, i): Marker => ({
    kind: 'finding', finding: `${world.run}-finding-${i}`, attempt: 1, step: fault.since, until_step: fault.until ?? null,
    unix_seconds: world.startOf(fault.since), until_unix_seconds: fault.until === undefined ? null : world.startOf(fault.until),
  }))
  const starts = world.restartedAt === null ? [] : [{ kind: 'start', attempt: 2, step: world.restartedAt + 1, unix_seconds: world.startOf(world.restartedAt + 21), after_failure: true } as const]
  return [...findings, ...starts, ...checkpoints]
}

/** What the recipes of several runs differ in. */
export function differenceOf(worlds: readonly World[]): { runs: string[]; settings: { name: string; values: (string | null)[] }[]; versions: { name: string; values: (string | null)[] }[]; equal: number } {
  const among = (of: (recipe: Recipe) => Record<string, string>): { name: string; values: (string | null)[] }[] => {
    const recipes = worlds.map((world) => of(world.recipe))
    const names = [...new Set(recipes.flatMap(Object.keys))].sort()
    return names.map((name) => ({ name, values: recipes.map((recipe) => recipe[name] ?? null) })).filter(({ values }) => new Set(values).size > 1)
  }
  const [settings, versions] = [among((recipe) => recipe.settings), among((recipe) => recipe.versions)]
  const all = new Set(worlds.flatMap(({ recipe }) => [...Object.keys(recipe.settings), ...Object.keys(recipe.versions)])).size
  return { runs: worlds.map(({ run }) => run), settings, versions, equal: all - settings.length - versions.length }
}
