import { assert, describe, it } from "@effect/vitest"
import { Deferred, Effect, Either, Fiber } from "effect"
import { statements } from "../../src/layers/JournalSql.ts"
import type { Book, HoldRecord, Op, RowRecord, Settled, Verdict } from "../../src/services/Book.ts"
import { StorageError } from "../../src/services/Errors.ts"
import { type Driver, Journal, type JournalShape } from "../../src/services/Journal.ts"
import { Usd } from "../../src/services/Usd.ts"
import { backends, bookOf, holdOf, over, workerOf } from "./backends.ts"

const ok: Verdict = { _tag: "Ok" }
const fenced: Verdict = { _tag: "Fenced" }
const refused = (reason: Extract<Verdict, { _tag: "Refused" }>["reason"]): Verdict => ({ _tag: "Refused", reason })

const hold = (record: HoldRecord): Op => ({ _tag: "Hold", hold: record })
const settled = (cost: number): Settled => ({
  usage: { inputTokens: 3, cachedTokens: 1, cacheWriteTokens: 0, outputTokens: 2, reasoningTokens: 1 },
  cost: Usd.nano(cost),
  answer: `{"a":1}`,
  finish: "stop",
  requestId: "req",
  reason: "",
  at: 9
})
const settle = (record: HoldRecord, cost: number): Op => ({ _tag: "Settle", hold: record, close: settled(cost) })
const uncertain = (record: HoldRecord): Op => ({
  _tag: "Uncertain",
  hold: record,
  reason: "timeout",
  answer: null,
  requestId: null,
  at: 9
})
const release = (record: HoldRecord, sent: boolean): Op => ({
  _tag: "Release",
  hold: record,
  reason: "refused",
  sent,
  at: 9
})
const claim = (runId: string, worker: number, dead: ReadonlyArray<number> = []): Op => ({
  _tag: "Claim",
  worker: workerOf(runId, worker),
  dead,
  lost: Usd.zero
})
const rowOf = (runId: string, seq: number): RowRecord => ({
  runId,
  seq,
  id: `id-${seq}`,
  version: "",
  line: seq + 1,
  value: "{}",
  epoch: 0
})

/** All in one turn of the event loop, so one commit where the backend groups. */
const together = (journal: JournalShape, ops: ReadonlyArray<Op>) =>
  Effect.all(
    ops.map((op) => journal.commit(op)),
    { concurrency: "unbounded" }
  )

/** A run with `rows` rows and one live worker, 1. */
const begin = (journal: JournalShape, runId: string, parts: Partial<Book> = {}, rows = 8) =>
  together(journal, [
    { _tag: "Create", book: bookOf(runId, parts) },
    claim(runId, 1),
    {
      _tag: "Load",
      fence: { runId, worker: 1 },
      rows: Array.from({ length: rows }, (_, seq) => rowOf(runId, seq)),
      filtered: 0,
      last: true
    }
  ])

const bookIn = (journal: JournalShape, runId: string) =>
  Effect.flatMap(journal.reads.book(runId), (book) =>
    book === undefined ? Effect.dieMessage(`no book ${runId}`) : Effect.succeed(book)
  )
const money = ({ calls, held, repairs, retries, spent, uncertain }: Book) => ({
  spent: Number(spent),
  uncertain: Number(uncertain),
  held: Number(held),
  calls,
  retries,
  repairs
})

