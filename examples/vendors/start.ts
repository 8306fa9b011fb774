/**
 * The sample, `npm start`: 10,000 invented vendors through the real command with a simulated provider. Stop it with Ctrl-C, or kill it, and start it again: it goes on.
 */
import { spawn } from "node:child_process"
import { existsSync, statSync } from "node:fs"
import { constants } from "node:os"
import { fileURLToPath } from "node:url"
import { Effect, Stream } from "effect"
import { Export } from "longhaul"
import { vendors } from "./generate.ts"

const rows = "vendors.csv"
const db = "sample.db"
const day = 24 * 3_600_000

if (!existsSync(rows)) {
  const made = Stream.fromIterable(vendors({ rows: 10_000, seed: 1, now: new Date() }))
  await Effect.runPromise(Export.writeCsv(rows, ["id", "name", "description", "updatedAt"], made))
  console.error(`made ${rows}: 10,000 invented vendors`)
} else if (!existsSync(db) && Date.now() - statSync(rows).mtimeMs > day) {
  console.error(
    `${rows} is older than a day, and the job takes vendors of the last 7 days only: remove it to have all 10,000`
  )
}

const main = fileURLToPath(new URL("../../src/programs/main.ts", import.meta.url))
const job = fileURLToPath(new URL("job.ts", import.meta.url))
const sample = ["--llm", "simulated", "--budget", "50", "--run-id", "sample", "--db", db, "--out", "sample.csv"]

// In a process group of its own: the terminal, npm and tsx each pass a Ctrl-C on, and a second one would abandon the calls in flight.
const child = spawn(process.execPath, ["--import", "tsx", main, "run", job, "--source", rows, ...sample], {
  stdio: "inherit",
  detached: true
})

const echo = 500
let last = Number.NEGATIVE_INFINITY
const pass = (signal: NodeJS.Signals) => {
  const now = performance.now()
  if (now - last > echo) child.kill(signal === "SIGHUP" ? "SIGTERM" : signal)
  last = now
}
process.on("SIGINT", pass).on("SIGTERM", pass).on("SIGHUP", pass)
process.on("SIGWINCH", () => child.kill("SIGWINCH"))

child.on("exit", (code, signal) => process.exit(code ?? 128 + (signal === null ? 0 : constants.signals[signal])))
