// What Chromium's main thread does, for benches of the page.

export const quantile = (values, share) => [...values].sort((a, b) => a - b)[Math.min(values.length - 1, Math.ceil(share * values.length) - 1)] ?? NaN

/** Main thread time of each frame in which something was drawn, from the tasks that the tracing of Chromium tells. */
export async function mainThread(page, act) {
  return (await traced(page, act)).filter(({ name }) => name === 'RunTask')
}

const SCRIPT = new Set(['FunctionCall', 'FireAnimationFrame', 'EventDispatch', 'RunMicrotasks', 'TimerFire'])
/** Milliseconds of script on the main thread. */
export async function script(page, act) {
  const events = (await traced(page, act, ['devtools.timeline'])).filter(({ name }) => SCRIPT.has(name)).sort((a, b) => a.ts - b.ts)
  let [total, until] = [0, 0]
  for (const { ts, dur = 0, tdur = 0 } of events) {
    if (ts < until) continue // within one that is counted
    until = ts + dur
    total += tdur / 1000
  }
  return total
}

/** What the main thread did meanwhile, as the tracing of Chromium tells. */
async function traced(page, act, more = []) {
  const client = await page.context().newCDPSession(page)
  const events = []
  client.on('Tracing.dataCollected', ({ value }) => events.push(...value))
  await client.send('Tracing.start', { transferMode: 'ReportEvents', traceConfig: { includedCategories: ['disabled-by-default-devtools.timeline', 'toplevel', ...(process.env.DETAIL ? ['devtools.timeline', 'disabled-by-default-v8.cpu_profiler'] : more)] } })
  await act()
  const done = new Promise((resolve) => client.once('Tracing.tracingComplete', resolve))
  await client.send('Tracing.end')
  await done
  const names = new Map(events.filter(({ name }) => name === 'thread_name').map(({ pid, tid, args }) => [`${pid}/${tid}`, args.name]))
  // Thread time: what others do on the machine meanwhile is no cost of the page's.
  const own = events.filter(({ ph, pid, tid }) => ph === 'X' && names.get(`${pid}/${tid}`) === 'CrRendererMain')
  if (process.env.DETAIL) {
    const sums = new Map()
    for (const e of events) if (e.ph === 'X' && names.get(`${e.pid}/${e.tid}`) === 'CrRendererMain') sums.set(e.name, (sums.get(e.name) ?? 0) + (e.tdur ?? 0) / 1000)
    console.log([...sums].sort((x, y) => y[1] - x[1]).slice(0, 14).map(([n, v]) => `${n} ${v.toFixed(0)}`).join(', '), own.length)
  }
  return own
}

/** Tasks between one animation frame and the next are that frame's. */
export function perFrame(tasks, frameMicroseconds = 16_667) {
  const frames = new Map()
  for (const { ts, tdur = 0 } of tasks) {
    const frame = Math.floor(ts / frameMicroseconds)
    frames.set(frame, (frames.get(frame) ?? 0) + tdur / 1000)
  }
  return [...frames.values()].filter((milliseconds) => milliseconds > 0.5)
}
