/**
 * The sample, `npm start`: 10,000 invented vendors through the real command with a simulated provider. Stop it with Ctrl-C, or kill it, and start it again: it goes on.
 */
import { existsSync, statSync } from "node:fs"
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

await makeRows()
process.argv.splice(1, process.argv.length, "longhaul", ...command)
await import("../../src/programs/main.ts")
