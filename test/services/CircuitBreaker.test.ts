/** The breaker by itself, at virtual times: its machine, and what a run is told of a provider's health. What it does to a run is in programs/retry-breaker.test.ts. */
import { assert, describe, it } from "@effect/vitest"
import { Effect, TestClock } from "effect"
import * as CircuitBreaker from "../../src/services/CircuitBreaker.ts"
import { LLMError } from "../../src/services/Errors.ts"
import type { LLMShape } from "../../src/services/LLM.ts"

const options: CircuitBreaker.BreakerOptions = {
  threshold: 3,
  coolMs: 1_000,
  maxCoolMs: 3_000,
  outageMs: 9_000,
  unreachableMs: 3_000
}
const broken = (parts: Partial<LLMError> = {}) =>
  new LLMError({
    reason: parts.reason ?? "server_error",
    category: parts.category ?? "TRANSIENT",
    scope: parts.scope ?? "row",
    charge: parts.charge ?? "uncertain",
    message: parts.message ?? "it broke",
    ...(parts.status === undefined ? {} : { status: parts.status }),
    ...(parts.retryAfterMs === undefined ? {} : { retryAfterMs: parts.retryAfterMs })
  })
const limited = (retryAfterMs?: number) =>
  broken({
    reason: "rate_limited",
    charge: "none",
    status: 429,
    ...(retryAfterMs === undefined ? {} : { retryAfterMs })
  })
const wrong = (parts: Partial<LLMError> = {}) =>
  broken({ reason: "bad_request", category: "PERMANENT", scope: "run", charge: "none", status: 400, ...parts })

describe("The breaker's machine", () => {
  const { closed, transition } = CircuitBreaker
  const cause = broken()
  const failed = (error: LLMError, at = 7): CircuitBreaker.Event => ({ _tag: "Failed", error, at })
  const down: CircuitBreaker.State = { provider: "down", failures: 3, coolMs: 1_000, openedAt: 7, cause }
  const probing: CircuitBreaker.State = { ...down, provider: "probing" }
  const next = (state: CircuitBreaker.State, event: CircuitBreaker.Event) => transition(options, state, event)

  it("I13: opens at the threshold, by the failure that reached it", () => {
    const one = next(closed, failed(broken()))
    assert.deepStrictEqual(one, { ...closed, failures: 1 })
    const two = next(one, failed(broken({ category: "UNKNOWN" })))
    assert.deepStrictEqual(two, { ...closed, failures: 2 })
    assert.deepStrictEqual(next(two, failed(cause)), down)
  })

  it("I13: does not count what is PERMANENT, nor a rate limit, in any state", () => {
    for (const state of [{ ...closed, failures: 2 }, down, probing]) {
      for (const error of [wrong(), limited()]) assert.strictEqual(next(state, failed(error)), state)
    }
  })

  it("probes when it has cooled; a failed probe doubles the wait, up to the longest", () => {
    assert.deepStrictEqual(next(down, { _tag: "Cooled" }), probing)
    assert.strictEqual(next(closed, { _tag: "Cooled" }), closed)
    assert.strictEqual(next(probing, { _tag: "Cooled" }), probing)
    assert.deepStrictEqual(next(probing, failed(broken(), 99)), { ...down, coolMs: 2_000 })
    assert.deepStrictEqual(next({ ...probing, coolMs: 2_000 }, failed(broken(), 99)), { ...down, coolMs: 3_000 })
  })

  it("counts what fails while it is open, and keeps when and why it opened", () => {
    assert.deepStrictEqual(next(down, failed(broken(), 99)), { ...down, failures: 4 })
  })

  it("closes by one success", () => {
    for (const state of [closed, down, probing]) assert.strictEqual(next(state, { _tag: "Succeeded" }), closed)
  })
})

type Told =
  | readonly ["provider", string, string | undefined]
  | readonly ["cooling", number]
  | readonly ["learned", number | undefined, number | undefined]
  | readonly ["outage", string, string]

