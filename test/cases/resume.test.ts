import { appendFileSync, copyFileSync, cpSync } from "node:fs"
import { hostname } from "node:os"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Either, Exit, Stream } from "effect"
import * as Memory from "../../src/layers/Memory.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import * as ExitCode from "../../src/programs/ExitCode.ts"
import { Checkpointer } from "../../src/services/Checkpointer.ts"
import { RunRefused, StorageError } from "../../src/services/Errors.ts"
import { fromIterable } from "../../src/services/RowSource.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { play } from "../support/fixtureServer.ts"
import { nth, processOn, tempDir } from "../support/mortalProcess.ts"
import { assessing, bytesOf, enrich, inputJob, inputs, rowsOf } from "./inputs.ts"
import { connected, execute, lockFor } from "./tables.ts"
import { assertSound, BILL, good, HOLD, jobOf, resultsOf, run, runId, vendors } from "./vendors.ts"

const turn = Effect.promise(() => new Promise<void>((resume) => setImmediate(resume)))
const one = { maxConcurrency: 1 }

describe("exclusive run", () => {
  it.scopedLive("B13 two-resumers: of two that resume at once, ten times over, one works and one is refused", () =>
    Effect.gen(function* () {
      const dir = yield* tempDir
      const job = inputJob(fromIterable(inputs(10)), { chunkSize: 2 })
      for (let round = 0; round < 10; round++) {
        const filename = join(dir, `${round}.db`)
        const database = Sqlite.open({ filename })
        const llm = assessing(() => Effect.sleep("5 millis"))
        const budget = { maxConcurrency: 2 }
        const dies = nth(3, (op) => op._tag === "Settle")
        yield* Effect.flip(Effect.provide(enrich(job, llm, { budget }), processOn(database, dies)))
        const resume = Effect.provide(enrich(job, llm, { budget }), processOn(database))
        const ends = yield* Effect.all([Effect.either(resume), Effect.either(resume)], { concurrency: "unbounded" })
        const [refused, ...others] = ends.flatMap((end) => (Either.isLeft(end) ? [end.left] : []))
        assert.lengthOf(others, 0)
        if (!(refused instanceof RunRefused)) return assert.fail(`a refusal was expected, not ${refused}`)
        assert.strictEqual(ExitCode.ofError(refused), 75)
        assert.include(refused.message, `run ${runId} is being worked on by `)
        assert.match(refused.message, new RegExp(`process ${process.pid} on ${hostname()} |which has just begun`))
        const [ended] = ends.flatMap((end) => (Either.isRight(end) ? [end.right] : []))
        if (ended === undefined) return assert.fail("neither worked")
        // What was in flight at the kill is counted at its hold and asked again, each other row once.
        assertIncludes(ended, { status: "done", done: 10, spent: 10 * BILL, calls: llm.calls() })
        assert.isAtMost(llm.calls(), 12)
      }
    })
  )
})

