import { expect, it } from 'vitest'
import { findingMarkdown } from '@/lib/markdown'
import { World } from '../support/world'

it('a finding pasted into an incident keeps its facts and lets no name become markup', () => {
  const world = new World({ run: 'run-1', name: 'team/<img>', ranks: 4, steps: 90, faults: [{ ranks: [3], since: 60, effect: 1.25 }] })
  const [finding] = world.findings(0)
  const words = {
    title: 'Rank 3: slow GPU', summary: 'It is slow.', state: 'Open', advice: 'Look | at it.', adviceTitle: 'What to do',
    facts: [{ name: 'Effect', text: '+25 %', note: 'over its expected time' }], evidence: [{ title: 'Compute', text: '*much*' }],
  }

  const text = findingMarkdown(finding, words, 'https://page/health?finding=1')

  expect(text).toContain('### Rank 3: slow GPU (Open)')
  expect(text).toContain('| Effect | +25 % (over its expected time) |')
  expect(text).toContain('team/\\<img\\>')
  expect(text).toContain('Look \\| at it.')
  expect(text).toContain('\\*much\\*')
  expect(text).toContain('<https://page/health?finding=1>')
})