const llmOf = (): LLMShape => ({ provider: "acme", generate: () => Effect.never })

const listening = (health: CircuitBreaker.Health) => {
  const told: Array<Told> = []
  const leave = health.listen({
    provider: (provider, open) => told.push(["provider", provider, open?.message]),
    cooling: (until) => told.push(["cooling", until]),
    learned: (limits) => told.push(["learned", limits.requestsPerMinute, limits.tokensPerMinute]),
    outage: (kind, message) => told.push(["outage", kind, message])
  })
  /** What was told since it was last asked. */
  return { leave, news: () => told.splice(0) }
}
const AT_FIRST: ReadonlyArray<Told> = [
  ["cooling", 0],
  ["learned", undefined, undefined]
]
const OPEN = "acme is failing: it broke"

/** A provider that nobody used before, and one who listens. */
const fresh = (parts: Partial<CircuitBreaker.BreakerOptions> = {}) => {
  const health = CircuitBreaker.of(llmOf(), { ...options, ...parts })
  const { leave, news } = listening(health)
  assert.deepStrictEqual(news(), [...AT_FIRST])
  const fails = (error: LLMError, times = 1) => Effect.replicateEffect(health.failed(error), times, { discard: true })
  return { health, leave, news, fails }
}
const pass = (ms: number) => TestClock.adjust(ms)

describe("A provider's health", () => {
  it.effect("goes down at the threshold, is probed after the wait, and is up by one answer", () =>
    Effect.gen(function* () {
      const { fails, health, news } = fresh()
      yield* fails(broken(), 2)
      assert.deepStrictEqual([news(), health.state().failures], [[], 2])
      yield* fails(broken(), 2)
      assert.deepStrictEqual(news(), [["provider", "down", OPEN]])
      yield* pass(999)
      assert.deepStrictEqual(news(), [])
      yield* pass(1)
      assert.deepStrictEqual(news(), [["provider", "probing", OPEN]])
      yield* fails(broken())
      assert.deepStrictEqual(news(), [["provider", "down", OPEN]])
      yield* pass(1_999)
      assert.deepStrictEqual(news(), [])
      yield* pass(1)
      assert.deepStrictEqual(news(), [["provider", "probing", OPEN]])
      yield* health.succeeded(undefined)
      assert.deepStrictEqual(news(), [["provider", "up", undefined]])
      assert.strictEqual(health.state(), CircuitBreaker.closed)
      assert.strictEqual(health.answered(), 1)
    })
  )

  it.effect("an answer between failures begins the count anew", () =>
    Effect.gen(function* () {
      const { fails, health, news } = fresh()
      yield* fails(broken(), 2)
      yield* health.succeeded(undefined)
      yield* fails(broken(), 2)
      assert.deepStrictEqual([news(), health.state().failures], [[], 2])
      // That it refuses one row is an answer as well.
      yield* fails(wrong({ scope: "row" }))
      assert.deepStrictEqual([health.state().failures, health.answered()], [0, 2])
    })
  )

  it.effect("a wait that began before it closed does not end the wait that came after", () =>
    Effect.gen(function* () {
      const { fails, health, news } = fresh()
      yield* fails(broken(), 3)
      yield* pass(500)
      yield* health.succeeded(undefined)
      yield* pass(100)
      yield* fails(broken(), 3)
      news()
      yield* pass(999)
      assert.deepStrictEqual([news(), health.state().provider], [[], "down"])
      yield* pass(1)
      assert.deepStrictEqual(news(), [["provider", "probing", OPEN]])
    })
  )

  it.effect("what has closed stays closed when the wait is over", () =>
    Effect.gen(function* () {
      const { fails, health, news } = fresh({ outageMs: 500 })
      yield* fails(broken(), 3)
      yield* health.succeeded(undefined)
      news()
      yield* pass(5_000)
      assert.deepStrictEqual([news(), health.state()], [[], CircuitBreaker.closed])
    })
  )

  /** Each probe fails: the times at which an outage is told, in 21 seconds; probes are at 1, 3, 6, 9, … seconds. */
  const outages = (
    error: LLMError,
    before: (health: CircuitBreaker.Health) => Effect.Effect<void> = () => Effect.void
  ) =>
    Effect.gen(function* () {
      const { fails, health, news } = fresh()
      yield* before(health)
      yield* fails(error, 3)
      const times: Array<number> = []
      for (let second = 1; second <= 12; second++) {
        yield* pass(1_000)
        if (health.state().provider === "probing") yield* fails(error)
        for (const one of news()) if (one[0] === "outage") times.push(second)
      }
      return times
    })

  it.effect("an outage is told when it lasted its time, at each probe from then on", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(yield* outages(broken()), [9, 12])
    })
  )

  it.effect("a provider that was never reached has an outage sooner: its address may be wrong", () =>
    Effect.gen(function* () {
      const unreachable = broken({ reason: "connection", charge: "none" })
      assert.deepStrictEqual(yield* outages(unreachable), [3, 6, 9, 12])
      assert.deepStrictEqual(yield* outages(unreachable, (health) => health.succeeded(undefined)), [9, 12])
      const answered = (health: CircuitBreaker.Health) => health.failed(limited())
      assert.deepStrictEqual(yield* outages(unreachable, answered), [9, 12])
      assert.deepStrictEqual(yield* outages(broken({ reason: "connection", charge: "uncertain" })), [9, 12])
      assert.deepStrictEqual(yield* outages(broken({ reason: "timeout", charge: "none" })), [9, 12])
    })
  )

  it.effect("the outage says what opened the breaker", () =>
    Effect.gen(function* () {
      const { fails, news } = fresh({ outageMs: 1_000 })
      yield* fails(broken(), 3)
      news()
      yield* pass(1_000)
      assert.deepStrictEqual(news(), [
        ["outage", "outage", OPEN],
        ["provider", "probing", OPEN]
      ])
    })
  )
})

