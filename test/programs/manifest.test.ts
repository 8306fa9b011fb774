import { writeFileSync } from "node:fs"
import { hostname } from "node:os"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { Chunk, Context, Deferred, Effect, Either, Exit, Layer, Option, Schema, Scope, Stream } from "effect"
import {
  Agent,
  Budget,
  Checkpointer,
  Enrichment,
  Errors,
  Journal,
  Memory,
  type RowSource,
  Rows,
  Store
} from "../../src/index.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import * as RunRecord from "../../src/programs/RunRecord.ts"
import * as Worker from "../../src/programs/Worker.ts"
import type { Op } from "../../src/services/Book.ts"
import { Usd } from "../../src/services/Usd.ts"
import { type CountingLlm, countingLlm, promptOf } from "../support/countingLlm.ts"
import { backends, type Database, nth, processOn, tempDir } from "../support/mortalProcess.ts"
import { workerOf } from "../support/records.ts"

const Vendor = Schema.Struct({ id: Schema.String, name: Schema.String })
type Vendor = typeof Vendor.Type
const Output = Schema.Struct({ summary: Schema.String })

const agentOptions = {
  name: "assessor",
  model: "simulated",
  prompt: (vendor: Vendor) => vendor.name,
  output: Output
}
const agent = Agent.make(agentOptions)
const jobOptions = { name: "vendors", agent, row: Vendor, id: (vendor: Vendor) => vendor.id, chunkSize: 2 }
const jobOver = (source: RowSource.RowSource) => Enrichment.make({ ...jobOptions, source })

const vendorsOf = (count: number): ReadonlyArray<Vendor> =>
  Array.from({ length: count }, (_, i) => ({ id: String(i + 1), name: `Vendor ${i + 1}` }))
const jobOf = (count: number) => jobOver(Rows.fromIterable(vendorsOf(count)))

const echoing = (wait?: Parameters<typeof countingLlm>[1]) =>
  countingLlm((request) => JSON.stringify({ summary: promptOf(request) }), wait)

/** One process: a run of a job. */
const session = <Row, A, I>(
  database: Database,
  llm: CountingLlm,
  job: Enrichment.Job<Row, A, I>,
  options: Enrichment.RunOptions & { readonly maxCalls?: number } = {},
  dies?: (op: Op) => boolean
) =>
  Enrichment.run(job, { runId: "r1", ...options }).pipe(
    Effect.provide(Budget.layer({ maxCostUsd: 10, maxConcurrency: 2, maxCalls: options.maxCalls })),
    Effect.provide([processOn(database, dies), llm.layer])
  )

/** What stands in the database, as a process of its own reads it. */
const inspect = (database: Database, runId = "r1") =>
  Effect.gen(function* () {
    const { reads } = yield* Journal.Journal
    const book = yield* reads.book(runId)
    const rows =
      book === undefined ? [] : Chunk.toReadonlyArray(yield* Stream.runCollect(Enrichment.results(runId, Output)))
    const manifest = yield* reads.results(runId, -1, 2_000)
    const workers = yield* reads.workers(runId)
    return { book, rows, manifest, workers, versions: yield* reads.checkpoints(runId) }
  }).pipe(Effect.provide(processOn(database)))

/** A source in a CSV file of these lines. */
const csv = (...lines: ReadonlyArray<string>) =>
  Effect.map(tempDir, (dir) => {
    const path = join(dir, "vendors.csv")
    writeFileSync(path, `${lines.join("\n")}\n`)
    return Rows.csv(path)
  })

/** The source is refused: nothing is asked, and no run stands in the database. */
const refuses = <Row, A, I>(database: Database, job: Enrichment.Job<Row, A, I>) =>
  Effect.gen(function* () {
    const llm = echoing()
    const error = yield* Effect.flip(session(database, llm, job))
    if (!(error instanceof Errors.InputError)) return assert.fail(`an InputError was expected, not ${error._tag}`)
    assert.strictEqual(llm.calls(), 0)
    const { book, manifest, workers } = yield* inspect(database)
    assert.deepStrictEqual({ book, manifest, workers }, { book: undefined, manifest: [], workers: [] })
    return error
  })

const refusal = <A, E, R>(run: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.flip(run), (error) =>
    error instanceof Errors.RunRefused ? error : assert.fail(`a refusal was expected, not ${error}`)
  )

