import { assert, describe, it } from "@effect/vitest"
import { type Duration, Effect, Either, Fiber, Option, TestClock } from "effect"
import * as fc from "fast-check"
import { vi } from "vitest"
import * as Memory from "../../src/layers/Memory.ts"
import * as Budget from "../../src/programs/Budgets.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import { gatherBounded } from "../../src/programs/FanOut.ts"
import { RunRefused, RunStopped } from "../../src/services/Errors.ts"
import * as Price from "../../src/services/Price.ts"
import * as Usage from "../../src/services/Usage.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { agentOf, jobOf, rowsOf } from "../support/scriptedJob.ts"
import { good, prices, type Scripted, scripted, tokens } from "../support/scriptedLlm.ts"

const NANO = 1_000_000_000
const agent = agentOf()
const bestEffort = (concurrency: number) => ({ concurrency, mode: "bestEffort" }) as const
const failFast = (concurrency: number) => ({ concurrency, mode: "failFast" }) as const
const turns = (n: number) => Effect.repeatN(Effect.yieldNow(), n)
const holdOf = (row: { readonly id: number; readonly text: string }) =>
  Effect.map(Effect.provide(Price.Price, prices), (rows) =>
    Price.hold(Option.getOrThrow(Price.find(rows, "scripted", 0)), agent.request(row))
  )

/** A fan-out of fan-outs of fan-outs, an agent at every leaf. */
const nested = (width: number, concurrency: number) => {
  const leaf = (id: number) => agent.run({ id, text: `row ${id}` })
  const level = (
    depth: number,
    from: number
  ): Effect.Effect<ReadonlyArray<number>, never, Effect.Effect.Context<ReturnType<typeof leaf>>> =>
    Effect.orDie(
      Effect.map(
        gatherBounded(
          Array.from({ length: width }, (_, i) => {
            const id = from * width + i
            return depth === 1 ? Effect.map(leaf(id), (result) => [result.usage.cost]) : level(depth - 1, id)
          }),
          failFast(concurrency)
        ),
        (parts) => parts.flat()
      )
    )
  return level(3, 0)
}

const within =
  (llm: Scripted, options: Parameters<typeof Budget.within>[0]) =>
  <A, E, R>(program: Effect.Effect<A, E, R>) =>
    program.pipe(Budget.within(options), Effect.provide([llm.layer, prices]))

/** Lets virtual time pass until the effect ends. */
const elapse = <A, E, R>(effect: Effect.Effect<A, E, R>, most: Duration.DurationInput = "1 hour") =>
  Effect.gen(function* () {
    const fiber = yield* Effect.fork(effect)
    yield* TestClock.adjust(most)
    return yield* Fiber.join(fiber)
  })

// Room for a busy machine.
vi.setConfig({ testTimeout: 60_000 })