for (const backend of backends) {
  const law = <E>(title: string, test: (journal: JournalShape) => Effect.Effect<void, E, Journal>, timeout = 20_000) =>
    it.effect(title, () => Effect.provide(Effect.flatMap(Journal, test), backend.layer()), timeout)

  describe(`Journal laws on ${backend.name}`, () => {
    law("I10: order: a settle appended before a hold is in the book when the hold's commit returns", (journal) =>
      Effect.gen(function* () {
        yield* begin(journal, "run")
        const first = holdOf("run", 0, 900)
        assert.deepStrictEqual(yield* journal.commit(hold(first)), ok)
        // The hold fits only because the settle came before it.
        journal.append(settle(first, 100))
        assert.deepStrictEqual(yield* journal.commit(hold(holdOf("run", 1, 900))), ok)
        const book = yield* bookIn(journal, "run")
        assert.deepInclude(money(book), { spent: 100, held: 900, calls: 2 })
        assert.deepInclude(book, { inputTokens: 3, cachedTokens: 1, outputTokens: 2, reasoningTokens: 1 })
      })
    )

    law(
      "I10: a hold that does not fit under the cap is refused and writes nothing; one exactly at the cap goes through",
      (journal) =>
        Effect.gen(function* () {
          yield* begin(journal, "run")
          yield* journal.commit(hold(holdOf("run", 0, 400)))
          yield* journal.commit(uncertain(holdOf("run", 0, 400)))
          yield* journal.commit(hold(holdOf("run", 1, 300)))
          yield* journal.commit(settle(holdOf("run", 1, 300), 300))
          const before = yield* bookIn(journal, "run")
          assert.deepStrictEqual(yield* journal.commit(hold(holdOf("run", 2, 301))), refused("cap"))
          assert.deepStrictEqual(yield* bookIn(journal, "run"), before)
          assert.deepStrictEqual(yield* journal.commit(hold(holdOf("run", 3, 300))), ok)
          assert.deepStrictEqual(yield* journal.commit(hold(holdOf("run", 4, 1))), refused("cap"))
          const book = yield* bookIn(journal, "run")
          assert.strictEqual(book.spent + book.uncertain + book.held, 1_000)
        })
    )

    law("I10: without a cap every hold goes through", (journal) =>
      Effect.gen(function* () {
        yield* begin(journal, "run", { cap: null })
        assert.deepStrictEqual(yield* journal.commit(hold(holdOf("run", 0, 2 ** 50))), ok)
      })
    )

    law(
      "I10: max_calls refuses the call after the last one, and counts what was released unsent as no call",
      (journal) =>
        Effect.gen(function* () {
          yield* begin(journal, "run", { maxCalls: 2 })
          const [first, second, third] = yield* together(
            journal,
            [0, 1, 2].map((n) => hold(holdOf("run", n, 1)))
          )
          assert.deepStrictEqual([first, second, third], [ok, ok, refused("max_calls")])
          yield* journal.commit(release(holdOf("run", 0, 1), false))
          assert.deepStrictEqual(yield* journal.commit(hold(holdOf("run", 3, 1))), ok)
          assert.deepStrictEqual(yield* journal.commit(hold(holdOf("run", 4, 1))), refused("max_calls"))
        })
    )

    law(
      "I10: a hold released unsent gives back its money, call, retry and repair; one that was sent keeps its call",
      (journal) =>
        Effect.gen(function* () {
          yield* begin(journal, "run")
          const before = yield* bookIn(journal, "run")
          const records = [
            holdOf("run", 0, 10),
            holdOf("run", 1, 10, { attempt: 1 }),
            holdOf("run", 2, 10, { turn: 1 }),
            holdOf("run", 3, 10, { turn: 1, attempt: 2 })
          ]
          yield* together(journal, records.map(hold))
          assert.deepInclude(money(yield* bookIn(journal, "run")), { held: 40, calls: 4, retries: 2, repairs: 1 })
          yield* together(
            journal,
            records.map((record) => release(record, false))
          )
          assert.deepStrictEqual(yield* bookIn(journal, "run"), before)
          assert.deepStrictEqual(yield* journal.reads.openCalls("run"), [])
          const sent = holdOf("run", 4, 10, { attempt: 1 })
          yield* together(journal, [hold(sent), release(sent, true)])
          assert.deepInclude(money(yield* bookIn(journal, "run")), { spent: 0, held: 0, calls: 1, retries: 1 })
          const [call] = yield* journal.reads.openCalls("run")
          assert.deepInclude(
            { ...call },
            { ...sent, state: "released", cost: Usd.zero, reason: "refused", closedAt: 9 }
          )
        })
    )

    law(
      "I10: a fenced worker's operations are verdicts and write nothing, while another run's in the same group go through",
      (journal) =>
        Effect.gen(function* () {
          yield* begin(journal, "dead")
          yield* begin(journal, "other")
          const mine = holdOf("dead", 0, 100)
          yield* journal.commit(hold(mine))
          yield* journal.commit(claim("dead", 2, [1]))
          const before = yield* bookIn(journal, "dead")
          const fence = { runId: "dead", worker: 1 }
          const verdicts = yield* together(journal, [
            settle(mine, 100),
            hold(holdOf("other", 0, 60)),
            hold(holdOf("dead", 1, 1)),
            { _tag: "Limits", fence, limits: { cap: Usd.nano(9) } },
            { _tag: "RunSnapshot", fence, status: "DONE", keep: "all", at: 1 },
            { _tag: "Load", fence, rows: [rowOf("dead", 99)], filtered: 0, last: true },
            { _tag: "Status", fence, status: "done", reason: null },
            {
              _tag: "Outcome",
              fence,
              outcome: {
                runId: "dead",
                seq: 0,
                epoch: 0,
                kind: "done",
                category: "",
                key: "k",
                fallback: false,
                made: "",
                value: "{}"
              },
              facts: { storeHit: false, memoHits: 0, replays: 0, freeRepairs: 0, unasked: false, fallback: false }
            },
            settle(holdOf("other", 0, 60), 50)
          ])
          assert.deepStrictEqual(verdicts, [fenced, ok, fenced, fenced, fenced, fenced, fenced, fenced, ok])
          assert.deepStrictEqual(yield* bookIn(journal, "dead"), before)
          assert.deepStrictEqual(yield* journal.reads.checkpoints("dead"), [])
          assert.strictEqual((yield* journal.reads.pending("dead", -1, 100)).length, 8)
          assert.deepStrictEqual(
            (yield* journal.reads.openCalls("dead")).map((call) => call.state),
            ["uncertain"]
          )
          assert.deepInclude(money(yield* bookIn(journal, "other")), { spent: 50, held: 0, calls: 1 })
        })
    )

    law(
      "I10: takeover by Claim turns only the dead worker's open holds into uncertain, at their full amount",
      (journal) =>
        Effect.gen(function* () {
          yield* begin(journal, "run")
          yield* begin(journal, "run-2")
          yield* journal.commit(claim("run", 2))
          const mine = (n: number, amount: number, worker: number) => holdOf("run", n, amount, { worker })
          const open = [mine(0, 100, 1), mine(1, 20, 1), mine(0, 7, 2), mine(2, 50, 1), holdOf("run-2", 0, 5)]
          yield* together(journal, open.map(hold))
          yield* journal.commit(settle(mine(2, 50, 1), 30))
          assert.deepStrictEqual(yield* journal.commit(claim("run", 3, [1])), ok)
          assert.deepInclude(money(yield* bookIn(journal, "run")), { spent: 30, uncertain: 120, held: 7, calls: 4 })
          assert.deepInclude(money(yield* bookIn(journal, "run-2")), { uncertain: 0, held: 5 })
          const calls = yield* journal.reads.openCalls("run")
          const states = calls.map(({ cost, n, reason, state, worker }) => `${worker}/${n} ${state} ${cost} ${reason}`)
          assert.deepStrictEqual(states.sort(), [
            "1/0 uncertain 100 crash",
            "1/1 uncertain 20 crash",
            "1/2 settled 30 "
          ])
          const live = (yield* journal.reads.workers("run")).filter((worker) => worker.live)
          assert.deepStrictEqual(
            live.map((worker) => worker.worker),
            [2, 3]
          )
          assert.deepStrictEqual(yield* journal.commit(settle(mine(0, 7, 2), 7)), ok)
        })
    )

    law("a live worker is known with what it said of itself last, and nothing else of it changes", (journal) =>
      Effect.gen(function* () {
        yield* begin(journal, "run")
        const fence = { runId: "run", worker: 1 }
        const [before] = yield* journal.reads.workers("run")
        assert.isNull(before?.sign)
        for (const [at, sign] of [
          [8, { phase: "cooling", allowed: 3 }],
          [9, null],
          [10, { phase: "provider_down", allowed: 1 }]
        ] as const) {
          assert.deepStrictEqual(yield* journal.commit({ _tag: "Beat", fence, at, sign }), ok)
          assert.deepEqual(yield* journal.reads.workers("run"), [{ ...before, beatAt: at, sign }])
        }
      })
    )

    law("I10: of two claims of one worker number at once, one takes the run and the other is refused", (journal) =>
      Effect.gen(function* () {
        yield* begin(journal, "run")
        yield* journal.commit(hold(holdOf("run", 0, 100)))
        assert.deepStrictEqual(yield* together(journal, [claim("run", 2, [1]), claim("run", 2, [1])]), [
          ok,
          refused("claimed")
        ])
        assert.deepInclude(money(yield* bookIn(journal, "run")), { uncertain: 100, held: 0 })
        assert.deepStrictEqual(yield* journal.commit(claim("none", 1)), refused("claimed"))
      })
    )

    law("I10: what a dead worker appended just before a Claim, in the same group, counts once", (journal) =>
      Effect.gen(function* () {
        yield* begin(journal, "run")
        yield* together(journal, [hold(holdOf("run", 0, 100)), hold(holdOf("run", 1, 50))])
        const verdicts = yield* together(journal, [
          settle(holdOf("run", 0, 100), 80),
          hold(holdOf("run", 2, 7)),
          claim("run", 2, [1]),
          settle(holdOf("run", 1, 50), 50)
        ])
        assert.deepStrictEqual(verdicts, [ok, ok, ok, fenced])
        assert.deepInclude(money(yield* bookIn(journal, "run")), { spent: 80, uncertain: 57, held: 0, calls: 3 })
        // Nothing is left open: a second takeover finds no hold.
        assert.deepStrictEqual(yield* journal.commit(claim("run", 3, [1, 2])), ok)
        assert.deepInclude(money(yield* bookIn(journal, "run")), { spent: 80, uncertain: 57, held: 0 })
      })
    )

    law("I10: the call table is append-only: a closed call stays as it was, whatever follows", (journal) =>
      Effect.gen(function* () {
        yield* begin(journal, "run")
        const records = [0, 1, 2].map((n) => holdOf("run", n, 10))
        yield* together(journal, records.map(hold))
        yield* together(journal, [
          settle(holdOf("run", 0, 10), 4),
          uncertain(holdOf("run", 1, 10)),
          release(holdOf("run", 2, 10), true)
        ])
        const closed = yield* journal.reads.openCalls("run")
        assert.strictEqual(closed.length, 3)
        yield* journal.commit(hold(holdOf("run", 3, 10)))
        yield* journal.commit(claim("run", 2, [1]))
        const fence = { runId: "run", worker: 2 }
        yield* together(journal, [
          { _tag: "RunSnapshot", fence, status: "RUNNING", keep: 1, at: 1 },
          { _tag: "DropCheckpoints", id: "run" },
          { _tag: "Limits", fence, limits: { cap: Usd.nano(5) } },
          { _tag: "Quit", fence }
        ])
        const after = yield* journal.reads.openCalls("run")
        assert.deepStrictEqual(after.slice(0, 3), closed)
        assert.strictEqual(after.length, 4)
      })
    )

    law(
      "I10: concurrent charges and holds serialise: of 200 holds of 7 at once under a cap of 1,000 just 142 go through",
      (journal) =>
        Effect.gen(function* () {
          yield* begin(journal, "run")
          const one = (n: number) =>
            Effect.gen(function* () {
              const record = holdOf("run", n, 7)
              const verdict = yield* journal.commit(hold(record))
              const book = yield* bookIn(journal, "run")
              assert.isAtMost(book.spent + book.uncertain + book.held, 1_000)
              if (verdict._tag === "Ok") journal.append(settle(record, 7))
              return verdict
            })
          const verdicts = yield* Effect.forEach(
            Array.from({ length: 200 }, (_, n) => n),
            one,
            {
              concurrency: "unbounded"
            }
          )
          yield* journal.flush
          assert.strictEqual(verdicts.filter((verdict) => verdict._tag === "Ok").length, 142)
          assert.deepInclude(money(yield* bookIn(journal, "run")), { spent: 994, held: 0, calls: 142 })
        })
    )
  })

  // ---- after a failed commit

  /** A driver that fails when told to, once; `writes` counts what reached the backend. */
  const flaky = (driver: Driver) => {
    const state = { fail: false, writes: 0 }
    const transact: Driver["transact"] = (needs, decide) =>
      Effect.suspend(() => {
        state.writes++
        if (!state.fail) return driver.transact(needs, decide)
        state.fail = false
        return Effect.fail(new StorageError({ reason: "full", message: "no space left" }))
      })
    return { state, driver: { ...driver, transact } }
  }

  describe(`A broken journal on ${backend.name}`, () => {
    it.scoped(
      "I10: after a failed commit the journal stays broken: every later commit fails and nothing later is written",
      () =>
        Effect.gen(function* () {
          const { driver, state } = flaky(yield* backend.driver())
          const test = Effect.gen(function* () {
            const journal = yield* Journal
            yield* begin(journal, "run")
            yield* journal.commit(hold(holdOf("run", 0, 10)))
            const before = yield* bookIn(journal, "run")
            const watching = yield* Effect.fork(Effect.flip(journal.broken))
            state.fail = true
            // Unawaited, in the group that fails.
            journal.append({ _tag: "Put", entries: [["lost", "1"]], replace: false })
            const first = yield* Effect.flip(journal.commit(settle(holdOf("run", 0, 10), 10)))
            assert.strictEqual(first.reason, "full")
            const { writes } = state
            journal.append({ _tag: "Put", entries: [["later", "1"]], replace: false })
            const later = [
              yield* Effect.flip(journal.commit(hold(holdOf("run", 1, 10)))),
              yield* Effect.flip(journal.commit({ _tag: "Barrier" })),
              yield* Effect.flip(journal.flush),
              yield* Fiber.join(watching)
            ]
            for (const error of later) assert.strictEqual(error, first)
            assert.strictEqual(state.writes, writes)
            assert.strictEqual((yield* driver.reads.values(["lost", "later"])).size, 0)
            assert.deepStrictEqual(yield* bookIn(journal, "run"), before)
          })
          yield* Effect.provide(test, over(Effect.succeed(driver)))
        })
    )

    // A backend that commits one by one has no commit under way.
    if (backend.groups)
      it.scoped("I10: what is appended while the failing commit is under way is not written either", () =>
        Effect.gen(function* () {
          const gate = yield* Deferred.make<void>()
          const inner = yield* backend.driver()
          let failing = false
          const transact: Driver["transact"] = (needs, decide) =>
            failing
              ? Effect.zipRight(Deferred.await(gate), new StorageError({ reason: "full", message: "no space left" }))
              : inner.transact(needs, decide)
          const test = Effect.gen(function* () {
            const journal = yield* Journal
            yield* begin(journal, "run")
            failing = true
            const first = yield* Effect.fork(Effect.either(journal.commit(hold(holdOf("run", 0, 10)))))
            yield* Effect.promise(() => new Promise((resolve) => setTimeout(resolve, 20)))
            const second = yield* Effect.fork(Effect.either(journal.commit(hold(holdOf("run", 1, 10)))))
            yield* Effect.yieldNow()
            failing = false
            yield* Deferred.succeed(gate, undefined)
            assert.isTrue(Either.isLeft(yield* first))
            assert.isTrue(Either.isLeft(yield* second))
            assert.deepInclude(money(yield* bookIn(journal, "run")), { held: 0, calls: 0 })
          })
          yield* Effect.provide(test, over(Effect.succeed({ ...inner, transact })))
        })
      )

    it.scoped("I10: a defect in a commit is a typed StorageError, and the journal stays broken", () =>
      Effect.gen(function* () {
        const test = Effect.gen(function* () {
          const journal = yield* Journal
          yield* begin(journal, "run")
          // More than is held: the book would go below zero.
          const error = yield* Effect.flip(journal.commit(settle(holdOf("run", 5, 10), 10)))
          assert.strictEqual(error.reason, "broken")
          assert.strictEqual(yield* Effect.flip(journal.flush), error)
          assert.deepInclude(money(yield* bookIn(journal, "run")), { spent: 0, held: 0, calls: 0 })
        })
        yield* Effect.provide(test, backend.layer())
      })
    )
  })
}

it("I10: no statement changes or deletes a call: the table is append-only", () => {
  for (const text of Object.values(statements)) assert.notMatch(text, /(update|delete from|replace into)\s+call\b/i)
})