for (const [backend, open] of Object.entries(backends)) {
  describe(`the manifest (${backend})`, () => {
    it.scopedLive("an id that comes twice refuses the source by both lines, and no run is left behind", () =>
      Effect.gen(function* () {
        const database = yield* open
        // Far apart: the two stand in different pages of the load.
        const source = yield* csv("id,name", ...vendorsOf(700).map(({ id, name }) => `${id},${name}`), "3,Again")
        const error = yield* refuses(database, jobOver(source))
        assert.deepStrictEqual([error.reason, error.line], ["duplicate_id", 702])
        assert.strictEqual(error.message, `${source.location}: id "3" stands on line 4 and again on line 702`)
        // The same run id serves once the source is mended.
        const result = yield* session(database, echoing(), jobOf(3))
        assert.deepStrictEqual([result.status, result.rows, result.done], ["done", 3, 3])
      })
    )

    it.scopedLive("a row that does not fit refuses the source by file, line and field, and no run is left behind", () =>
      Effect.gen(function* () {
        const source = yield* csv("id,name,amount", '1,"Two', 'lines",10', "2,Acme,many")
        const row = Schema.Struct({ ...Vendor.fields, amount: Schema.Number })
        const error = yield* refuses(yield* open, Enrichment.make({ ...jobOptions, row, source, agent }))
        assert.deepStrictEqual(
          [error.reason, error.file, error.line, error.field],
          ["bad_row", source.location, 4, "amount"]
        )
        assert.include(error.message, `${source.location}, line 4, field "amount": `)
      })
    )

    it.scopedLive("what `where` leaves out is counted as filtered and never asked", () =>
      Effect.gen(function* () {
        const database = yield* open
        const llm = echoing()
        const where = ({ id }: Vendor) => Number(id) % 3 !== 0
        const job = Enrichment.make({ ...jobOptions, where, source: Rows.fromIterable(vendorsOf(10)) })
        const { calls, done, filtered, rows } = yield* session(database, llm, job)
        assert.deepStrictEqual({ calls, done, filtered, rows }, { calls: 7, done: 7, filtered: 3, rows: 7 })
        assert.strictEqual(llm.calls(), 7)
        const found = yield* inspect(database)
        assert.deepStrictEqual(
          found.rows.map((one) => [one.seq, one.id]),
          ["1", "2", "4", "5", "7", "8", "10"].map((id, seq) => [seq, id])
        )
      })
    )

    it.scopedLive(
      "ids that look like something else stay byte for byte, and columns that no schema names survive",
      () =>
        Effect.gen(function* () {
          const database = yield* open
          const ids = ["NA", "NAN", "TRUE", "007", "1e3", "null", " x ", "Ünï"]
          const source = yield* csv(
            "id,name,Country Code,__proto__",
            ...ids.map((id, i) => `${id},Vendor ${i},0${i},p`)
          )
          yield* session(database, echoing(), jobOver(source))
          const { rows } = yield* inspect(database)
          assert.deepStrictEqual(
            rows.map((row) => row.id),
            ids
          )
          assert.deepStrictEqual(
            rows.map(({ record }) => Object.entries(record)),
            ids.map(
              (id, i): Array<[string, unknown]> => [
                ["id", id],
                ["name", `Vendor ${i}`],
                ["Country Code", `0${i}`],
                ["__proto__", "p"]
              ]
            )
          )
        })
    )

    it.scopedLive("a load that a crash cut short begins anew, from the source as it is then", () =>
      Effect.gen(function* () {
        const database = yield* open
        const dies = nth(2, (op) => op._tag === "Load")
        yield* Effect.flip(session(database, echoing(), jobOf(1_200), {}, dies))
        const cut = yield* inspect(database)
        assert.deepStrictEqual([cut.book?.status, cut.book?.rows, cut.manifest.length], ["loading", 500, 500])
        const llm = echoing()
        const { done, rows, status } = yield* session(database, llm, jobOf(600))
        assert.deepStrictEqual([status, rows, done, llm.calls()], ["done", 600, 600, 600])
        const { manifest } = yield* inspect(database)
        assert.deepStrictEqual(
          manifest.map(({ row }) => row.id),
          vendorsOf(600).map(({ id }) => id)
        )
      })
    )

    it.scopedLive("a source without rows ends done, with no row and one DONE snapshot", () =>
      Effect.gen(function* () {
        const database = yield* open
        const llm = echoing()
        const result = yield* session(database, llm, jobOver(yield* csv("id,name")), { collect: true })
        assert.deepStrictEqual([result.status, result.stopReason, result.rows], ["done", "complete", 0])
        assert.strictEqual(llm.calls(), 0)
        assert.deepStrictEqual(Option.getOrThrow(result.workflow).outputs.load_rows, [])
        assert.deepStrictEqual((yield* inspect(database)).versions, [1])
      })
    )

    it.scopedLive(
      "a run that a live process works on is refused, by pid and host, and free once that process is gone",
      () =>
        Effect.gen(function* () {
          const database = yield* open
          const job = jobOf(4)
          yield* session(database, echoing(), job, { maxCalls: 2 })
          // It has the lock and is in the book, as a process that works; then it is gone without a word.
          const [pid, now, life] = [4_711, Date.now(), yield* Scope.make()]
          const worker = { ...workerOf("r1", 2), host: "box", pid, startedAt: now, beatAt: now }
          const claim = Effect.gen(function* () {
            const journal = yield* Effect.flatMap(database, Journal.make)
            assert.isTrue(yield* journal.lock("r1"))
            yield* journal.commit({ _tag: "Claim", worker, dead: [], lost: Usd.zero })
          })
          yield* Scope.extend(claim, life)

          const llm = echoing()
          const error = yield* refusal(session(database, llm, job, { maxCalls: 10 }))
          assert.strictEqual(error.reason, "busy")
          assert.include(error.message, `run r1 is being worked on by process ${pid} on box (worker 2, `)
          assert.strictEqual(llm.calls(), 0)

          yield* Scope.close(life, Exit.void)
          const { done, status } = yield* session(database, llm, job, { maxCalls: 10 })
          assert.deepStrictEqual([done, status, llm.calls()], [4, "done", 2])
        })
    )

    it.scopedLive("a run that is done makes no call and adds no snapshot", () =>
      Effect.gen(function* () {
        const database = yield* open
        const first = yield* session(database, echoing(), jobOf(5))
        const before = yield* inspect(database)
        assert.deepStrictEqual(before.versions, [1, 2, 3, 4])
        const llm = echoing()
        const { thisProcess, ...again } = yield* session(database, llm, jobOf(5))
        assert.deepStrictEqual({ ...again, thisProcess: first.thisProcess }, first)
        assert.deepStrictEqual([llm.calls(), thisProcess.calls, thisProcess.rows], [0, 0, 0])
        const after = yield* inspect(database)
        assert.deepStrictEqual([after.versions, after.rows, after.book], [before.versions, before.rows, before.book])
      })
    )

    it.scopedLive("a run of another job is refused", () =>
      Effect.gen(function* () {
        const database = yield* open
        yield* session(database, echoing(), jobOf(2))
        const llm = echoing()
        const other = Enrichment.make({ ...jobOptions, name: "others", source: Rows.fromIterable(vendorsOf(3)) })
        const error = yield* refusal(session(database, llm, other))
        assert.strictEqual(error.reason, "wrong_job")
        assert.strictEqual(error.message, "run r1 belongs to job vendors, not to others")
        assert.deepStrictEqual([llm.calls(), (yield* inspect(database)).book?.rows], [0, 2])
      })
    )

    it.scopedLive("I8: a prompt that throws makes that row a Failure, without a call, and the others are done", () =>
      Effect.gen(function* () {
        const database = yield* open
        const llm = echoing()
        const prompt = (vendor: Vendor) => {
          if (vendor.id === "2") throw new TypeError("no name to ask for")
          return vendor.name
        }
        const throwing = Agent.make({ name: "assessor", model: "simulated", prompt, output: Output })
        const job = Enrichment.make({ ...jobOptions, agent: throwing, source: Rows.fromIterable(vendorsOf(3)) })
        const { calls, done, failed, status, unasked } = yield* session(database, llm, job)
        assert.deepStrictEqual(
          { calls, done, failed, status, unasked },
          { calls: 2, done: 2, failed: 1, status: "done", unasked: 1 }
        )
        assert.deepStrictEqual([...llm.asked.keys()].sort(), ["Vendor 1", "Vendor 3"])
        const { rows } = yield* inspect(database)
        const ends = rows.map(({ outcome }) => Option.getOrThrow(outcome))
        assert.deepStrictEqual(ends.map(Either.isRight), [true, false, true])
        const failure = Option.getOrThrow(Option.flatMap(Option.fromNullable(ends[1]), Either.getLeft))
        assert.deepStrictEqual(
          [failure.category, failure.source, failure.message],
          ["PERMANENT", "row", "no name to ask for"]
        )
      })
    )
  })
}

