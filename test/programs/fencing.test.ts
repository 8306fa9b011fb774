import { hostname } from "node:os"
import { assert, describe, it } from "@effect/vitest"
import { Deferred, Effect, Exit, Fiber, Layer, Scope, TestClock } from "effect"
import { Budget, Enrichment, Errors, Journal, Usd } from "../../src/index.ts"
import type { Op } from "../../src/services/Book.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { backends, type Database, processOn } from "../support/mortalProcess.ts"
import { jobOf, rowsOf } from "../support/scriptedJob.ts"
import { good, prices, type Script, scripted, tokens } from "../support/scriptedLlm.ts"

const job = jobOf({ rows: rowsOf(8), chunkSize: 2 })

const session = (database: Database, script: Script, maxConcurrency = 2) =>
  Enrichment.run(job, { runId: "r1" }).pipe(
    Effect.provide([Budget.layer({ maxCostUsd: 10, maxConcurrency }), scripted(script).layer, prices]),
    Effect.provide(processOn(database))
  )

const read = <A>(database: Database, use: (journal: Journal.JournalShape) => Effect.Effect<A, Errors.StorageError>) =>
  Effect.scoped(Effect.flatMap(Effect.flatMap(database, Journal.make), use))
const bookOf = (database: Database) =>
  Effect.map(
    read(database, ({ reads }) => reads.book("r1")),
    (book) => book ?? assert.fail("there is no book")
  )
const callsOf = (database: Database) => read(database, ({ reads }) => reads.calls("r1", { worker: 0, n: 0 }, 1_000))

/** Another process takes the run over, though the first one lives: as where its lock was deleted or never held. */
const takeOver = (database: Database) =>
  read(database, (journal) => {
    const worker = { runId: "r1", worker: 2, live: true, host: "other", pid: 1, startedAt: 0, beatAt: 0, sign: null }
    return journal.commit({ _tag: "Claim", worker, dead: [1], lost: Usd.zero })
  })

/** A session whose first two calls wait for the gate, and the instant when both are under way. */
const gated = (database: Database, answer: Script = () => good()) =>
  Effect.gen(function* () {
    const gate = yield* Deferred.make<void>()
    const both = yield* Deferred.make<void>()
    let asked = 0
    const script: Script = (call) =>
      Effect.suspend(() => {
        asked++
        return asked === 2 ? Deferred.succeed(both, undefined) : Effect.void
      }).pipe(Effect.zipRight(Deferred.await(gate)), Effect.zipRight(answer(call)))
    const stale = yield* Effect.fork(Effect.exit(session(database, script)))
    yield* Deferred.await(both)
    return { gate, stale, asked: () => asked }
  })

const isBusy = <A>(exit: Exit.Exit<A, unknown>): boolean =>
  Exit.match(exit, {
    onSuccess: () => false,
    onFailure: (cause) =>
      cause._tag === "Fail" && cause.error instanceof Errors.RunRefused && cause.error.reason === "busy"
  })