describe("Budget.within", () => {
  it.effect(
    "I18: fan-outs nested three deep share one budget: calls in flight never exceed maxConcurrency, and none deadlocks",
    () =>
      Effect.promise(() =>
        fc.assert(
          fc.asyncProperty(
            fc.integer({ min: 1, max: 4 }),
            fc.integer({ min: 1, max: 4 }),
            fc.integer({ min: 1, max: 4 }),
            (maxConcurrency, width, concurrency) =>
              Effect.gen(function* () {
                const llm = scripted(({ n }) => good(tokens(10, 1 + (n % 7))), turns(5))
                const costs = yield* within(llm, { runId: "nested", maxCostUsd: 1, maxConcurrency })(
                  nested(width, concurrency)
                )
                assert.lengthOf(costs, width ** 3)
                assert.strictEqual(llm.counts.calls, width ** 3)
                assert.isAtMost(llm.counts.most, maxConcurrency)
                // Where the fan-out is wide enough, the budget is what bounds it.
                if (concurrency === 4 && width === 4) assert.strictEqual(llm.counts.most, maxConcurrency)
                const status = yield* Enrichment.status("nested")
                const paid = costs.reduce((sum, cost) => sum + cost, 0)
                assertIncludes(status, { spent: paid, calls: width ** 3, held: 0, uncertain: 0 })
                assert.strictEqual(llm.counts.bill, paid)
              }).pipe(Effect.provide(Memory.layer), Effect.runPromise)
          ),
          { numRuns: 40 }
        )
      ),
    30_000
  )

  it.effect(
    "I18: everything inside one budget shares one cap: the agents after it fail with RunStopped, nobody gets a cap of his own",
    () =>
      Effect.gen(function* () {
        const llm = scripted(() => good(tokens(50, 60)), turns(3))
        const cap = 0.0005
        const branch = (from: number) =>
          gatherBounded(
            rowsOf(10).map((row) => Effect.either(agent.run({ ...row, text: `row ${from + row.id}` }))),
            bestEffort(4)
          )
        const all = yield* within(llm, { runId: "capped", maxCostUsd: cap, maxConcurrency: 8 })(
          Effect.forEach([0, 100, 200], branch, { concurrency: 3 })
        )
        const ends = all.flat().map((slot) => Either.getOrThrow(slot))
        const done = ends.filter(Either.isRight)
        const stopped = ends.filter(Either.isLeft)
        assert.isAbove(done.length, 3)
        assert.isAbove(stopped.length, 3)
        for (const end of stopped) {
          assert.instanceOf(end.left, RunStopped)
          assert.strictEqual(end.left instanceof RunStopped ? end.left.reason.kind : "", "budget")
        }
        const status = yield* Enrichment.status("capped")
        assert.strictEqual(status.spent, Usage.sum(done.map((end) => end.right.usage)).cost)
        assert.strictEqual(status.spent, llm.counts.bill)
        assert.isAtMost(status.spent, cap * NANO)
        assert.isBelow(cap * NANO - status.spent, yield* holdOf({ id: 209, text: "row 209" }))
        assert.strictEqual(status.held, 0)
      }).pipe(Effect.provide(Memory.layer))
  )

  it.effect("I18: two budgets bound to one run, one after the other, see one book and one cap", () =>
    Effect.gen(function* () {
      const llm = scripted(() => good(tokens(50, 60)))
      const cap = 0.0005
      const some = Effect.forEach(rowsOf(40), (row) => Effect.either(agent.run(row)), { concurrency: 4 })
      const first = yield* within(llm, { runId: "shared", maxCostUsd: cap })(some)
      const calls = llm.counts.calls
      assert.isAbove(calls, 3)
      assert.isAbove(first.filter(Either.isLeft).length, 3)
      const second = yield* within(llm, { runId: "shared", maxCostUsd: cap })(some)
      assert.strictEqual(llm.counts.calls, calls, "the second found the cap used up")
      assert.lengthOf(second.filter(Either.isLeft), 40)
      // What is left out comes from the run's record.
      yield* within(llm, { runId: "shared" })(some)
      assert.strictEqual(llm.counts.calls, calls)
      const third = yield* within(llm, { runId: "shared", maxCostUsd: 1 })(some)
      assert.lengthOf(third.filter(Either.isRight), 40)
      const status = yield* Enrichment.status("shared")
      assertIncludes(status, { spent: llm.counts.bill, calls: calls + 40, held: 0 })
    }).pipe(Effect.provide(Memory.layer))
  )

  it.effect(
    "I18: two budgets bound to one run at the same time: the second is refused as busy, and free again after the first",
    () =>
      Effect.gen(function* () {
        const llm = scripted(() => good(), Effect.sleep("1 second"))
        const one = within(llm, { runId: "shared", maxCostUsd: 1 })(agent.run({ id: 1, text: "row 1" }))
        const first = yield* Effect.fork(one)
        yield* TestClock.adjust("100 millis")
        const error = yield* Effect.flip(one)
        assert.instanceOf(error, RunRefused)
        assert.strictEqual(error instanceof RunRefused ? error.reason : "", "busy")
        yield* TestClock.adjust("1 second")
        yield* Fiber.join(first)
        assert.strictEqual(llm.counts.calls, 1)
        yield* elapse(one)
        assert.strictEqual((yield* Enrichment.status("shared")).spent, llm.counts.bill)
      }).pipe(Effect.provide(Memory.layer))
  )

  it.effect("I18: a budget needs a cap or an explicit 'no cap'; what is no amount is refused before any call", () =>
    Effect.gen(function* () {
      const llm = scripted(() => good())
      const refused = (options: Budget.BudgetOptions) =>
        Effect.map(
          Effect.flip(within(llm, { runId: "bad", ...options })(agent.run({ id: 1, text: "row 1" }))),
          (error) => (error instanceof RunRefused ? error.reason : error._tag)
        )
      assert.strictEqual(yield* refused({}), "no_cap")
      for (const bad of [
        { maxCostUsd: -1 },
        { maxCostUsd: Number.NaN },
        { maxCostUsd: 1, noCap: true },
        { maxCostUsd: 1, maxCalls: 1.5 },
        { maxCostUsd: 1, maxConcurrency: 0 }
      ]) {
        assert.strictEqual(yield* refused(bad), "bad_limit", JSON.stringify(bad))
      }
      assert.strictEqual(llm.counts.calls, 0)
    }).pipe(Effect.provide(Memory.layer))
  )
})

