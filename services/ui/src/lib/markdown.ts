/** A finding as people paste it into an incident. Pure; the words are handed in. */
import type { Finding } from '@/api/types'
import { formatIso } from './format'

export interface FindingWords {
  readonly title: string
  readonly summary: string
  readonly state: string
  readonly facts: readonly { name: string; text: string; note: string }[]
  readonly advice: string
  readonly adviceTitle: string
  readonly evidence: readonly { title: string; text: string }[]
}

export function findingMarkdown(finding: Finding, words: FindingWords, address: string): string {
  const facts = words.facts.map(({ name, text, note }) => `| ${inline(name)} | ${inline(text)}${note ? ` (${inline(note)})` : ''} |`)
  const evidence = words.evidence.map(({ title, text }) => `- **${inline(title)}**: ${inline(text)}`)
  return [
    `### ${inline(words.title)} (${inline(words.state)})`,
    '',
    inline(words.summary),
    '',
    '| | |',
    '|---|---|',
    ...facts,
    `| ${inline(finding.job)} | ${inline(finding.run)}, ${formatIso(finding.opened_unix_ns / 1e9)} |`,
    '',
    ...(words.advice ? [`**${inline(words.adviceTitle)}**: ${inline(words.advice)}`, ''] : []),
    ...(evidence.length ? [...evidence, ''] : []),
    `<${address}>`,
    '',
  ].join('\n')
}

/** Names come from jobs and nodes: they must not become markup. */
const inline = (text: string): string => text.replace(/\s+/g, ' ').replace(/([\\`*_[\]<>#|])/g, '\\$1')

