/** What an operator may say, and what the meter's reading is. What a budget does in a run is in programs/Budget.test.ts. */
import { assert, describe, it } from "@effect/vitest"
import { Effect, Either } from "effect"
import { start } from "../../src/services/Admission.ts"
import * as Budget from "../../src/services/Budget.ts"
import { RunRefused } from "../../src/services/Errors.ts"
import { Usd } from "../../src/services/Usd.ts"

const limits = (options: Budget.BudgetOptions) => Either.getOrThrow(Budget.make(options).limits)
const refusal = (options: Budget.BudgetOptions) => Either.getOrThrow(Either.flip(Budget.make(options).limits))

describe("The limits", () => {
  it("are what was said, down to the least that means something; what was not said is left to the run's record", () => {
    const none = {
      cap: undefined,
      maxCalls: undefined,
      maxConcurrency: undefined,
      requestsPerMinute: undefined,
      tokensPerMinute: undefined
    }
    assert.deepStrictEqual(limits({}), none)
    assert.deepStrictEqual(limits({ maxCostUsd: 50 }), { ...none, cap: Usd.nano(50_000_000_000) })
    assert.deepStrictEqual(limits({ maxCostUsd: 0, noCap: false }), { ...none, cap: Usd.zero })
    assert.deepStrictEqual(limits({ noCap: true }), { ...none, cap: null })
    const least = { maxCalls: 0, maxConcurrency: 1, requestsPerMinute: 1, tokensPerMinute: 1 }
    assert.deepStrictEqual(limits(least), { ...none, ...least })
  })

  for (const [options, message] of [
    [{ maxCostUsd: 5, noCap: true }, `a cap of $5 and "no cap" exclude each other`],
    [{ maxCostUsd: -1 }, "a cap must be an amount in dollars from 0 to 9,000,000, not -1"],
    [{ maxCalls: -1 }, "maxCalls must be a whole number from 0, not -1"],
    [{ maxCalls: 1.5 }, "maxCalls must be a whole number from 0, not 1.5"],
    [{ maxConcurrency: 0 }, "maxConcurrency must be a whole number from 1, not 0"],
    [{ maxConcurrency: Number.NaN }, "maxConcurrency must be a whole number from 1, not NaN"],
    [{ maxConcurrency: 2.5 }, "maxConcurrency must be a whole number from 1, not 2.5"],
    [{ requestsPerMinute: 0 }, "requestsPerMinute must be a whole number from 1, not 0"],
    [{ requestsPerMinute: 0.5 }, "requestsPerMinute must be a whole number from 1, not 0.5"],
    [{ tokensPerMinute: -5 }, "tokensPerMinute must be a whole number from 1, not -5"]
  ] as const) {
    it(`are refused where they are none: ${JSON.stringify(options)}`, () => {
      assert.deepStrictEqual(refusal(options), new RunRefused({ reason: "bad_limit", message }))
    })
  }

  it("of the speed: adaptive unless told otherwise", () => {
    assert.isTrue(Budget.make({}).adaptive)
    assert.isFalse(Budget.make({ adaptive: false }).adaptive)
  })
})

describe("A budget", () => {
  it.effect("I18: belongs to the first run that binds it, as often as that one likes", () =>
    Effect.gen(function* () {
      const budget = Budget.make({})
      yield* budget.bind("a")
      yield* budget.bind("a")
      const message = "this budget belongs to run a: give run b a Budget.layer of its own"
      assert.deepStrictEqual(yield* Effect.flip(budget.bind("b")), new RunRefused({ reason: "budget_in_use", message }))
      yield* budget.bind("a")
    })
  )

  it.effect("is made anew for each time that its layer is built", () =>
    Effect.gen(function* () {
      const layer = Budget.layer({ maxCalls: 3 })
      const bound = (runId: string) =>
        Effect.provide(
          Effect.flatMap(Budget.Budget, (budget) => Effect.as(budget.bind(runId), budget)),
          layer
        )
      const [one, other] = [yield* bound("a"), yield* bound("b")]
      assert.notStrictEqual(one, other)
      assert.strictEqual(Either.getOrThrow(one.limits).maxCalls, 3)
    })
  )
})

describe("The reading", () => {
  const from = {
    maxCalls: null,
    maxConcurrency: 4,
    spent: Usd.nano(10),
    uncertain: Usd.nano(5),
    held: Usd.nano(7),
    calls: 3,
    paused: null
  }

  it.effect("is all zero before a run is bound, and then what the meter says at that moment; frozen", () =>
    Effect.gen(function* () {
      const budget = Budget.make({})
      const zero = { spent: Usd.zero, uncertain: Usd.zero, held: Usd.zero, remaining: null, calls: 0, inFlight: 0 }
      const nothing = yield* budget.reading
      assert.deepStrictEqual(nothing, zero)
      assert.isFrozen(nothing)
      let state = { ...start({ ...from, cap: Usd.nano(100) }), inFlight: 2 }
      budget.report(() => state)
      const reading = yield* budget.reading
      assert.deepStrictEqual(reading, {
        spent: Usd.nano(10),
        uncertain: Usd.nano(5),
        held: Usd.nano(7),
        remaining: Usd.nano(78),
        calls: 3,
        inFlight: 2
      })
      assert.isFrozen(reading)
      state = { ...state, cap: Usd.nano(20) }
      assert.strictEqual((yield* budget.reading).remaining, 0, "never below zero")
      budget.report(() => ({ ...state, cap: null }))
      assert.isNull((yield* budget.reading).remaining)
    })
  )
})