describe("A wish to be left alone", () => {
  it.effect("is for everyone, and the longest holds", () =>
    Effect.gen(function* () {
      const { fails, health, news } = fresh()
      const other = listening(health)
      other.news()
      yield* pass(100)
      yield* fails(limited(500))
      assert.deepStrictEqual(news(), [["cooling", 600]])
      assert.deepStrictEqual(other.news(), [["cooling", 600]])
      for (const shorter of [400, 500]) yield* fails(broken({ category: "UNKNOWN", retryAfterMs: shorter }))
      yield* health.succeeded({ waitMs: Number.NaN })
      assert.deepStrictEqual(
        news().filter(([what]) => what === "cooling"),
        []
      )
      yield* fails(limited(501))
      assert.deepStrictEqual(news(), [["cooling", 601]])
    })
  )

  it.effect("with any failure but a PERMANENT one, which fails the row all the same", () =>
    Effect.gen(function* () {
      const { fails, health, news } = fresh()
      yield* fails(broken({ retryAfterMs: 500 }))
      assert.deepStrictEqual([news(), health.state().failures], [[["cooling", 500]], 1])
      yield* fails(wrong({ retryAfterMs: 700 }))
      yield* fails(wrong({ retryAfterMs: 700, scope: "row" }))
      assert.deepStrictEqual(news(), [])
    })
  )

  it.effect("for longer than an outage is one, and says until when by the date", () =>
    Effect.gen(function* () {
      const { fails, news } = fresh()
      yield* pass(1_000)
      yield* fails(limited(9_001))
      yield* fails(limited(1e20))
      assert.deepStrictEqual(news(), [
        ["outage", "outage", "acme asks to wait until 1970-01-01T00:00:10.001Z"],
        ["outage", "outage", "acme asks to wait until +275760-09-13T00:00:00.000Z"]
      ])
      yield* fails(limited(9_000))
      assert.deepStrictEqual(news(), [["cooling", 10_000]])
    })
  )
})

