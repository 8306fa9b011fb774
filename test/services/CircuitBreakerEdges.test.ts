/** The breaker where calls overlap: what was under way when it opened, and what an answer ends. The rest is in CircuitBreaker.test.ts. */
import { assert, describe, it } from "@effect/vitest"
import { Effect, TestClock } from "effect"
import * as CircuitBreaker from "../../src/services/CircuitBreaker.ts"
import { LLMError } from "../../src/services/Errors.ts"

const options: CircuitBreaker.BreakerOptions = {
  threshold: 3,
  coolMs: 1_000,
  maxCoolMs: 3_000,
  outageMs: 9_000,
  unreachableMs: 3_000
}
const broken = new LLMError({
  reason: "server_error",
  category: "TRANSIENT",
  scope: "row",
  charge: "uncertain",
  message: "it broke"
})
const limited = new LLMError({
  reason: "rate_limited",
  category: "TRANSIENT",
  scope: "row",
  charge: "none",
  message: "slow down",
  status: 429
})

/** A provider that nobody used before, and what one who listens was told since it was last asked. */
const fresh = (parts: Partial<CircuitBreaker.BreakerOptions> = {}) => {
  const health = CircuitBreaker.of({ provider: "acme", generate: () => Effect.never }, { ...options, ...parts })
  const told: Array<string> = []
  health.listen({
    provider: (provider) => told.push(provider),
    cooling: (until) => told.push(`cooling until ${until}`),
    learned: () => {},
    outage: (_, message) => told.push(message)
  })
  const news = () => told.splice(0)
  news()
  const fails = (error: LLMError, times = 1) => Effect.replicateEffect(health.failed(error), times, { discard: true })
  return { health, news, fails }
}

describe("The breaker where calls overlap", () => {
  it.effect("a call that was under way and fails while it is open does not shorten the next wait", () =>
    Effect.gen(function* () {
      const { fails, news } = fresh()
      yield* fails(broken, 3)
      yield* TestClock.adjust(900)
      yield* fails(broken)
      yield* TestClock.adjust(100)
      yield* fails(broken)
      assert.deepStrictEqual(news(), ["down", "probing", "down"])
      yield* TestClock.adjust(1_999)
      assert.deepStrictEqual(news(), [])
      yield* TestClock.adjust(1)
      assert.deepStrictEqual(news(), ["probing"])
    })
  )

  it.effect("the third 429 after an answer is the third: the provider is left alone for a second", () =>
    Effect.gen(function* () {
      const { fails, health, news } = fresh()
      yield* fails(limited)
      yield* health.succeeded(undefined)
      yield* fails(limited, 2)
      assert.deepStrictEqual(news(), [])
      yield* fails(limited)
      assert.deepStrictEqual(news(), ["cooling until 1000"])
    })
  )

  it.effect("an outage by 429s lasts from the first of them, not from the beginning or the last answer", () =>
    Effect.gen(function* () {
      const { fails, health, news } = fresh({ outageMs: 3_000 })
      const saturated = "acme takes no more calls: slow down"
      yield* TestClock.adjust(2_000)
      yield* fails(limited)
      yield* TestClock.adjust(2_999)
      yield* fails(limited)
      assert.deepStrictEqual(news(), [])
      yield* TestClock.adjust(1)
      yield* fails(limited)
      assert.deepStrictEqual(news(), [saturated])
      yield* health.succeeded(undefined)
      yield* fails(limited)
      yield* TestClock.adjust(2_999)
      yield* fails(limited)
      assert.deepStrictEqual(news(), [])
      yield* TestClock.adjust(1)
      yield* fails(limited)
      assert.deepStrictEqual(news(), [saturated])
    })
  )
})
