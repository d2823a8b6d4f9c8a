/** What a person takes along: numbers as CSV, pictures, files. */

/** RFC 4180, with what a spreadsheet would take for a formula as text. */
export function toCsv(header: readonly string[], rows: Iterable<readonly (number | string | null)[]>): string {
  const cell = (value: number | string | null): string => {
    if (value === null) return ''
    if (typeof value === 'number') return String(value)
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text
  }
  return [header, ...rows].map((row) => row.map(cell).join(',')).join('\r\n') + '\r\n'
}

/** Safe in a folder. */
export const fileName = (text: string): string => text.replace(/[^A-Za-z0-9._-]+/g, '-').replace(/^-+|-+$/g, '') || 'plot'

export function download(name: string, content: Blob): void {
  const url = URL.createObjectURL(content)
  const link = document.createElement('a')
  link.href = url
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(url), 10_000)
}

export interface Caption {
  readonly title: string
  /** What each colour stands for. */
  readonly keys?: readonly { readonly label: string; readonly colour: string }[]
}

const [INDENT, LINE, SWATCH] = [12, 18, 22]

/** A canvas with the page's background under it, and what it shows above: as many lines as its width needs. */
export async function toPng(canvas: HTMLCanvasElement, { title, keys = [] }: Caption, colours: { background: string; text: string; font: string }): Promise<Blob> {
  const scale = devicePixelRatio
  const picture = document.createElement('canvas')
  const context = picture.getContext('2d')
  if (!context) throw new Error('no canvas')
  const write = (weight: number): string => (context.font = `${weight} ${13 * scale}px ${colours.font}`)
  const fit = (text: string, indent: number): string[] => wrapped(text, (line) => context.measureText(line).width <= canvas.width - (indent + INDENT) * scale)
  write(600)
  const lines: { text: string; colour?: string; indent: number }[] = fit(title, INDENT).map((text) => ({ text, indent: INDENT }))
  write(400)
  for (const { label, colour } of keys) lines.push(...fit(label, INDENT + SWATCH).map((text, i) => ({ text, colour: i ? undefined : colour, indent: INDENT + SWATCH })))
  const head = (lines.length * LINE + 10) * scale
  picture.width = canvas.width
  picture.height = canvas.height + head
  context.fillStyle = colours.background
  context.fillRect(0, 0, picture.width, picture.height)
  context.textBaseline = 'middle'
  lines.forEach(({ text, colour, indent }, i) => {
    const middle = (5 + (i + 0.5) * LINE) * scale
    write(indent === INDENT ? 600 : 400)
    context.fillStyle = colours.text
    context.fillText(text, indent * scale, middle)
    if (!colour) return
    context.fillStyle = colour
    context.fillRect(INDENT * scale, middle - scale, (SWATCH - 6) * scale, 2 * scale)
  })
  context.drawImage(canvas, 0, head)
  return new Promise((resolve, reject) => picture.toBlob((blob) => (blob ? resolve(blob) : reject(new Error('no picture')))))
}

/** Lines that fit, broken at spaces; a word that is too long stays whole. */
export function wrapped(text: string, fits: (line: string) => boolean): string[] {
  const lines: string[] = []
  for (const word of text.split(' ')) {
    const longer = lines.length ? `${lines.at(-1)} ${word}` : word
    if (lines.length && fits(longer)) lines[lines.length - 1] = longer
    else lines.push(word)
  }
  return lines
}
