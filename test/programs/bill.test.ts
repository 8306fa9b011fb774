import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Layer, Option, Stream } from "effect"
import * as fc from "fast-check"
import { vi } from "vitest"
import * as Memory from "../../src/layers/Memory.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import * as Budget from "../../src/programs/Budgets.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import * as FailureGroups from "../../src/programs/FailureGroups.ts"
import * as Receipt from "../../src/programs/Receipt.ts"
import * as Watch from "../../src/programs/Watch.ts"
import type { Fence, Op } from "../../src/services/Book.ts"
import { Journal } from "../../src/services/Journal.ts"
import { Usd } from "../../src/services/Usd.ts"
import { tempDir } from "../laws/backends.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { bookOf, holdOf, workerOf } from "../support/records.ts"
import { idOf, jobOf, rowsOf } from "../support/scriptedJob.ts"
import { fail, good, permanent, prices, type Script, scripted, tokens, unreadable } from "../support/scriptedLlm.ts"

vi.setConfig({ testTimeout: 60_000 })
const runId = "billed"

/** 150 nano-dollars an input token, 600 an output token. */
const priceOf = (input: number, output: number) => Usd.nano(input * 150 + output * 600)

/** Runs a script over so many rows, then reads. */
const ranThen = <A, E>(script: Script, rows: number, read: Effect.Effect<A, E, Journal>) =>
  Effect.gen(function* () {
    const llm = scripted(script)
    yield* Enrichment.run(jobOf({ rows: rowsOf(rows) }), { runId }).pipe(
      Effect.provide(Budget.layer({ noCap: true, maxConcurrency: 3 })),
      Effect.provide([llm.layer, prices])
    )
    return yield* read
  }).pipe(Effect.provide(Memory.layer))

describe("A receipt", () => {
  it.live("is the sum of what was paid: by end, by model, by price, retries and repairs within", () =>
    Effect.gen(function* () {
      // Row 1 is tried twice, row 2 is repaired, row 3 stays uncertain once.
      const receipt = yield* ranThen(
        ({ nth, row }) => {
          if (idOf(row) === 1 && nth === 1) return fail({ retryAfterMs: 1 })
          if (idOf(row) === 2 && nth === 1) return unreadable(tokens(10, 5))
          if (idOf(row) === 3 && nth === 1) return fail({ charge: "uncertain", retryAfterMs: 1 })
          return good(tokens(10, 5))
        },
        5,
        Receipt.receipt(runId)
      )
      assertIncludes(receipt, { done: 5, calls: 8, retries: 2, repairs: 1 })
      assert.deepStrictEqual(receipt.settled, { calls: 6, cost: Usd.nano(6 * priceOf(10, 5)) })
      assert.deepStrictEqual(receipt.unknown, { calls: 1, cost: receipt.uncertain })
      assert.deepStrictEqual(receipt.released, { calls: 1, cost: Usd.zero })
      assert.deepStrictEqual(receipt.retried, { calls: 2, cost: Usd.nano(2 * priceOf(10, 5)) })
      assert.deepStrictEqual(receipt.repaired, { calls: 1, cost: priceOf(10, 5) })
      assert.strictEqual(receipt.spent, receipt.settled.cost)
      const [model] = receipt.models
      assertIncludes(model ?? {}, { model: "scripted", calls: 8, uncertain: receipt.uncertain })
      assert.strictEqual(model?.usage.cost, receipt.spent)
      const [price] = receipt.prices
      assert.deepStrictEqual(JSON.parse(price?.price ?? ""), {
        model: "scripted",
        from: "1970-01-01",
        input: 0.15,
        output: 0.6
      })
      assertIncludes(price ?? {}, { calls: 6, cost: receipt.spent })
    })
  )

  it.live("of one row is its calls, in the order in which they were sent, each with the provider's id", () =>
    Effect.gen(function* () {
      const calls = yield* ranThen(
        ({ nth }) => (nth === 1 ? fail({ requestId: "req-1", retryAfterMs: 1 }) : good(tokens(7, 3))),
        2,
        Receipt.rowCalls(runId, "1")
      )
      assert.deepStrictEqual(
        calls.map(({ attempt, requestId, state, usage }) => [attempt, state, usage.cost, Option.isSome(requestId)]),
        [
          [0, "released", Usd.zero, false],
          [1, "settled", priceOf(7, 3), false]
        ]
      )
      const unknown = yield* Effect.flip(ranThen(() => good(), 1, Receipt.rowCalls(runId, "99")))
      assert.include(String(unknown), 'no row with the id "99"')
    })
  )

  interface Paid {
    readonly row: number
    readonly cost: number
    readonly end: "settled" | "uncertain" | "released"
  }
  const settle = (calls: ReadonlyArray<Paid>) =>
    Effect.gen(function* () {
      const { commit } = yield* Journal
      const fence: Fence = { runId, worker: 1 }
      yield* commit({ _tag: "Create", book: bookOf(runId, { cap: null }) })
      yield* commit({ _tag: "Claim", worker: workerOf(runId), dead: [], lost: Usd.zero })
      for (const [i, { cost, end, row }] of calls.entries()) {
        const hold = { ...holdOf(runId, i + 1, 1_000, { seq: row, request: `request of ${row}` }), ...fence }
        yield* commit({ _tag: "Hold", hold })
        const common = { answer: null, requestId: `req-${row}`, reason: "", at: i }
        const usage = { ...tokens(cost, 0) }
        const close: Op =
          end === "settled"
            ? { _tag: "Settle", hold, close: { ...common, usage, cost: Usd.nano(cost), finish: "stop" } }
            : end === "uncertain"
              ? { _tag: "Uncertain", hold, ...common }
              : { _tag: "Release", hold, sent: true, reason: "", at: i }
        yield* commit(close)
      }
      return (yield* Receipt.receipt(runId)).digest
    }).pipe(Effect.provide(Memory.layer))

  it("has one digest for any order of settlement, and another one once a nano-dollar differs", () =>
    fc.assert(
      fc.asyncProperty(
        fc
          .array(
            fc.record<Paid>({
              row: fc.nat(50),
              cost: fc.integer({ min: 1, max: 900 }),
              end: fc.constantFrom("settled", "uncertain", "released")
            }),
            { minLength: 1, maxLength: 12 }
          )
          .chain((calls) => fc.tuple(fc.constant(calls), fc.shuffledSubarray(calls, { minLength: calls.length }))),
        async ([calls, shuffled]) => {
          const digest = await Effect.runPromise(settle(calls))
          assert.match(digest, /^[0-9a-f]{64}$/)
          assert.strictEqual(await Effect.runPromise(settle(shuffled)), digest)
          const [first, ...rest] = calls
          if (first?.end !== "settled") return
          assert.notStrictEqual(await Effect.runPromise(settle([{ ...first, cost: first.cost + 1 }, ...rest])), digest)
          assert.notStrictEqual(await Effect.runPromise(settle([first, ...calls])), digest)
        }
      ),
      { numRuns: 60 }
    ))
})