describe("checkpoint and resume", () => {
  it.scopedLive(
    "B35 torn-tail: a log that a crash left torn loses no charge and no row, and is whole again after",
    () =>
      Effect.gen(function* () {
        const dir = yield* tempDir
        const filename = join(dir, "run.db")
        const image = join(dir, "image.db")
        const torn = bytesOf("B35-torn-tail-results.jsonl")
        let asked = 0
        // As a kill would leave it while the sixth call is in flight, and half of a record behind it.
        const llm = assessing(() =>
          Effect.sync(() => {
            if (++asked !== 6) return
            copyFileSync(filename, image)
            copyFileSync(`${filename}-wal`, `${image}-wal`)
            cpSync(`${filename}-runs`, `${image}-runs`, { recursive: true })
            appendFileSync(`${image}-wal`, torn)
          })
        )
        const job = inputJob(fromIterable(inputs(10)), { chunkSize: 2 })
        yield* Effect.provide(enrich(job, llm, { budget: one }), Sqlite.layer({ filename }))
        const again = assessing()
        const layer = Sqlite.layer({ filename: image })
        const [result, rows] = yield* Effect.provide(
          Effect.all([enrich(job, again, { budget: one }), resultsOf]),
          layer
        )
        assertIncludes(result, { status: "done", done: 10, spent: 10 * BILL, calls: 5 + 1 + 5 })
        assert.isAbove(result.uncertain, 0)
        assert.strictEqual(again.calls(), 5)
        assert.lengthOf(rows, 10)
        assert.deepStrictEqual((yield* connected(image)).pragma("integrity_check"), [{ integrity_check: "ok" }])
      })
  )

  it.scopedLive("B35 torn-tail: a source with a torn last line is refused, not read as far as it goes", () =>
    Effect.gen(function* () {
      const error = yield* Effect.flip(Stream.runDrain(rowsOf("B35-torn-tail-results.jsonl").rows))
      assertIncludes(error, { reason: "malformed", line: 3 })
      assert.include(error.fix ?? "", "was cut off")
    })
  )

  it.scopedLive(
    "B36 tool-upgraded: a book of an older version is brought up and goes on, one of a newer is refused",
    () =>
      Effect.gen(function* () {
        const filename = join(yield* tempDir, "run.db")
        const layer = Sqlite.layer({ filename })
        const llm = assessing()
        const job = inputJob(fromIterable(inputs(30)))
        const begun = yield* Effect.provide(enrich(job, llm, { budget: { ...one, maxCalls: 20 } }), layer)
        assertIncludes(begun, { status: "suspended", done: 20, pending: 10 })
        const db = yield* connected(filename)
        // Back to the tables of the first version.
        execute(
          db,
          ...["manifest", "call", "outcome", "checkpoint", "store"].map(
            (name) => `alter table ${name} drop column crc`
          ),
          "alter table run drop column kept",
          "alter table outcome drop column made",
          "drop table correction",
          ...["paused", "canary", "orders", "requests_per_minute", "tokens_per_minute"].map(
            (name) => `alter table run drop column ${name}`
          ),
          "drop table steering",
          "drop index run_pool",
          "alter table run drop column pool",
          "drop table pool",
          ...["phase", "allowed"].map((name) => `alter table worker drop column ${name}`),
          "delete from longhaul_migrations where migration_id > 1"
        )
        const ended = yield* Effect.provide(enrich(job, llm, { budget: { maxCalls: 100 } }), layer)
        assertIncludes(ended, { status: "done", done: 30, calls: 30, reruns: 0 })
        assert.strictEqual(llm.calls(), 30)

        execute(db, "insert into longhaul_migrations (migration_id, name) values (99, 'v99')")
        const error = yield* Effect.flip(Effect.provide(enrich(job, llm), layer))
        assertIncludes(error, { _tag: "StorageError", reason: "schema" })
        assert.match(error.message, /newer Longhaul \(tables of version 99, this one knows \d+\): update Longhaul/)
        assert.strictEqual(llm.calls(), 30)
      })
  )

  it.scopedLive("B55 recovery-db-outage: a database that is away while a run resumes leaves no row behind", () =>
    Effect.gen(function* () {
      const dir = yield* tempDir
      const filename = join(dir, "run.db")
      const layer = Sqlite.layer({ filename })
      const llm = assessing()
      const job = inputJob(fromIterable(inputs(250)))
      yield* Effect.provide(enrich(job, llm, { budget: { maxCalls: 0 } }), layer)
      const db = yield* connected(filename)
      const holds = lockFor(db, 2_000)
      const resumed = yield* Effect.provide(enrich(job, llm, { budget: { maxCalls: 1_000 } }), layer)
      assert.isFalse(holds())
      assertIncludes(resumed, { status: "done", rows: 250, done: 250, pending: 0, calls: 250, uncertain: 0 })
      // What cannot be looked at is no empty book.
      const away = Sqlite.layer({ filename: join(dir, "other.db"), create: false })
      const error = yield* Effect.flip(Effect.provide(Enrichment.status(runId), away))
      if (!(error instanceof StorageError)) return assert.fail(`a StorageError was expected, not ${error}`)
      assert.strictEqual(ExitCode.ofError(error), 74)
    })
  )

  it.scopedLive(
    "B57 replay-deadlock: a run that was killed after k of 20 rows ends, for each k, and asks only the rest",
    () =>
      Effect.gen(function* () {
        const dir = yield* tempDir
        const job = inputJob(fromIterable(inputs(20)))
        for (let k = 1; k < 20; k++) {
          const filename = join(dir, `${k}.db`)
          const database = Sqlite.open({ filename })
          const llm = assessing(() => turn)
          const budget = { maxConcurrency: 3 }
          const dies = nth(k + 1, (op) => op._tag === "Settle")
          const dead = yield* Effect.exit(Effect.provide(enrich(job, llm, { budget }), processOn(database, dies)))
          assert.isTrue(Exit.isFailure(dead))
          const next = assessing(() => turn)
          const ended = yield* Effect.provide(enrich(job, next, { budget }), processOn(database)).pipe(
            Effect.timeout("10 seconds")
          )
          assertIncludes(ended, { status: "done", done: 20, spent: 20 * BILL })
          assert.strictEqual(next.calls(), 20 - k)
        }
      })
  )

  it.scopedLive("B82 lexicographic-latest: a resume goes on from the last version by number, past 9, 99 and 999", () =>
    Effect.gen(function* () {
      const llm = assessing()
      const job = inputJob(fromIterable(inputs(1_010)), { chunkSize: 1 })
      for (const maxCalls of [12, 105, 1_005, 1_010]) {
        const result = yield* enrich(job, llm, { budget: { maxCostUsd: 5, maxConcurrency: 1, maxCalls } })
        assertIncludes(result, { done: maxCalls, calls: maxCalls, replays: 0, spent: maxCalls * BILL })
        assert.strictEqual(llm.calls(), maxCalls)
        const versions = yield* Effect.flatMap(Checkpointer, ({ listVersions }) => listVersions(runId))
        assert.deepStrictEqual(
          versions,
          versions.map((_, i) => i + 1)
        )
        assert.isAbove(versions.length, maxCalls)
        const ids = yield* Enrichment.doneIds(runId)
        assert.lengthOf(ids, maxCalls)
      }
    }).pipe(Effect.provide(Memory.layer))
  )

  for (const first of [2, 8]) {
    it.scopedLive(
      `B125 restart-bypasses-cap: a run begun with ${first} calls at once resumes with two, never more`,
      () =>
        Effect.gen(function* () {
          const database = Sqlite.open({ filename: join(yield* tempDir, "run.db") })
          const job = jobOf({ rows: vendors(24) })
          const late = (ms: number) => async (seen: Parameters<typeof good>[0]) => {
            await new Promise((resume) => setTimeout(resume, ms))
            return good(seen)
          }
          const before = yield* play(late(20))
          const dies = nth(7, (op) => op._tag === "Settle")
          const killed = run(job, before, { budget: { maxConcurrency: first } })
          yield* Effect.flip(Effect.provide(killed, processOn(database, dies)))
          assert.strictEqual(before.most(), first)
          const after = yield* play(late(20))
          const resumed = yield* Effect.provide(run(job, after, { budget: { maxConcurrency: 2 } }), processOn(database))
          assertSound(resumed, before.requests.length + after.requests.length)
          assertIncludes(resumed, { status: "done", done: 24, spent: 24 * BILL })
          assert.strictEqual(after.most(), 2)
          assert.strictEqual(resumed.uncertain % HOLD, 0)
        })
    )
  }
})