for (const [backend, open] of Object.entries(backends)) {
  describe(`fencing (${backend})`, () => {
    it.scopedLive(
      "a stale owner stops at once, writes nothing, and its late answers lower their own calls' charge",
      () =>
        Effect.gen(function* () {
          const database = yield* open
          const { asked, gate, stale } = yield* gated(database)
          assert.deepStrictEqual(yield* takeOver(database), { _tag: "Ok" })
          const taken = yield* bookOf(database)
          assertIncludes(taken, { held: 0, spent: 0, done: 0 })
          const [first] = yield* callsOf(database)
          // Two calls, each at its hold.
          assert.deepStrictEqual([first?.state, taken.uncertain], ["uncertain", 2 * (first?.cost ?? 0)])

          yield* Deferred.succeed(gate, undefined)
          assert.isTrue(isBusy(yield* Fiber.join(stale)))
          assert.strictEqual(asked(), 2)
          const book = yield* bookOf(database)
          // 10 tokens at 150 and 5 at 600 a call; no outcome of the stale owner.
          assertIncludes(book, { held: 0, uncertain: 0, spent: 2 * 4_500, done: 0, commitSeq: 0, calls: 2 })
          const calls = yield* callsOf(database)
          assert.deepStrictEqual(
            calls.map(({ answer, cost, reason, state }) => [state, cost, reason, answer !== null]),
            [
              ["settled", 4_500, "late", true],
              ["settled", 4_500, "late", true]
            ]
          )
        })
    )

    it.scopedLive("a late answer is in the book: the next resume asks its turn no more", () =>
      Effect.gen(function* () {
        const database = yield* open
        const { gate, stale } = yield* gated(database)
        yield* takeOver(database)
        yield* Deferred.succeed(gate, undefined)
        yield* Fiber.join(stale)
        const next = scripted(() => good())
        const end = yield* Enrichment.run(job, { runId: "r1" }).pipe(
          Effect.provide([Budget.layer({ maxCostUsd: 10, maxConcurrency: 2 }), next.layer, prices]),
          Effect.provide(processOn(database))
        )
        assertIncludes(end, { status: "done", done: 8, calls: 8, spent: 8 * 4_500, uncertain: 0, held: 0 })
        assert.strictEqual(next.counts.calls, 6)
      })
    )

    it.scopedLive("a late answer that costs more than its call counts at changes nothing", () =>
      Effect.gen(function* () {
        const database = yield* open
        const { gate, stale } = yield* gated(database, () => good(tokens(10, 1_000_000)))
        yield* takeOver(database)
        const before = yield* bookOf(database)
        yield* Deferred.succeed(gate, undefined)
        yield* Fiber.join(stale)
        const after = yield* bookOf(database)
        assertIncludes(after, { spent: 0, uncertain: before.uncertain })
      })
    )

    it.scopedLive("no operation of a fenced worker changes anything", () =>
      Effect.gen(function* () {
        const database = yield* open
        yield* session(database, () => good())
        const before = yield* bookOf(database)
        const fence = { runId: "r1", worker: 1 }
        const ops: ReadonlyArray<Op> = [
          { _tag: "Load", fence, rows: [], filtered: 7, last: true },
          { _tag: "Beat", fence, at: 9, sign: null },
          { _tag: "Unload", fence, discard: true },
          { _tag: "Limits", fence, limits: { cap: null } },
          { _tag: "Status", fence, status: "loading", reason: null },
          { _tag: "Reopen", fence, rows: [] },
          { _tag: "Kept", fence, rows: 3 },
          { _tag: "RunSnapshot", fence, status: "RUNNING", keep: 1, at: 9 }
        ]
        for (const op of ops) {
          const verdict = yield* read(database, (journal) => journal.commit(op))
          assert.deepStrictEqual(verdict, { _tag: "Fenced" }, op._tag)
        }
        assert.deepStrictEqual(yield* bookOf(database), before)
      })
    )

    it.scopedLive("what is learned of a call twice, in one commit or in two, counts once", () =>
      Effect.gen(function* () {
        const database = yield* open
        const { gate, stale } = yield* gated(database)
        yield* takeOver(database)
        const before = yield* bookOf(database)
        const [call] = yield* callsOf(database)
        const correct: Op = {
          _tag: "Correct",
          correction: {
            runId: "r1",
            worker: 1,
            n: call?.n ?? 0,
            source: "report",
            cost: Usd.nano(7),
            answer: null,
            note: "",
            at: 9,
            ...tokens(1, 1)
          }
        }
        yield* read(database, (journal) => {
          journal.append(correct)
          journal.append(correct)
          return Effect.flatMap(journal.flush, () => journal.commit(correct))
        })
        assertIncludes(yield* bookOf(database), {
          spent: 7,
          uncertain: before.uncertain - (call?.cost ?? 0),
          inputTokens: 1
        })
        yield* Deferred.succeed(gate, undefined)
        yield* Fiber.join(stale)
      })
    )

    it.scopedLive("one lock a run: a second holder is refused until the first lets go, and another run is free", () =>
      Effect.gen(function* () {
        const database = yield* open
        const life = yield* Scope.make()
        const lock = (runId: string) =>
          Effect.flatMap(Effect.flatMap(database, Journal.make), ({ lock }) => lock(runId))
        assert.isTrue(yield* Scope.extend(lock("r1"), life))
        assert.isFalse(yield* Effect.scoped(lock("r1")))
        assert.isTrue(yield* Effect.scoped(lock("r2")))
        yield* Scope.close(life, Exit.void)
        assert.isTrue(yield* Effect.scoped(lock("r1")))
      })
    )

    it.scopedLive("who finds the lock taken is told by whom: host, process, worker, age", () =>
      Effect.gen(function* () {
        const database = yield* open
        const { gate, stale } = yield* gated(database)
        const error = yield* Effect.flip(session(database, () => good()))
        assert.match(
          error.message,
          new RegExp(
            `^run r1 is being worked on by process ${process.pid} on ${hostname()} \\(worker 1, started \\d+ (s|min) ago, last sign of life \\d+ s ago\\)`
          )
        )
        yield* Deferred.succeed(gate, undefined)
        const end = yield* Fiber.join(stale)
        assert.isTrue(Exit.isSuccess(end))
      })
    )
  })
}

describe("a worker that has nothing to write", () => {
  it.scoped("learns by its next sign of life that it was taken over", () =>
    Effect.gen(function* () {
      const database = yield* backends.memory
      const gate = yield* Deferred.make<void>()
      const asked = yield* Deferred.make<void>()
      const slow = scripted(() =>
        Deferred.succeed(asked, undefined).pipe(Effect.zipRight(Deferred.await(gate)), Effect.zipRight(good()))
      )
      const handle = yield* Enrichment.start(job, { runId: "r1" }).pipe(
        Effect.provide([Budget.layer({ maxCostUsd: 10, maxConcurrency: 2 }), slow.layer, prices]),
        Effect.provide(yield* Layer.build(processOn(database)))
      )
      yield* Deferred.await(asked)
      yield* takeOver(database)
      assert.strictEqual((yield* handle.progress).phase, "running")
      yield* TestClock.adjust("11 seconds")
      assert.strictEqual((yield* handle.progress).phase, "stopping")
      yield* Deferred.succeed(gate, undefined)
      assert.isTrue(isBusy(yield* Effect.exit(handle.await)))
      assert.strictEqual(slow.counts.calls, 2)
    })
  )
})
