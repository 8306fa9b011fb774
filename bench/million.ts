/**
 * One run of a million rows, simulated, in a SQLite file with FULL commits, beside one of ten thousand and one of a hundred thousand: microseconds a row, peak memory and how it grows within
 * the run, the file and its write-ahead log, what a snapshot costs.
 *
 *   npm run bench:million [-- --sizes 10000,100000,1000000 --c 8]
 */
import { spawnSync } from "node:child_process"
import { mkdtempSync, rmSync, statSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { parseArgs } from "node:util"
import { Effect, Schema, Stream } from "effect"
import { Agent, Budget, Enrichment, LLMSimulated, Rows } from "../src/index.ts"
import * as Sqlite from "../src/layers/Sqlite.ts"

const { values } = parseArgs({
  options: { sizes: { type: "string" }, c: { type: "string" }, one: { type: "string" }, db: { type: "string" } }
})
const concurrency = Number(values.c ?? 8)

const Row = Schema.Struct({ id: Schema.Int, name: Schema.String, description: Schema.String })
const describe = (id: number): string =>
  `Vendor ${id} sells parts to ${id % 97} plants and was founded in ${1900 + (id % 120)}; it has ${id % 4001} employees.`

const jobOf = (rows: number) =>
  Enrichment.make({
    name: "million",
    agent: Agent.make({
      name: "million",
      model: "simulated",
      prompt: (row: typeof Row.Type) => `${row.name}: ${row.description}`,
      output: Schema.Struct({ summary: Schema.String, risk: Schema.Literal("low", "medium", "high") })
    }),
    row: Row,
    id: (row) => row.id,
    source: Rows.fromStream(
      Stream.map(Stream.range(1, rows), (id) => ({ id, name: `Vendor ${id}`, description: describe(id) }))
    ),
    chunkSize: 100
  })

interface Mark {
  readonly rows: number
  readonly ms: number
  readonly rss: number
}

/** One run in this process; prints what it measured as JSON. */
const one = (rows: number, db: string) =>
  Effect.gen(function* () {
    const marks: Array<Mark> = []
    const begun = performance.now()
    let wal = 0
    const mark = (done: number) => {
      marks.push({ rows: done, ms: performance.now() - begun, rss: process.memoryUsage.rss() })
      wal = Math.max(wal, statSync(`${db}-wal`, { throwIfNoEntry: false })?.size ?? 0)
    }
    const every = Math.max(100, rows / 20)
    const loaded = { ms: 0 }
    yield* Stream.runForEach(Enrichment.events(jobOf(rows), { runId: "million" }), (event) =>
      Effect.sync(() => {
        if (event._tag === "Started") loaded.ms = performance.now() - begun
        if (event._tag === "Started") mark(0)
        if (event._tag === "Checkpoint" && event.rows % every === 0) mark(event.rows)
        if (event._tag === "Finished") mark(event.result.done)
      })
    )
    return { rows, load: loaded.ms, ms: performance.now() - begun, marks, wal, file: statSync(db).size }
  }).pipe(
    Effect.provide([
      Budget.layer({ maxCostUsd: 10_000, maxConcurrency: concurrency }),
      LLMSimulated.layer({ latencyMs: { p50: 0, p99: 0 } })
    ]),
    Effect.provide(Sqlite.layer({ filename: db }))
  )

const mb = (bytes: number): string => (bytes / 1e6).toFixed(0).padStart(6)
const mean = (numbers: ReadonlyArray<number>): number =>
  numbers.reduce((sum, n) => sum + n, 0) / Math.max(1, numbers.length)

type Measured = Effect.Effect.Success<ReturnType<typeof one>>

const line = ({ file, load, marks, ms, rows, wal }: Measured): string => {
  const rss = marks.map((mark) => mark.rss)
  const quarter = Math.max(1, Math.floor(rss.length / 4))
  const growth = mean(rss.slice(-quarter)) / mean(rss.slice(0, quarter))
  const [from, to] = [marks[0]?.ms ?? 0, marks.at(-1)?.ms ?? ms]
  const parts = [
    String(rows).padStart(9),
    ((load * 1000) / rows).toFixed(0).padStart(10),
    (((to - from) * 1000) / rows).toFixed(0).padStart(10),
    mb(Math.max(...rss)),
    growth.toFixed(2).padStart(9),
    mb(file),
    mb(wal),
    (file / rows).toFixed(0).padStart(8)
  ]
  return parts.join("  ")
}

if (values.one !== undefined && values.db !== undefined) {
  console.log(JSON.stringify(await Effect.runPromise(one(Number(values.one), values.db))))
} else {
  console.log("     rows  load us/row  run us/row  peak MB  rss x4/x1  file MB  wal MB  bytes/row")
  for (const rows of (values.sizes ?? "10000,100000,1000000").split(",").map(Number)) {
    const directory = mkdtempSync(join(tmpdir(), "longhaul-million-"))
    const args = [
      "--import",
      "tsx",
      fileURLToPath(import.meta.url),
      "--one",
      String(rows),
      "--db",
      join(directory, "m.db")
    ]
    const { status, stderr, stdout } = spawnSync(process.execPath, [...args, "--c", String(concurrency)], {
      encoding: "utf8",
      maxBuffer: 1 << 28
    })
    const json = stdout.trim().split("\n").at(-1) ?? ""
    console.log(status === 0 ? line(JSON.parse(json)) : `${rows} failed: ${stderr}`)
    rmSync(directory, { recursive: true, force: true })
  }
}
