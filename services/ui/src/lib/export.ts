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

/** A canvas with the page's background under it and a title above, as a picture. */
export async function toPng(canvas: HTMLCanvasElement, title: string, colours: { background: string; text: string; font: string }): Promise<Blob> {
  const scale = devicePixelRatio
  const head = 28 * scale
  const picture = document.createElement('canvas')
  picture.width = canvas.width
  picture.height = canvas.height + head
  const context = picture.getContext('2d')
  if (!context) throw new Error('no canvas')
  context.fillStyle = colours.background
  context.fillRect(0, 0, picture.width, picture.height)
  context.fillStyle = colours.text
  context.font = `600 ${13 * scale}px ${colours.font}`
  context.textBaseline = 'middle'
  context.fillText(title, 12 * scale, head / 2)
  context.drawImage(canvas, 0, head)
  return new Promise((resolve, reject) => picture.toBlob((blob) => (blob ? resolve(blob) : reject(new Error('no picture')))))
}