describe("what a run stands on", () => {
  const run = (llm: CountingLlm, runId = "r1") =>
    Enrichment.run(jobOf(3), { runId }).pipe(
      Effect.provide([Budget.layer({ maxCostUsd: 10, maxConcurrency: 2 }), llm.layer])
    )

  it.scopedLive("a run that this process works on is refused, by pid and host", () =>
    Effect.gen(function* () {
      const asked = yield* Deferred.make<void>()
      const gate = yield* Deferred.make<void>()
      const slow = echoing(() => Effect.zipRight(Deferred.succeed(asked, undefined), Deferred.await(gate)))
      const first = yield* Effect.fork(run(slow))
      yield* Deferred.await(asked)
      const llm = echoing()
      const error = yield* refusal(run(llm))
      assert.strictEqual(error.reason, "busy")
      assert.include(error.message, `process ${process.pid} on ${hostname()} `)
      yield* Deferred.succeed(gate, undefined)
      const { done, status } = yield* first
      assert.deepStrictEqual([done, status, slow.calls(), llm.calls()], [3, "done", 3, 0])
    }).pipe(Effect.provide(Memory.layer))
  )

  it.scoped("a claim that came too late leaves the winner's alone", () =>
    Effect.gen(function* () {
      const journal = yield* Effect.flatMap(backends.memory, (database) => Effect.flatMap(database, Journal.make))
      const fresh = { runId: "r1", job: "vendors", scope: "vendors", status: "running", source: "{}" } as const
      const options = { fresh: { ...fresh, createdAt: 0, chunkSize: 2 }, limits: { cap: null } }
      yield* RunRecord.open(journal, options)
      // It had looked before the other one claimed.
      const late = {
        ...journal,
        lock: () => Effect.succeed(true),
        reads: { ...journal.reads, workers: () => Effect.succeed([]) }
      }
      const error = yield* Effect.flip(Effect.scoped(Worker.claim(late, "r1")))
      assert.strictEqual(error._tag === "RunRefused" ? error.reason : error._tag, "busy")
      const workers = yield* journal.reads.workers("r1")
      assert.deepStrictEqual(
        workers.map(({ live, worker }) => [worker, live]),
        [[1, true]]
      )
    })
  )

  it.scopedLive("a run that is refused for drift keeps its cap and its settings", () =>
    Effect.gen(function* () {
      const database = yield* backends.memory
      yield* session(database, echoing(), jobOf(3))
      const { book } = yield* inspect(database)
      const other = Agent.make({ ...agentOptions, prompt: (vendor: Vendor) => `Other ${vendor.id}` })
      const source = Rows.fromIterable(vendorsOf(3))
      const drifted = Enrichment.make({ ...jobOptions, agent: other, source })
      const error = yield* Effect.flip(session(database, echoing(), drifted, { maxCalls: 77, settings: "{}x" }))
      assert.strictEqual(error._tag === "RunRefused" ? error.reason : error._tag, "drift")
      assert.deepStrictEqual((yield* inspect(database)).book, book)
    })
  )

  for (const [backend, fresh] of Object.entries(backends)) {
    it.scopedLive(`what a killed process had not given to the store is there after the resume (${backend})`, () =>
      Effect.gen(function* () {
        const database = yield* fresh
        const llm = echoing()
        yield* Effect.ignore(
          session(
            database,
            llm,
            jobOf(9),
            {},
            nth(6, ({ _tag }) => _tag === "Outcome")
          )
        )
        yield* session(database, llm, jobOf(9))
        const asked = llm.calls()
        yield* session(database, llm, jobOf(9), { runId: "r2" })
        assert.strictEqual(llm.calls(), asked)
      })
    )

    it.scopedLive(`a page that cannot be read stops the run, aborts no call and is told (${backend})`, () =>
      Effect.gen(function* () {
        const database = yield* fresh
        let reads = 0
        const flaky = Effect.map(database, (driver) => ({
          ...driver,
          reads: {
            ...driver.reads,
            pending: (runId: string, after: number, limit: number) =>
              ++reads === 2
                ? Effect.fail(new Errors.StorageError({ reason: "failed", message: "a page cannot be read" }))
                : driver.reads.pending(runId, after, limit)
          }
        }))
        const error = yield* Effect.flip(session(flaky, echoing(), jobOf(9)))
        assert.strictEqual(error.message, "a page cannot be read")
        const { book } = yield* inspect(database)
        const { done, held, reason, status, uncertain } = book ?? assert.fail("the run is gone")
        assert.deepStrictEqual([status, reason?.kind, done, held, uncertain], ["suspended", "storage", 2, 0, 0])
      })
    )
  }

  it.scopedLive("a store in memory beside a journal in a file is refused, and so are the other mixtures", () =>
    Effect.gen(function* () {
      const dir = yield* tempDir
      const memory = yield* Layer.build(Memory.layer)
      const durable = yield* Layer.build(Sqlite.layer({ filename: join(dir, "test.db") }))
      const llm = echoing()
      const mixtures = {
        store: Context.add(durable, Store.Store, Context.get(memory, Store.Store)),
        checkpointer: Context.add(durable, Checkpointer.Checkpointer, Context.get(memory, Checkpointer.Checkpointer)),
        journal: Context.add(durable, Journal.Journal, Context.get(memory, Journal.Journal))
      }
      for (const [part, mixture] of Object.entries(mixtures)) {
        const error = yield* refusal(Effect.provide(run(llm), mixture))
        assert.strictEqual(error.reason, "mixed", part)
      }
      assert.strictEqual(llm.calls(), 0)
      for (const whole of [memory, durable]) {
        const { reads } = Context.get(whole, Journal.Journal)
        assert.isUndefined(yield* reads.book("r1"))
        assert.strictEqual((yield* Effect.provide(run(llm), whole)).status, "done")
      }
    })
  )
})
