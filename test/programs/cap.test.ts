import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { Cause, Chunk, Effect, Exit, Layer, Option, Stream } from "effect"
import * as fc from "fast-check"
import { vi } from "vitest"
import * as Memory from "../../src/layers/Memory.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import * as Budget from "../../src/programs/Budgets.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import { RunRefused } from "../../src/services/Errors.ts"
import * as LLM from "../../src/services/LLM.ts"
import * as Price from "../../src/services/Price.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { idOf, jobOf, type Row, rowsOf, type ScriptedJobOptions } from "../support/scriptedJob.ts"
import { fail, good, prices, type Scripted, scripted, silent, tokens, unreadable } from "../support/scriptedLlm.ts"

const runId = "capped"
const NANO = 1_000_000_000

type Bundle = ReturnType<typeof Sqlite.layer>
const bundles: ReadonlyArray<
  readonly [string, <A, E>(use: (bundle: Bundle) => Effect.Effect<A, E>) => Effect.Effect<A, E>]
> = [
  ["memory", (use) => Effect.suspend(() => use(Memory.layer))],
  [
    "SQLite",
    (use) =>
      Effect.acquireUseRelease(
        Effect.sync(() => mkdtempSync(join(tmpdir(), "longhaul-cap-"))),
        (dir) => use(Sqlite.layer({ filename: join(dir, "run.db") })),
        (dir) => Effect.sync(() => rmSync(dir, { recursive: true }))
      )
  ]
]

/** Rows of very different lengths, so that their holds differ. */
const varied = (n: number) => rowsOf(n, (id) => `row ${id} ${"x".repeat((id * 37) % 400)}`)
/** Output between a hundredth and all of the limit, so that the bill is far from the hold, by row. */
const bill = (row: string, limit: number) => tokens(20 + row.length, 1 + ((idOf(row) * 61) % limit))

const run = (
  llm: Scripted,
  job: ReturnType<typeof jobOf>,
  budget: Budget.BudgetOptions,
  options: Enrichment.RunOptions = {}
) =>
  Enrichment.run(job, { runId, ...options }).pipe(
    Effect.provide(Budget.layer(budget)),
    Effect.provide([llm.layer, prices])
  )

const priceRow = Effect.map(Effect.provide(Price.Price, prices), (rows) =>
  Option.getOrThrow(Price.find(rows, "scripted", 0))
)

/** What the first pending row's call would have to set aside. */
const oldestHold = (job: ReturnType<typeof jobOf>, rows: ReadonlyArray<Row>) =>
  Effect.gen(function* () {
    const price = yield* priceRow
    const results = yield* Stream.runCollect(Enrichment.results(runId, job.agent.output))
    const seq = Chunk.toReadonlyArray(results).find((row) => Option.isNone(row.outcome))?.seq ?? -1
    const row = rows[seq]
    return row === undefined ? yield* Effect.die("no row is pending") : Price.hold(price, job.agent.request(row))
  })

const noFailures = (job: ReturnType<typeof jobOf>) =>
  Effect.gen(function* () {
    const results = yield* Stream.runCollect(Enrichment.results(runId, job.agent.output))
    for (const row of results) {
      assert.isTrue(Option.match(row.outcome, { onNone: () => true, onSome: (outcome) => outcome._tag === "Right" }))
    }
  })

/** Some turns of the event loop, so that calls overlap. */
const overlap = Effect.promise(() => new Promise<void>((resume) => setImmediate(() => setImmediate(resume))))

// Room for a busy machine.
vi.setConfig({ testTimeout: 60_000 })

