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
const job = fileURLToPath(new URL("job.ts", import.meta.url))
const sample = ["--source", rows, "--llm", "simulated", "--budget", "50", "--run-id", "sample", "--db", db]
const command = ["run", job, ...sample, "--out", "sample.csv"]

const day = 24 * 3_600_000

const makeRows = async (): Promise<void> => {
  if (!existsSync(rows)) {
    const made = Stream.fromIterable(vendors({ rows: 10_000, seed: 1, now: new Date() }))
    await Effect.runPromise(Export.writeCsv(rows, ["id", "name", "description", "updatedAt"], made))
    console.error(`made ${rows}: 10,000 invented vendors`)
  } else if (!existsSync(db) && Date.now() - statSync(rows).mtimeMs > day) {
    console.error(`${rows} is old, and the job takes vendors of the last 7 days only: remove it to have all 10,000`)
  }
}

/** The command, in this process, as long as the one that started it lives: if that one is killed, this one stops as on a Ctrl-C. */
const run = async (): Promise<void> => {
  process.on("disconnect", () => process.kill(process.pid, "SIGTERM"))
  process.channel?.unref()
  process.argv.splice(1, process.argv.length, "longhaul", ...command)
  await import("../../src/programs/main.ts")
}

/**
 * This module again, in a process group of its own, so that one Ctrl-C comes to it once: the terminal sends it to the whole group, and `tsx` sends a second one, and a
 * SIGKILL, to a process that is too busy to acknowledge within 30 ms.
 */
const supervise = (): void => {
  const self = fileURLToPath(import.meta.url)
  const child = spawn(process.execPath, ["--import", "tsx", self, "--run"], {
    stdio: ["inherit", "inherit", "inherit", "ipc"],
    detached: true
  })
  let passed = Number.NEGATIVE_INFINITY
  const pass = (signal: NodeJS.Signals) => {
    // The same Ctrl-C by another way.
    if (performance.now() - passed < 500) return
    passed = performance.now()
    child.kill(signal === "SIGHUP" ? "SIGTERM" : signal)
  }
  process.on("SIGINT", pass).on("SIGTERM", pass).on("SIGHUP", pass)
  process.on("SIGWINCH", () => child.kill("SIGWINCH"))
  child.on("exit", (code, signal) => process.exit(code ?? 128 + (signal === null ? 0 : constants.signals[signal])))
}

if (process.argv[2] === "--run") await run()
else {
  await makeRows()
  supervise()
}
