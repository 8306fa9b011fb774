import { readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import * as SqlClient from "@effect/sql/SqlClient"
import * as SqliteClient from "@effect/sql-sqlite-node/SqliteClient"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Exit } from "effect"
import * as Memory from "../../src/layers/Memory.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import * as ExitCode from "../../src/programs/ExitCode.ts"
import * as Price from "../../src/services/Price.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { command } from "../support/command.ts"
import { play } from "../support/fixtureServer.ts"
import { tempDir } from "../support/mortalProcess.ts"
import {
  assertSound,
  BILL,
  completion,
  enriched,
  good,
  HOLD,
  idOf,
  jobOf,
  NANO,
  price,
  run,
  runId,
  tokens,
  vendors
} from "./vendors.ts"

const pause = (ms: number) => new Promise<void>((resume) => setTimeout(resume, ms))

describe("budget admission", () => {
  for (const [what, usage] of [
    ["its worst case", tokens(10_000, 2_500)],
    ["a third of it", tokens(4_000, 600)]
  ] as const) {
    it.scopedLive(`B01 concurrent-admission: only what fits together is under way at once; a reply costs ${what}`, () =>
      Effect.gen(function* () {
        const rows = vendors(20, 10_000)
        const job = jobOf({ rows, maxOutputTokens: 2_500 })
        const hold = rows.reduce((most, row) => Math.max(most, Price.hold(price, job.agent.request(row))), 0)
        assert.strictEqual(hold, 3_000_000)
        const cap = 10_000_000
        const bill = Number(Price.cost(price, usage))
        let answered = 0
        let most = 0
        const server = yield* play(async (seen) => {
          // What was billed, and the worst of what is under way, this call included.
          most = Math.max(most, answered * bill + (seen.n - answered) * hold)
          // Held until eight are there, which must not come to pass.
          await pause(answered === 0 ? 300 : 20)
          answered++
          return completion(JSON.stringify(enriched(idOf(seen))), usage)
        })
        const result = yield* run(job, server, { budget: { maxCostUsd: cap / NANO } })
        assertSound(result, server.requests.length)
        assert.isAtMost(server.most(), 3)
        assert.isAtMost(most, cap)
        assertIncludes(result, { status: "suspended", failed: 0, uncertain: 0 })
        assert.strictEqual(result.reason?.kind, "budget")
        assert.strictEqual(result.done, Math.floor((cap - hold) / bill) + 1)
        assert.strictEqual(result.pending, 20 - result.done)
        assert.strictEqual(ExitCode.ofResult(result), 4)
        const resumed = yield* run(job, server, { budget: { maxCostUsd: 1 } })
        assertSound(resumed, server.requests.length)
        assertIncludes(resumed, { status: "done", done: 20, calls: 20 })
      }).pipe(Effect.provide(Memory.layer))
    )
  }

  it.scopedLive("B22 chunk-granular: the cap stops the run inside a chunk, at the very row that does not fit", () =>
    Effect.gen(function* () {
      const rows = vendors(300)
      const worst = tokens(820, 400)
      assert.strictEqual(Number(Price.cost(price, worst)), HOLD)
      const server = yield* play((seen) => completion(JSON.stringify(enriched(idOf(seen))), worst))
      const job = jobOf({ rows, chunkSize: 100 })
      const result = yield* run(job, server, { budget: { maxCostUsd: (107 * HOLD) / NANO } })
      assertSound(result, server.requests.length)
      assertIncludes(result, { status: "suspended", done: 107, pending: 193, calls: 107, spent: 107 * HOLD })
      assert.strictEqual(result.reason?.kind, "budget")
      const covered = yield* Enrichment.doneIds(runId)
      assert.deepStrictEqual(
        covered,
        rows.slice(0, 107).map((row) => row.id)
      )
    }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive(
    "B46 first-request-window: the first burst of a new run meets the cap, and so does a run without its ledger",
    () =>
      Effect.gen(function* () {
        const server = yield* play(good)
        const job = jobOf({ rows: vendors(20) })
        const cap = { maxCostUsd: 0.0000001 }
        for (const table of ["none", "run", "hold", "call", "manifest"]) {
          const filename = join(yield* tempDir, "run.db")
          const first = yield* run(job, server, { budget: cap }).pipe(Effect.provide(Sqlite.layer({ filename })))
          assertIncludes(first, { status: "suspended", cap: 100, pending: 20, calls: 0 })
          assert.strictEqual(first.reason?.kind, "budget")
          if (table === "none") continue
          yield* Effect.flatMap(SqlClient.SqlClient, (sql) => sql`drop table ${sql(table)}`).pipe(
            Effect.provide(SqliteClient.layer({ filename }))
          )
          // Again, with the cap and without: it is refused, or the cap holds.
          for (const budget of [cap, { maxCostUsd: undefined }]) {
            const again = yield* Effect.exit(
              run(job, server, { budget }).pipe(Effect.provide(Sqlite.layer({ filename })))
            )
            if (Exit.isSuccess(again)) assertIncludes(again.value, { cap: 100, calls: 0, done: 0 })
          }
        }
        assert.lengthOf(server.requests, 0)
      })
  )

  it.scopedLive("B47 zero-budget: a cap of 0 is a cap, and no cap at all is refused", () =>
    Effect.gen(function* () {
      const cwd = yield* tempDir
      const bare = yield* tempDir
      const server = yield* play(good)
      for (const dir of [cwd, bare]) writeFileSync(join(dir, "rows.csv"), `id,name\n${vendorLines(5)}\n`)
      writeFileSync(join(bare, "longhaul.json"), JSON.stringify({ budget: null }))
      const longhaul = (dir: string, args: ReadonlyArray<string>) =>
        Effect.promise(() => {
          const env = { OPENAI_API_KEY: "sk-test", OPENAI_BASE_URL: server.url }
          return command(args, { cwd: dir, env }).ended
        })
      const two = ["run", job, "--budget", "1", "--max-calls", "2", "--run-id", "first"]
      assert.strictEqual((yield* longhaul(cwd, two)).code, 4)
      assert.lengthOf(server.requests, 2)
      // Rows that are in the store cost nothing, and are exported.
      const [resumed, zero, nothing] = yield* Effect.all(
        [
          longhaul(cwd, ["resume", "first", "--budget", "0.00", "--max-calls", "100"]),
          longhaul(cwd, ["run", job, "--run-id", "zero", "--out", "zero.csv", "--budget", "0"]),
          longhaul(bare, ["run", job, "--run-id", "null"])
        ],
        { concurrency: 2 }
      )
      assert.strictEqual(resumed.code, 4, resumed.stderr)
      assert.strictEqual(zero.code, 4, zero.stderr)
      assert.match(zero.stdout, /^suspended: the cap of \$0\.00 is reached/)
      assert.lengthOf(
        readFileSync(join(cwd, "zero.csv"), "utf8")
          .split("\n")
          .filter((line) => /,low,done,\r?$/.test(line)),
        2
      )
      assert.strictEqual(nothing.code, 2, nothing.stderr)

      const [first, second] = yield* Effect.all([Enrichment.status("first"), Enrichment.status("zero")]).pipe(
        Effect.provide(Sqlite.layer({ filename: join(cwd, "longhaul.db") }))
      )
      assertIncludes(first, { cap: 0, spent: 2 * BILL, uncertain: 0, done: 2, pending: 3, calls: 2 })
      assertIncludes(second, { cap: 0, spent: 0, uncertain: 0, done: 2, storeHits: 2, pending: 3, calls: 0 })
      const silent = yield* Effect.flip(run(jobOf(), server, { budget: { maxCostUsd: undefined } }))
      assertIncludes(silent, { _tag: "RunRefused", reason: "no_cap" })
      assert.lengthOf(server.requests, 2)
    }).pipe(Effect.provide(Memory.layer))
  )
})

const job = fileURLToPath(new URL("./command/job.ts", import.meta.url))
const vendorLines = (n: number) => Array.from({ length: n }, (_, i) => `V-00${i + 1},Acme ${i + 1}`).join("\n")