describe("Budget.layer", () => {
  it.effect("I18: one Budget used for two runs is refused, the same run again is not", () =>
    Effect.gen(function* () {
      const llm = scripted(() => good())
      yield* Effect.gen(function* () {
        const job = jobOf({ rows: rowsOf(3) })
        assert.strictEqual((yield* Enrichment.run(job, { runId: "one" })).status, "done")
        assert.strictEqual((yield* Enrichment.run(job, { runId: "one" })).status, "done")
        const error = yield* Effect.flip(Enrichment.run(job, { runId: "two" }))
        assert.instanceOf(error, RunRefused)
        assert.strictEqual(error instanceof RunRefused ? error.reason : "", "budget_in_use")
        assert.include(error.message, "one")
        assert.isTrue(Either.isLeft(yield* Effect.either(Enrichment.status("two"))))
      }).pipe(Effect.provide([Budget.layer({ maxCostUsd: 1 }), llm.layer, prices]))
      assert.strictEqual(llm.counts.calls, 3)
    }).pipe(Effect.provide(Memory.layer))
  )

  it.effect(
    "I18: two Budgets bound to one run see one book: the second goes on with what the first left of the cap",
    () =>
      Effect.gen(function* () {
        const llm = scripted(() => good(tokens(50, 60)))
        const job = jobOf({ rows: rowsOf(60) })
        const cap = 0.001
        const once = Effect.gen(function* () {
          const result = yield* Enrichment.run(job, { runId: "one" })
          return { result, reading: yield* Effect.flatMap(Budget.Budget, (budget) => budget.reading) }
        }).pipe((run) => Effect.provide(run, [Budget.layer({ maxCostUsd: cap }), llm.layer, prices]))
        const first = yield* once
        assert.strictEqual(first.result.status, "suspended")
        const calls = llm.counts.calls
        const second = yield* once
        assert.strictEqual(second.result.status, "suspended")
        assert.strictEqual(llm.counts.calls, calls)
        assert.deepStrictEqual(second.reading, first.reading)
        assert.isAtMost(llm.counts.bill, cap * NANO)
      }).pipe(Effect.provide(Memory.layer))
  )

  it.effect(
    "I18: the reading is zero before a run, shows what is in flight in the middle, and spent and remaining at the end",
    () =>
      Effect.gen(function* () {
        const llm = scripted(() => good(), Effect.sleep("1 second"))
        const rows = rowsOf(4)
        const hold = yield* holdOf({ id: 0, text: "row 0" })
        yield* Effect.gen(function* () {
          const budget = yield* Budget.Budget
          const zero = { spent: 0, uncertain: 0, held: 0, remaining: null, calls: 0, inFlight: 0 }
          assertIncludes(yield* budget.reading, zero)
          const fiber = yield* Effect.fork(Enrichment.run(jobOf({ rows }), { runId: "one" }))
          yield* TestClock.adjust("500 millis")
          const held = 2 * hold
          const middle = { spent: 0, uncertain: 0, held, remaining: NANO - held, calls: 2, inFlight: 2 }
          assertIncludes(yield* budget.reading, middle)
          yield* TestClock.adjust("10 seconds")
          yield* Fiber.join(fiber)
          const spent = llm.counts.bill
          assert.isAbove(spent, 0)
          const end = yield* budget.reading
          assertIncludes(end, { spent, uncertain: 0, held: 0, remaining: NANO - spent, calls: 4, inFlight: 0 })
          assert.isFrozen(end)
        }).pipe(Effect.provide([Budget.layer({ maxCostUsd: 1, maxConcurrency: 2 }), llm.layer, prices]))
      }).pipe(Effect.provide(Memory.layer))
  )
})