describe("429 without a time", () => {
  it.effect(
    "from the third one on the provider is left alone for a second, then twice as long each time, up to the longest",
    () =>
      Effect.gen(function* () {
        const { fails, news } = fresh({ outageMs: 60_000 })
        yield* fails(limited(), 2)
        assert.deepStrictEqual(news(), [])
        yield* fails(limited())
        assert.deepStrictEqual(news(), [["cooling", 1_000]])
        // Calls that were under way say nothing new.
        yield* pass(999)
        yield* fails(limited())
        assert.deepStrictEqual(news(), [])
        yield* pass(1)
        yield* fails(limited())
        assert.deepStrictEqual(news(), [["cooling", 1_000 + 3_000]])
      })
  )

  it.effect("doubles: one, two, then the longest", () =>
    Effect.gen(function* () {
      const { fails, news } = fresh({ outageMs: 60_000 })
      yield* fails(limited(), 3)
      yield* pass(1_000)
      yield* fails(limited())
      yield* pass(2_000)
      yield* fails(limited())
      assert.deepStrictEqual(news(), [
        ["cooling", 1_000],
        ["cooling", 3_000],
        ["cooling", 6_000]
      ])
    })
  )

  it.effect("an answer, or a long time without one, begins anew", () =>
    Effect.gen(function* () {
      const { fails, health, news } = fresh()
      yield* fails(limited(), 2)
      yield* health.succeeded(undefined)
      yield* fails(limited(), 2)
      assert.deepStrictEqual(news(), [])
      yield* pass(3_001)
      yield* fails(limited(), 2)
      assert.deepStrictEqual(news(), [])
      yield* pass(3_000)
      yield* fails(limited())
      assert.deepStrictEqual(news(), [["cooling", 7_001]])
    })
  )

  it.effect("a time that was asked for belongs to the same bad time", () =>
    Effect.gen(function* () {
      const { fails, news } = fresh({ outageMs: 5_000 })
      yield* fails(limited(1_000))
      yield* pass(4_000)
      yield* fails(limited(1_000))
      news()
      yield* pass(1_000)
      yield* fails(limited(1_000))
      assert.deepStrictEqual(news(), [["outage", "outage", "acme takes no more calls: it broke"]])
    })
  )

  it.effect("a time of zero is no time", () =>
    Effect.gen(function* () {
      const { fails, news } = fresh()
      yield* pass(100)
      yield* fails(limited(0), 5)
      assert.deepStrictEqual(news(), [])
    })
  )

  it.effect("for as long as an outage is one, whatever it asks for", () =>
    Effect.gen(function* () {
      const { fails, news } = fresh({ outageMs: 3_000 })
      yield* fails(limited())
      yield* pass(2_999)
      yield* fails(limited())
      assert.deepStrictEqual(news(), [])
      yield* pass(1)
      yield* fails(limited(100))
      assert.deepStrictEqual(news(), [["outage", "outage", "acme takes no more calls: it broke"]])
    })
  )
})

describe("What a provider says of its limits", () => {
  it.effect("is told when it changes, and to who comes later", () =>
    Effect.gen(function* () {
      const { health, news } = fresh()
      const says = (requestsPerMinute?: number, tokensPerMinute?: number) =>
        health.succeeded({ requestsPerMinute, tokensPerMinute })
      yield* says()
      yield* says(5, 100)
      yield* says(5, 100)
      yield* says(6, 100)
      yield* says(6, 200)
      assert.deepStrictEqual(news(), [
        ["learned", 5, 100],
        ["learned", 6, 100],
        ["learned", 6, 200]
      ])
      assert.strictEqual(health.answered(), 5)
      assert.deepStrictEqual(listening(health).news(), [
        ["cooling", 0],
        ["learned", 6, 200]
      ])
    })
  )

  it.effect("a wait because nothing is left holds, but is no outage however long", () =>
    Effect.gen(function* () {
      const { health, news } = fresh()
      yield* pass(100)
      yield* health.succeeded({ waitMs: 400 })
      yield* health.succeeded({ waitMs: 1e9 })
      assert.deepStrictEqual(news(), [
        ["cooling", 500],
        ["cooling", 9_100]
      ])
      assert.deepStrictEqual(listening(health).news()[0], ["cooling", 9_100])
    })
  )
})