describe("Failures", () => {
  it.live("are grouped by kind and message, numbers and quotes aside, with what they cost and what to do", () =>
    Effect.gen(function* () {
      const groups = yield* ranThen(
        ({ row }) => {
          const id = idOf(row)
          if (id < 3)
            return fail({ reason: "bad_request", category: "PERMANENT", message: `field "f${id}" has ${id} errors` })
          if (id === 3) return fail({ reason: "context_length", category: "PERMANENT", message: "too long" })
          if (id < 8) return unreadable(tokens(10, 5))
          return good(tokens(10, 5))
        },
        20,
        FailureGroups.groups(runId)
      )
      assert.deepStrictEqual(
        groups.map(({ burnt, count, kind, reason, rows }) => [kind, reason, count, burnt, rows]),
        [
          // Each was asked twice: the first question and one repair.
          ["partial", "partial", 4, Usd.nano(8 * priceOf(10, 5)), ["4", "5", "6", "7"]],
          ["failed", "bad_request", 3, Usd.zero, ["0", "1", "2"]],
          ["failed", "context_length", 1, Usd.zero, ["3"]]
        ]
      )
      // 20 calls of 20 rows were paid: as much a row.
      assert.deepStrictEqual(
        groups.map(({ remedy }) => remedy.expectedCost),
        [Usd.zero, Usd.nano(3 * priceOf(10, 5)), priceOf(10, 5)]
      )
    })
  )

  it.live("are none where none failed", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(yield* ranThen(() => good(), 3, FailureGroups.groups(runId)), [])
      assert.lengthOf(yield* ranThen(() => permanent, 3, FailureGroups.groups(runId)), 1)
    })
  )
})

describe("A run seen from outside", () => {
  it.scopedLive("1,000 looks from another connection meet no error while it works, and end with it", () =>
    Effect.gen(function* () {
      const filename = join(yield* tempDir, "run.db")
      const llm = scripted(() => good(), Effect.sleep("3 millis"))
      const job = jobOf({ rows: rowsOf(2_000) })
      const running = Enrichment.run(job, { runId }).pipe(
        Effect.provide(Budget.layer({ noCap: true, maxConcurrency: 8 })),
        Effect.provide([llm.layer, prices, Sqlite.layer({ filename })])
      )
      const desk = yield* Layer.build(Sqlite.layer({ filename }))
      const begun = Effect.retry(Watch.look(runId), { times: 500, schedule: undefined })
      const looking = Effect.zipRight(
        Effect.eventually(Effect.zipRight(Effect.sleep("5 millis"), begun)),
        Stream.runCollect(Watch.watch(runId, { everyMs: 1 }))
      )
      const [result, looks] = yield* Effect.all([running, Effect.provide(looking, desk)], { concurrency: 2 })
      assertIncludes(result, { stopReason: "complete", done: 2_000 })
      const sights = [...looks]
      assert.isAbove(sights.length, 100)
      for (const [i, sight] of sights.entries()) {
        assert.isAtLeast(sight.done, sights[i - 1]?.done ?? 0)
        assert.isAtMost(sight.working, 8)
      }
      assertIncludes(sights.at(-1) ?? {}, { status: "done", done: 2_000, working: 0 })
      for (let i = sights.length; i < 1_000; i++) yield* Effect.provide(Watch.look(runId), desk)
    })
  )
})
