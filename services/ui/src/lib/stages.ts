/** What the ranks of a pipeline stage share. */
export interface Stage {
  readonly stage: number
  /** What they do beyond their place, as "forward"; empty: nothing. */
  readonly role: string
}

/** Orders stages by where their layers begin, forward above backward. `all`: those of every rank. */
export function byLayers(all: Iterable<Stage>): (a: Stage, b: Stage) => number {
  const counts = new Map<string, number>()
  for (const { stage, role } of all) counts.set(role, Math.max(counts.get(role) ?? 0, stage + 1))
  const begin = ({ stage, role }: Stage): number => stage / (counts.get(role) ?? 1)
  return (a, b) => begin(a) - begin(b) || Number(b.role === 'forward') - Number(a.role === 'forward')
}
