/** The tries of one turn: their figures, and what beginning anew means. */
import { assert, describe, it } from "@effect/vitest"
import { Effect, Option, Schedule } from "effect"
import * as Tries from "../../src/programs/Tries.ts"
import { LLMError } from "../../src/services/Errors.ts"
import * as Retry from "../../src/services/Retry.ts"

const error = new LLMError({
  reason: "server_error",
  category: "TRANSIENT",
  scope: "row",
  charge: "uncertain",
  message: "broken"
})
const twice = Retry.make(Schedule.recurs(2))
const step = (driver: Tries.Driver) => Effect.map(Effect.option(driver.next(error)), Option.isSome)

describe("The tries of a turn", () => {
  it("begin with how often it was asked before, and nothing else", () => {
    const { counted: _, reset: __, streak, uncounted: ___, ...figures } = Tries.make(twice, 3)
    assert.deepStrictEqual(figures, {
      attempt: 3,
      begunAt: 0,
      ownMs: 0,
      failed: 0,
      limited: 0,
      answered: Number.POSITIVE_INFINITY,
      before: 0
    })
    assert.strictEqual(streak(), 0)
  })

  it.effect("go by one driver of the policy, whoever asks for it, until the policy begins anew", () =>
    Effect.gen(function* () {
      const tries = Tries.make(twice, 0)
      const driver = yield* tries.counted
      assert.strictEqual(yield* tries.counted, driver)
      const taken = [yield* step(driver), yield* step(yield* tries.counted), yield* step(yield* tries.counted)]
      assert.deepStrictEqual(taken, [true, true, false])
      tries.reset()
      assert.notStrictEqual(yield* tries.counted, driver)
      assert.isTrue(yield* step(yield* tries.counted))
    })
  )

  it.effect("do not share a driver: neither two turns, nor what counts and what does not", () =>
    Effect.gen(function* () {
      const [one, other] = [Tries.make(twice, 0), Tries.make(twice, 0)]
      const driver = yield* one.counted
      assert.notStrictEqual(yield* other.counted, driver)
      const uncounted = yield* one.uncounted
      assert.notStrictEqual(uncounted, driver)
      one.reset()
      assert.strictEqual(yield* one.uncounted, uncounted, "what does not count goes on")
    })
  )

  it("beginning anew forgets the time and the answers, keeps the failures, and begins a new streak", () => {
    const tries = Tries.make(twice, 1)
    Object.assign(tries, { attempt: 4, begunAt: 9, ownMs: 500, failed: 3, limited: 2, answered: 7, before: 6 })
    assert.strictEqual(tries.streak(), 3)
    tries.reset()
    const { answered, attempt, before, begunAt, failed, limited, ownMs } = tries
    assert.deepStrictEqual(
      { answered, attempt, before, begunAt, failed, limited, ownMs },
      { answered: Number.POSITIVE_INFINITY, attempt: 4, before: 6, begunAt: 9, failed: 3, limited: 2, ownMs: 0 }
    )
    assert.strictEqual(tries.streak(), 0)
    tries.failed++
    assert.strictEqual(tries.streak(), 1)
  })
})
