/** When a failed call is tried again: the waits themselves, without a run. */
import { assert, describe, it } from "@effect/vitest"
import { Chunk, Duration, Effect, Random, Schedule } from "effect"
import { LLMError } from "../../src/services/Errors.ts"
import * as Retry from "../../src/services/Retry.ts"

const error = new LLMError({
  reason: "server_error",
  category: "TRANSIENT",
  scope: "row",
  charge: "uncertain",
  message: "broken"
})

/** The waits, in milliseconds, after each of `failures`; a policy that gives up ends them with 0. */
const waits = (schedule: Schedule.Schedule<unknown, LLMError>, failures: number, seed = "seed") =>
  Schedule.run(
    Schedule.delays(schedule),
    0,
    Array.from({ length: failures }, () => error)
  ).pipe(
    Effect.map((found) => Chunk.toReadonlyArray(found).map((wait) => Duration.toMillis(wait))),
    Effect.withRandom(Random.make(seed))
  )

/** Each wait between 0.8 and 1.2 of its base, none above the longest. */
const assertWaits = (found: ReadonlyArray<number>, bases: ReadonlyArray<number>, longest: number) => {
  assert.lengthOf(found, bases.length)
  for (const [i, base] of bases.entries()) {
    assert.isAtLeast(found[i] ?? -1, Math.min(0.8 * base, longest), `wait ${i}`)
    assert.isAtMost(found[i] ?? Number.NaN, Math.min(1.2 * base, longest), `wait ${i}`)
  }
}

describe("Retry", () => {
  it.effect("I12: a policy makes as many calls as it says, waits double, up to the longest, and then it ends", () =>
    Effect.gen(function* () {
      const policy = Retry.policy({ attempts: 6, base: "1 second", longest: "5 seconds" })
      const found = yield* waits(policy.schedule, 20)
      assert.lengthOf(found, 6)
      assertWaits(found.slice(0, 5), [1_000, 2_000, 4_000, 8_000, 16_000], 5_000)
      assert.strictEqual(found[5], 0)
      assert.deepStrictEqual(yield* waits(Retry.policy({ attempts: 1, base: 1_000, longest: 5_000 }).schedule, 5), [0])
    })
  )

  it.effect("I12: the standard policy: five calls in all, half a second to half a minute, and no two turns alike", () =>
    Effect.gen(function* () {
      const found = yield* waits(Retry.standard.schedule, 20)
      assert.lengthOf(found, 5)
      assertWaits(found.slice(0, 4), [500, 1_000, 2_000, 4_000], 30_000)
      assert.notDeepEqual(yield* waits(Retry.standard.schedule, 20, "other"), found)
      assert.strictEqual(Retry.standard.deadlineMs, 900_000)
    })
  )

  it.effect("I12: tries that do not count go on for ever, at most half a minute apart", () =>
    Effect.gen(function* () {
      const found = yield* waits(Retry.uncounted, 200)
      assertWaits(found.slice(0, 8), [500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000], 30_000)
      assert.lengthOf(found, 200)
      assert.isTrue(found.slice(8).every((ms) => ms === 30_000))
    })
  )

  it("a policy of one's own keeps its schedule and its deadline; without one it is 15 minutes", () => {
    const schedule = Schedule.recurs(2)
    assert.strictEqual(Retry.make(schedule).schedule, schedule)
    assert.strictEqual(Retry.make(schedule).deadlineMs, 900_000)
    assert.strictEqual(Retry.make(schedule, { deadline: "1 minute" }).deadlineMs, 60_000)
    assert.strictEqual(Retry.policy({ attempts: 2, base: 1, longest: 2, deadline: "3 seconds" }).deadlineMs, 3_000)
    assert.strictEqual(Retry.policy({ attempts: 2, base: 1, longest: 2 }).deadlineMs, 900_000)
  })
})