describe("A job whose every request is refused", () => {
  it.effect("is stopped at the tenth, once", () =>
    Effect.gen(function* () {
      const { fails, news } = fresh()
      yield* fails(wrong(), 9)
      assert.deepStrictEqual(news(), [])
      yield* fails(wrong({ scope: "row" }))
      assert.deepStrictEqual(news(), [["outage", "provider", "acme refuses every request: it broke"]])
      yield* fails(wrong(), 3)
      assert.deepStrictEqual(news(), [])
    })
  )

  it.effect("is not one that got an answer before, was refused for another reason, or never reached the provider", () =>
    Effect.gen(function* () {
      const { fails, health, news } = fresh()
      const unsent = broken({ reason: "bad_request", category: "PERMANENT", scope: "run", charge: "none" })
      yield* fails(unsent, 20)
      yield* fails(wrong({ reason: "content_filter" }), 20)
      yield* fails(wrong(), 9)
      assert.deepStrictEqual(news(), [])
      yield* health.succeeded(undefined)
      yield* fails(wrong(), 20)
      assert.deepStrictEqual(news(), [])
    })
  )
})

describe("Who listens", () => {
  it.effect("hears at once that it is down, and nothing any more once it left", () =>
    Effect.gen(function* () {
      const { fails, health, leave, news } = fresh()
      yield* fails(broken(), 3)
      const other = listening(health)
      assert.deepStrictEqual(other.news(), [["provider", "down", undefined], ...AT_FIRST])
      leave()
      news()
      yield* pass(1_000)
      assert.deepStrictEqual(news(), [])
      assert.deepStrictEqual(other.news(), [["provider", "probing", OPEN]])
      assert.deepStrictEqual(listening(health).news(), [["provider", "probing", undefined], ...AT_FIRST])
    })
  )

  it.effect("finds out itself if nobody was there while it cooled down", () =>
    Effect.gen(function* () {
      const { fails, health, leave } = fresh()
      yield* fails(broken(), 3)
      leave()
      yield* pass(5_000)
      assert.strictEqual(health.state().provider, "down", "no timer keeps the process alive")
      const next = listening(health)
      assert.deepStrictEqual(next.news(), [["provider", "probing", undefined], ...AT_FIRST])
      yield* fails(broken())
      next.news()
      yield* pass(2_000)
      assert.deepStrictEqual(next.news(), [["provider", "probing", OPEN]])
    })
  )

  it.effect("may leave twice, and where nothing ever opened", () =>
    Effect.sync(() => {
      const { leave } = fresh()
      leave()
      leave()
    })
  )
})

describe("One provider", () => {
  it("has one health for all who use it; a fallback's model and another provider have their own", () => {
    const [one, other] = [llmOf(), llmOf()]
    assert.strictEqual(CircuitBreaker.of(one), CircuitBreaker.of(one))
    assert.strictEqual(CircuitBreaker.of(one, options, "small"), CircuitBreaker.of(one, options, "small"))
    assert.notStrictEqual(CircuitBreaker.of(one), CircuitBreaker.of(other))
    assert.notStrictEqual(CircuitBreaker.of(one), CircuitBreaker.of(one, options, "small"))
  })

  it.effect("has the options of the layer over the defaults", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(yield* CircuitBreaker.Breaker, CircuitBreaker.defaults)
      const given = yield* Effect.provide(CircuitBreaker.Breaker, CircuitBreaker.layer({ threshold: 2 }))
      assert.deepStrictEqual(given, { ...CircuitBreaker.defaults, threshold: 2 })
      assert.deepStrictEqual(CircuitBreaker.defaults, {
        threshold: 10,
        coolMs: 5_000,
        maxCoolMs: 60_000,
        outageMs: 600_000,
        unreachableMs: 30_000
      })
    })
  )
})