describe("The cap", () => {
  for (const [name, withBundle] of bundles) {
    for (const maxConcurrency of [1, 8, 64]) {
      it.live(
        `I27: the cap reached in mid-run makes no row a Failure, aborts no call in flight, and leaves held = 0 (${name}, concurrency ${maxConcurrency})`,
        () =>
          withBundle((bundle) =>
            Effect.gen(function* () {
              const rows = varied(200)
              const llm = scripted(({ row }) => good(bill(row, 100)), overlap)
              const job = jobOf({ rows })
              const cap = 0.004
              const result = yield* run(llm, job, { maxCostUsd: cap, maxConcurrency })
              assertIncludes(result, { status: "suspended", stopReason: "suspended", failed: 0, partial: 0, held: 0 })
              assert.strictEqual(result.reason?.kind, "budget")
              assert.isAbove(result.done, 5)
              assert.isAbove(result.pending, 5)
              // I10: the book never passes the cap, nor does the provider's own bill.
              const counted = result.spent + result.uncertain
              assert.isAtMost(counted, cap * NANO)
              assert.strictEqual(llm.counts.bill, counted)
              // Nothing was refused early: the oldest row that is left does not fit.
              assert.isBelow(cap * NANO - counted, yield* oldestHold(job, rows))
              yield* noFailures(job)
              assert.strictEqual(llm.counts.aborted, 0)
              assert.strictEqual(llm.counts.calls, result.done)
              assert.isAtMost(llm.counts.most, maxConcurrency)
              if (maxConcurrency > 1) assert.isAbove(llm.counts.most, 1)

              const resumed = yield* run(llm, job, { maxCostUsd: 1 })
              assertIncludes(resumed, {
                status: "done",
                stopReason: "complete",
                done: 200,
                failed: 0,
                held: 0,
                calls: 200
              })
              assert.strictEqual(llm.counts.calls, 200)
              assert.strictEqual(resumed.spent, llm.counts.bill)
            }).pipe(Effect.provide(bundle), Effect.orDie)
          ),
        30_000
      )
    }
  }

  it.live(
    "I10: at every call the provider's bill and what is in flight stay under the cap, for any costs and concurrency",
    () =>
      Effect.promise(() =>
        fc.assert(
          fc.asyncProperty(
            fc.record({
              cap: fc.integer({ min: 0, max: 2_000_000 }),
              maxConcurrency: fc.integer({ min: 1, max: 9 }),
              fates: fc.array(
                fc.tuple(fc.constantFrom("good", "good", "lost", "silent", "free"), fc.integer({ min: 1, max: 50 })),
                {
                  minLength: 1,
                  maxLength: 30
                }
              )
            }),
            ({ cap, fates, maxConcurrency }) =>
              Effect.gen(function* () {
                let over = 0
                const llm = scripted(
                  ({ bill, n, row }) =>
                    Effect.suspend(() => {
                      const [fate, output] = fates[n % fates.length] ?? ["good", 1]
                      const usage = tokens(row.length, output)
                      // What a lost or a silent answer cost only the provider knows.
                      if (fate === "lost" || fate === "silent") bill(usage)
                      if (llm.counts.bill > cap) over++
                      if (fate === "lost")
                        return fail({ charge: "uncertain", reason: "timeout", category: "PERMANENT" })
                      if (fate === "free") return fail({ charge: "none", category: "PERMANENT", reason: "bad_request" })
                      return fate === "silent" ? silent : good(usage)
                    }),
                  overlap
                )
                const result = yield* run(llm, jobOf({ rows: varied(25), maxOutputTokens: 50 }), {
                  maxCostUsd: cap / NANO,
                  maxConcurrency
                })
                assert.strictEqual(over, 0)
                assert.isAtMost(llm.counts.bill, result.spent + result.uncertain)
                assert.isAtMost(result.spent + result.uncertain, cap)
                assert.strictEqual(result.held, 0)
                assert.strictEqual(result.done + result.failed + result.pending, 25)
                assert.isAtMost(llm.counts.most, maxConcurrency)
              }).pipe(Effect.provide(Memory.layer), Effect.orDie, Effect.runPromise)
          ),
          { numRuns: 60 }
        )
      ),
    60_000
  )

  it.effect("I27: a cap of nothing sends nothing and fails no row", () =>
    Effect.gen(function* () {
      const llm = scripted(() => good())
      const result = yield* run(llm, jobOf({ rows: varied(10) }), { maxCostUsd: 0 })
      assertIncludes(result, { status: "suspended", calls: 0, done: 0, failed: 0, pending: 10, spent: 0, held: 0 })
      assert.strictEqual(result.reason?.kind, "budget")
      assert.strictEqual(llm.counts.calls, 0)
    }).pipe(Effect.provide(Memory.layer))
  )

  it.effect("I27: a cap of exactly the first row's hold sends that row: the cap is inclusive", () =>
    Effect.gen(function* () {
      const rows = varied(3)
      const job = jobOf({ rows })
      const price = yield* priceRow
      const holds = rows.map((row) => Price.hold(price, job.agent.request(row)))
      const full = scripted(({ request, row }) => good(tokens(row.length, request.maxOutputTokens)))
      const one = yield* run(full, job, { maxCostUsd: (holds[0] ?? 0) / NANO, maxConcurrency: 1 })
      assertIncludes(one, { done: 1, calls: 1 })
      const none = yield* run(full, job, { maxCostUsd: ((holds[0] ?? 0) - 1) / NANO }, { runId: "less", retry: "none" })
      // The first row's result is in the store, the second row's hold is greater.
      assertIncludes(none, { calls: 0, storeHits: 1 })
    }).pipe(Effect.provide(Memory.layer))
  )

  const refusal = <A, E>(exit: Exit.Exit<A, E>) =>
    Exit.isFailure(exit) ? Option.getOrUndefined(Cause.failureOption(exit.cause)) : undefined

  it.effect("I10: without a cap and without an explicit 'no cap' a run is refused, and no call is sent", () =>
    Effect.gen(function* () {
      const llm = scripted(() => good())
      const job = jobOf({ rows: varied(3) })
      const error = refusal(yield* Effect.exit(run(llm, job, {})))
      assert.instanceOf(error, RunRefused)
      assert.strictEqual(error instanceof RunRefused ? error.reason : "", "no_cap")
      assert.strictEqual(llm.counts.calls, 0)
      assert.lengthOf(yield* Enrichment.runs, 0)
      assertIncludes(yield* run(llm, job, { noCap: true }), { status: "done", done: 3, cap: null })
    }).pipe(Effect.provide(Memory.layer))
  )

  it.effect("I10: a model without a price is refused under a cap before any call, and runs without one", () =>
    Effect.gen(function* () {
      const llm = scripted(() => good())
      const job = jobOf({ rows: varied(3), model: "nobody-knows" })
      const error = refusal(yield* Effect.exit(run(llm, job, { maxCostUsd: 1 })))
      assert.strictEqual(error instanceof RunRefused ? error.reason : "", "unpriced")
      assert.strictEqual(llm.counts.calls, 0)
      assert.lengthOf(yield* Enrichment.runs, 0)
      assertIncludes(yield* run(llm, job, { noCap: true }), { status: "done", done: 3, spent: 0 })
    }).pipe(Effect.provide(Memory.layer))
  )

  it.effect("I10: a bill above its hold is recorded in full and stops the run as a breach; a resume goes on", () =>
    Effect.gen(function* () {
      // More input than the request has bytes: a provider that counts otherwise.
      const llm = scripted(({ n }) => good(n === 3 ? tokens(4_000_000, 5) : tokens(10, 5)))
      const job = jobOf({ rows: varied(20) })
      const result = yield* run(llm, job, { maxCostUsd: 0.1, maxConcurrency: 1 })
      assertIncludes(result, { status: "suspended", done: 3, failed: 0, held: 0 })
      assert.strictEqual(result.reason?.kind, "breach")
      assert.strictEqual(result.spent, llm.counts.bill)
      assert.isAbove(result.spent, 0.1 * NANO)
      assert.strictEqual(llm.counts.calls, 3)
      const again = yield* run(llm, job, {})
      assertIncludes(again, { status: "suspended", done: 3 })
      assert.strictEqual(again.reason?.kind, "budget")
      assert.strictEqual(llm.counts.calls, 3)
      assertIncludes(yield* run(llm, job, { maxCostUsd: 2 }), { status: "done", done: 20, failed: 0 })
    }).pipe(Effect.provide(Memory.layer))
  )

  it.effect(
    "I10: an output above its limit stops the run though it cost less than its hold: no hold can be trusted",
    () =>
      Effect.gen(function* () {
        const llm = scripted(({ n }) => good(n === 3 ? tokens(1, 101) : tokens(10, 5)))
        const result = yield* run(llm, jobOf({ rows: varied(20) }), { maxCostUsd: 1, maxConcurrency: 1 })
        assertIncludes(result, { status: "suspended", done: 3, failed: 0, held: 0, spent: llm.counts.bill })
        assert.strictEqual(result.reason?.kind, "breach")
        assert.include(result.reason?.message ?? "", "101 output tokens")
      }).pipe(Effect.provide(Memory.layer))
  )

  for (const [what, usage] of [
    ["no usage", undefined],
    ["a usage that is no number", tokens(Number.NaN, 5)],
    ["more cached tokens than input", { ...tokens(10, 5), cachedTokens: 11 }],
    ["reasoning tokens that are no number", { ...tokens(10, 5), reasoningTokens: Number.NaN }],
    ["more tokens than a cost could be exact for", tokens(2e9, 5)]
  ] as const) {
    it.effect(`I10: an answer with ${what} counts at its hold as uncertain, and its row is done`, () =>
      Effect.gen(function* () {
        const rows = varied(6)
        const llm = scripted(() => (usage === undefined ? silent : good(usage)))
        const job = jobOf({ rows })
        const result = yield* run(llm, job, { maxCostUsd: 1 })
        const price = yield* priceRow
        const holds = rows.reduce((sum, row) => sum + Price.hold(price, job.agent.request(row)), 0)
        assertIncludes(result, { status: "done", done: 6, failed: 0, spent: 0, uncertain: holds, held: 0, calls: 6 })
      }).pipe(Effect.provide(Memory.layer))
    )
  }

  it.effect("I10: uncertain money counts against the cap, so that lost answers stop a run too", () =>
    Effect.gen(function* () {
      const llm = scripted(() => silent)
      const rows = varied(200)
      const job = jobOf({ rows })
      const result = yield* run(llm, job, { maxCostUsd: 0.002 })
      assertIncludes(result, { status: "suspended", failed: 0, spent: 0, held: 0 })
      assert.strictEqual(result.reason?.kind, "budget")
      assert.isAtMost(result.uncertain, 0.002 * NANO)
      assert.isBelow(0.002 * NANO - result.uncertain, yield* oldestHold(job, rows))
    }).pipe(Effect.provide(Memory.layer))
  )

  for (const maxConcurrency of [1, 8, 64]) {
    it.live(
      `I27: a cap reached where rows need repairs fails none and pays for no first answer twice (concurrency ${maxConcurrency})`,
      () =>
        Effect.gen(function* () {
          const options: ScriptedJobOptions = { rows: varied(80), maxRepairs: 2 }
          // Every third row needs one repair.
          const llm = scripted(
            ({ nth, row }) => (idOf(row) % 3 === 0 && nth === 1 ? unreadable(bill(row, 100)) : good(bill(row, 100))),
            overlap
          )
          const job = jobOf(options)
          let cap = 0.001
          let result = yield* run(llm, job, { maxCostUsd: cap, maxConcurrency })
          let stops = 0
          while (result.status !== "done") {
            stops++
            assertIncludes(result, { status: "suspended", failed: 0, partial: 0, held: 0 })
            assert.strictEqual(result.reason?.kind, "budget")
            assert.isAtMost(llm.counts.bill, cap * NANO)
            assert.strictEqual(result.spent, llm.counts.bill)
            yield* noFailures(job)
            cap += 0.0007
            result = yield* run(llm, job, { maxCostUsd: cap, maxConcurrency })
          }
          assert.isAbove(stops, 2)
          assertIncludes(result, { done: 80, failed: 0, partial: 0, repairs: 27, calls: 107 })
          assert.strictEqual(llm.counts.calls, 107)
          assert.strictEqual(llm.counts.aborted, 0)
        }).pipe(Effect.provide(Memory.layer)),
      30_000
    )
  }

  it.effect("I27: a limit of calls stops the run as a cap does, and counts every call that was sent", () =>
    Effect.gen(function* () {
      const llm = scripted(({ row, nth }) => (idOf(row) === 2 && nth === 1 ? unreadable() : good()))
      const job = jobOf({ rows: varied(20) })
      const result = yield* run(llm, job, { maxCostUsd: 1, maxCalls: 7 })
      assertIncludes(result, { status: "suspended", calls: 7, failed: 0, held: 0 })
      assert.strictEqual(result.reason?.kind, "max_calls")
      assert.strictEqual(llm.counts.calls, 7)
      assertIncludes(yield* run(llm, job, { maxCalls: 100 }), { status: "done", done: 20, calls: 21 })
    }).pipe(Effect.provide(Memory.layer))
  )

  it.effect(
    "I10: a provider is not even called before its hold stands, as it may begin its request when it is called",
    () =>
      Effect.gen(function* () {
        let called = 0
        const eager = Layer.succeed(LLM.LLM, {
          provider: "eager",
          generate: ({ model }) => {
            called++
            return Effect.succeed(LLM.answer({ text: '{"summary":"fine"}', model, usage: tokens(1, 1) }))
          }
        })
        const job = jobOf({ rows: varied(40) })
        const result = yield* Enrichment.run(job, { runId }).pipe(
          Effect.provide([Budget.layer({ maxCostUsd: 1, maxCalls: 7 }), eager, prices])
        )
        assert.strictEqual(result.calls, 7)
        assert.strictEqual(called, 7)
      }).pipe(Effect.provide(Memory.layer))
  )
})
