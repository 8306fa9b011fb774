import { copyFileSync, cpSync, existsSync, readFileSync, statSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import Database from "better-sqlite3"
import { Effect, Exit, Schema, Stream } from "effect"
import { vi } from "vitest"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import * as Doctor from "../../src/programs/Doctor.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import * as ExitCode from "../../src/programs/ExitCode.ts"
import { StorageError } from "../../src/services/Errors.ts"
import { fromIterable } from "../../src/services/RowSource.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { countingLlm, promptOf } from "../support/countingLlm.ts"
import { play } from "../support/fixtureServer.ts"
import { nth, processOn, tempDir } from "../support/mortalProcess.ts"
import { assessing, enrich, exportTo, inputJob, inputJobFor, inputs, readAsked } from "./inputs.ts"
import { connected, execute, lockFor } from "./tables.ts"
import { assertSound, BILL, EnrichedVendor, enriched, good, HOLD, jobOf, run, runId, vendors } from "./vendors.ts"

const refused = <A, E, R>(run: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.flip(run), (error) =>
    error instanceof StorageError ? error : assert.fail(`a StorageError was expected, not ${error}`)
  )
const sizeOf = (path: string): number => statSync(path, { throwIfNoEntry: false })?.size ?? 0

describe("storage", () => {
  it.scopedLive(
    "B37 sqlite-busy: a writer that holds the database for two seconds and a reader all along lose nothing",
    () =>
      Effect.gen(function* () {
        const filename = join(yield* tempDir, "run.db")
        const layer = Sqlite.layer({ filename })
        const job = jobOf({ rows: vendors(40) })
        const begun = yield* play(good)
        yield* Effect.provide(run(job, begun, { budget: { maxCalls: 10 } }), layer)
        const [reader, writer] = [yield* connected(filename), yield* connected(filename)]
        execute(reader, "begin")
        const seen = () => reader.prepare<{ n: number }>("select count(*) as n from outcome").get()?.n
        assert.strictEqual(seen(), 10)
        let holds = () => true
        const server = yield* play((one) => {
          if (one.n === 5) holds = lockFor(writer, 2_000)
          return good(one)
        })
        const ended = yield* Effect.provide(run(job, server, { budget: { maxCalls: 100 } }), layer)
        assertSound(ended, begun.requests.length + server.requests.length)
        assertIncludes(ended, { status: "done", done: 40, calls: 40, spent: 40 * BILL, uncertain: 0 })
        assert.isFalse(holds())
        // Its transaction still sees what was there when it began.
        assert.strictEqual(seen(), 10)
      })
  )

  it.scopedLive(
    "B37 sqlite-busy: past what a run waits for it sends nothing more, ends as a storage error, and goes on",
    () =>
      Effect.gen(function* () {
        const filename = join(yield* tempDir, "run.db")
        const layer = Sqlite.layer({ filename })
        const job = jobOf({ rows: vendors(40) })
        yield* Effect.provide(Enrichment.runs, layer)
        const writer = yield* connected(filename)
        const server = yield* play((one) => {
          if (one.n === 20) execute(writer, "begin immediate")
          return good(one)
        })
        const error = yield* refused(Effect.provide(run(job, server), layer))
        assert.strictEqual(error.reason, "busy")
        assert.strictEqual(ExitCode.ofError(error), 74)
        const sent = server.requests.length
        assert.isAtMost(sent, 20 + 8)
        execute(writer, "rollback")
        const kept = yield* Effect.provide(Enrichment.status(runId), layer)
        assert.isAtLeast(kept.spent / BILL, 20 - 8)
        const next = yield* play(good)
        const ended = yield* Effect.provide(run(job, next), layer)
        assertSound(ended, sent + next.requests.length)
        assertIncludes(ended, { status: "done", done: 40, spent: 40 * BILL, uncertain: kept.held + kept.uncertain })
        assert.strictEqual(next.requests.length, 40 - kept.spent / BILL)
        assert.strictEqual(ended.uncertain % HOLD, 0)
      })
  )

  it.scopedLive("B58 network-fs: where the safe journal mode cannot be had, nothing is asked", () =>
    Effect.gen(function* () {
      const filename = join(yield* tempDir, "run.db")
      // As on a drive without shared memory: SQLite answers with another mode and does not throw.
      const spy = yield* Effect.acquireRelease(
        Effect.sync(() => vi.spyOn(Database.prototype, "pragma").mockReturnValue("delete")),
        (pragma) => Effect.sync(() => pragma.mockRestore())
      )
      const llm = assessing()
      const error = yield* refused(
        Effect.provide(enrich(inputJob(fromIterable(inputs(3))), llm), Sqlite.layer({ filename }))
      )
      assert.isAbove(spy.mock.calls.length, 0)
      assert.strictEqual(error.reason, "unsafe")
      assert.match(error.message, /not safe .*journal_mode delete.* is it on a network drive\? Put it on a local disk$/)
      assert.strictEqual(llm.calls(), 0)
    })
  )

  it.scopedLive(
    "B58 network-fs: a book that was copied without its log is refused, and so is a damaged one, which the doctor finds",
    () =>
      Effect.gen(function* () {
        const dir = yield* tempDir
        const [filename, copy] = [join(dir, "run.db"), join(dir, "copy.db")]
        const job = inputJob(fromIterable(inputs(60)))
        const half = { budget: { maxConcurrency: 1, maxCalls: 30 } }
        yield* Effect.provide(enrich(job, assessing(), half), Sqlite.layer({ filename }))
        // While the run goes on, what is newest stands in the log alone.
        const llm = assessing(() =>
          Effect.sync(() => {
            if (existsSync(copy)) return
            copyFileSync(filename, copy)
            cpSync(`${filename}-runs`, `${copy}-runs`, { recursive: true })
          })
        )
        yield* Effect.provide(enrich(job, llm, { budget: { maxCalls: 100 } }), Sqlite.layer({ filename }))
        const unasked = assessing()
        const lost = yield* refused(Effect.provide(enrich(job, unasked), Sqlite.layer({ filename: copy })))
        assert.strictEqual(lost.reason, "regressed")
        assert.strictEqual(unasked.calls(), 0)

        const findings = Effect.provide(Doctor.database, Sqlite.layer({ filename }))
        assert.deepStrictEqual(
          (yield* findings).map(({ state }) => state),
          ["ok", "ok"]
        )
        const bytes = readFileSync(filename)
        // One letter of each result; SQLite's own check does not see it.
        for (let at = bytes.indexOf("fasteners"); at > 0; at = bytes.indexOf("fasteners", at + 1)) bytes[at] = 70
        writeFileSync(filename, bytes)
        assert.include(
          (yield* findings).map(({ state }) => state),
          "failed"
        )
        const damaged = yield* refused(
          Effect.provide(enrich(job, unasked, { run: { retry: "all" } }), Sqlite.layer({ filename }))
        )
        assert.strictEqual(damaged.reason, "corrupt")
        assert.strictEqual(unasked.calls(), 0)
      })
  )

  const Long = Schema.Struct({ ...EnrichedVendor.fields, summary: Schema.String })
  it.scopedLive(
    "B86 payload-limit: 2,000 rows of 4 KB and a result of 1.5 MB are no burden, and a kill buys none again",
    () =>
      Effect.gen(function* () {
        const dir = yield* tempDir
        const database = Sqlite.open({ filename: join(dir, "run.db") })
        const rows = inputs(2_000).map((row) => ({ ...row, description: "x".repeat(4_000) }))
        const job = inputJobFor(fromIterable(rows), { output: Long })
        const large = "y".repeat(1_500_000)
        const llm = countingLlm((request) => {
          const { id } = readAsked(promptOf(request))
          return JSON.stringify({ ...enriched(id), ...(id === "V-003" ? { summary: large } : {}) })
        })
        const dies = nth(1_001, (op) => op._tag === "Settle")
        const dead = yield* Effect.exit(Effect.provide(enrich(job, llm), processOn(database, dies)))
        assert.isTrue(Exit.isFailure(dead))
        const before = llm.calls()
        const out = join(dir, "out.jsonl")
        const [ended] = yield* Effect.provide(Effect.all([enrich(job, llm), exportTo(job, out)]), processOn(database))
        assertSound(ended, llm.calls())
        assertIncludes(ended, { status: "done", done: 2_000, failed: 0, spent: 2_000 * BILL })
        assert.strictEqual(llm.calls() - before, 1_000)
        const lines = readFileSync(out, "utf8").trimEnd().split("\n")
        assert.lengthOf(lines, 2_000)
        assert.include(lines[2], large)
      })
  )

  it.scopedLive(
    "B126 wal-growth: readers that look all along, and one that stops in mid-way, do not hold the log",
    () =>
      Effect.gen(function* () {
        const filename = join(yield* tempDir, "run.db")
        const wal = `${filename}-wal`
        let largest = 0
        let looks = 0
        const llm = assessing(() =>
          Effect.promise(() => new Promise<void>((resume) => setImmediate(resume))).pipe(
            Effect.zipRight(Effect.sync(() => (largest = Math.max(largest, sizeOf(wal))))),
            Effect.asVoid
          )
        )
        const job = inputJob(fromIterable(inputs(3_000)))
        const watching = Effect.gen(function* () {
          const status = Enrichment.status(runId)
          const done = Effect.match(status, { onFailure: () => 0, onSuccess: (totals) => totals.done })
          yield* Effect.repeat(Effect.delay(done, "20 millis"), { until: (n) => n > 0 })
          // The first page, and then it looks away for as long as the run goes on.
          const pull = yield* Stream.toPull(Enrichment.results(runId, Schema.Unknown))
          yield* pull
          return yield* Effect.forever(
            Effect.delay(
              Effect.zipRight(
                status,
                Effect.sync(() => looks++)
              ),
              "20 millis"
            )
          )
        }).pipe(Effect.provide(Sqlite.layer({ filename })))
        const ended = yield* Effect.raceFirst(
          Effect.provide(enrich(job, llm), Sqlite.layer({ filename })),
          Effect.zipRight(watching, Effect.never)
        )
        assertIncludes(ended, { status: "done", done: 3_000 })
        assert.isAbove(looks, 0)
        // SQLite moves it into the database at 1,000 pages of 4 KB, between two commits.
        assert.isAtMost(largest, 8 * 1024 * 1024)
        assert.strictEqual(existsSync(wal) ? sizeOf(wal) : 0, 0)
      })
  )
})

describe("the event loop", () => {
  it.scopedLive(
    "B128 sync-sqlite-block: while another process holds the lock, the loop turns, and no call times out",
    () =>
      Effect.gen(function* () {
        const filename = join(yield* tempDir, "run.db")
        const layer = Sqlite.layer({ filename })
        yield* Effect.provide(Enrichment.runs, layer)
        const writer = yield* connected(filename)
        let holds = () => true
        let beats = 0
        yield* Effect.acquireRelease(
          Effect.sync(() => setInterval(() => void (holds() && beats++), 20)),
          (timer) => Effect.sync(() => clearInterval(timer))
        )
        const server = yield* play((one) => {
          if (one.n === 8) {
            beats = 0
            holds = lockFor(writer, 3_000)
          }
          return good(one)
        })
        const ended = yield* Effect.provide(
          run(jobOf({ rows: vendors(40) }), server, { llm: { timeoutMs: 2_000 } }),
          layer
        )
        assertSound(ended, server.requests.length)
        assertIncludes(ended, { status: "done", done: 40, calls: 40, retries: 0, uncertain: 0 })
        assert.isFalse(holds())
        // A wait blocks for a tenth of a second at a time, so that the loop turns after each: twenty times in three seconds.
        assert.isAtLeast(beats, 10)
      })
  )
})
