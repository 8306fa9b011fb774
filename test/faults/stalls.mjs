/** Preloaded into a process: notes each time its event loop was blocked for 50 ms or more, as `{at, ms}` lines in the file STALLS. */
import { appendFileSync } from "node:fs"

let last = performance.now()
setInterval(() => {
  const now = performance.now()
  const ms = Math.round(now - last - 10)
  last = now
  if (ms >= 50) appendFileSync(process.env.STALLS, `${JSON.stringify({ at: Date.now(), ms })}\n`)
}, 10).unref()
