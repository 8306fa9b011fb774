import { assert, describe, it } from "@effect/vitest"
import { Clock, Duration, Effect, Layer } from "effect"
import * as Memory from "../../src/layers/Memory.ts"
import * as Budget from "../../src/programs/Budgets.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import * as RunRecord from "../../src/programs/RunRecord.ts"
import * as CircuitBreaker from "../../src/services/CircuitBreaker.ts"
import { Journal } from "../../src/services/Journal.ts"
import type { ChatAnswer } from "../../src/services/LLM.ts"
import * as Meter from "../../src/services/Meter.ts"
import * as Price from "../../src/services/Price.ts"
import * as Retry from "../../src/services/Retry.ts"
import * as Tokenizer from "../../src/services/Tokenizer.ts"
import { Usd } from "../../src/services/Usd.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { agentOf, idOf, textOf } from "../support/scriptedJob.ts"
import { fail, good, model, scripted, tokens } from "../support/scriptedLlm.ts"
import { endOf, eventsOf, from, inMemory, jobOf, named, prices, runId, runOf } from "../support/twoProviders.ts"

const standard = { retry: Retry.standard }
const refused = fail({ reason: "bad_request", category: "PERMANENT", status: 400 })
const tiered = Price.layer([{ model, from: "1970-01-01", input: 0.15, output: 0.6, tiers: { priority: 2 } }])

/** What the first rows of these jobs may cost. */
const holdOf = (price: Price.PriceRow = { model, from: "1970-01-01", input: 0.15, output: 0.6 }) =>
  Price.hold(price, jobOf(1).agent.request({ id: 0, text: textOf(0) }))

describe("whatever breaks, hold and permit are given back", () => {
  it("a bill that dies counts at its hold, and the run goes on", () =>
    inMemory(
      Effect.gen(function* () {
        const hold = holdOf()
        const odd: ChatAnswer = {
          text: '{"summary":"fine"}',
          usage: tokens(10, 5),
          cost: undefined,
          tier: undefined,
          finish: "stop",
          refusal: undefined,
          requestId: undefined,
          limits: undefined,
          get model(): string {
            throw new Error("a provider written by hand")
          }
        }
        const llm = named("a", ({ n }) => (n <= 4 ? Effect.succeed(odd) : from(model)))
        const end = yield* runOf(jobOf(10), llm.layer)
        // Four calls at their hold, six of 10 + 5 tokens at 150 and 600.
        assertIncludes(end, { status: "done", done: 10, held: 0, calls: 10, uncertain: 4 * hold, spent: 6 * 4_500 })
      })
    ))

  it("a listener that dies after an answer: the answer is settled, and a next call gets the permit", () =>
    inMemory(
      Effect.scoped(
        Effect.gen(function* () {
          const journal = yield* Journal
          const limits = { cap: Usd.nano(100_000), maxCalls: undefined, maxConcurrency: 1 }
          const { book, fence } = yield* RunRecord.open(journal, {
            fresh: { runId, job: "j", scope: "j", status: "running", source: "{}", createdAt: 0, chunkSize: 1 },
            limits
          })
          const meter = Meter.make({ journal, book, fence, clock: yield* Effect.clock })
          const price = Price.free(model)
          const call: Meter.Call = {
            seq: 0,
            epoch: 0,
            turn: 0,
            attempt: 0,
            request: "hash",
            model,
            amount: Usd.nano(60_000),
            price,
            tokens: 0,
            refunds: true,
            steers: () => true,
            isStale: () => false,
            bill: () => ({ _tag: "Known", usage: tokens(10, 5), cost: Usd.nano(4_500), excess: undefined })
          }
          const died = yield* Effect.exit(
            meter.call(
              call,
              () => good(),
              () => Effect.die(new Error("a listener"))
            )
          )
          assert.strictEqual(died._tag, "Failure")
          assertIncludes(meter.state(), { held: 0, inFlight: 0, spent: 4_500 })
          // Two holds of 60,000 would not fit under the cap, and one call at a time is allowed.
          const next = yield* meter.call(
            { ...call, seq: 1 },
            () => good(),
            () => Effect.void
          )
          assert.strictEqual(next?.cost, Usd.nano(4_500))
          // One that should not go any more when its turn comes was not sent and is not counted.
          const stale = { ...call, seq: 2, isStale: () => true }
          assert.isUndefined(
            yield* meter.call(
              stale,
              () => Effect.die("sent"),
              () => Effect.void
            )
          )
          assertIncludes(meter.state(), { calls: 2, held: 0, inFlight: 0, spent: 9_000, uncertain: 0 })
        })
      )
    ))

  it("a wish to wait that no date can say suspends the run as an outage", () =>
    inMemory(
      Effect.gen(function* () {
        const llm = named("a", ({ n }) =>
          n <= 4 ? fail({ reason: "rate_limited", status: 429, retryAfterMs: 1e17 }) : from(model)
        )
        const end = yield* runOf(jobOf(20), llm.layer)
        assertIncludes(end, { status: "suspended", failed: 0, held: 0 })
        assert.strictEqual(end.reason?.kind, "outage")
      })
    ))

  it("a tokenizer that counts NaN does not stop a run with a limit of tokens", () =>
    inMemory(
      Effect.gen(function* () {
        const llm = named("a", () => from(model))
        const counting = Tokenizer.layer(() => Number.NaN)
        const end = yield* Effect.provide(runOf(jobOf(20), llm.layer, { tokensPerMinute: 100_000 }), counting)
        assertIncludes(end, { done: 20, held: 0 })
      })
    ))
})

describe("money", () => {
  it("what the provider says that it billed is known, whatever its tokens are", () =>
    inMemory(
      Effect.gen(function* () {
        const llm = named("a", () => from(model, { usage: undefined, cost: Usd.nano(1_000) }))
        assertIncludes(yield* runOf(jobOf(20), llm.layer), { done: 20, spent: 20 * 1_000, uncertain: 0 })
      })
    ))

  it("a bill of its own above the hold is booked in full, and stops the run", () =>
    inMemory(
      Effect.gen(function* () {
        const cost = Usd.nano(5_000_000)
        assert.isBelow(holdOf(), cost)
        const llm = named("a", () => Effect.delay(from(model, { usage: undefined, cost }), 100))
        const end = yield* runOf(jobOf(50), llm.layer, { maxCostUsd: 0.01 })
        // The four that were under way.
        assertIncludes(end, { status: "suspended", calls: 4, spent: 4 * cost, uncertain: 0, held: 0 })
        assert.strictEqual(end.reason?.kind, "breach")
      })
    ))

  for (const [name, answered] of [
    ["of a model without a price", from("scripted@eastus")],
    ["above the output limit", from(model, { usage: tokens(10, 500) })],
    ["of a tier without a factor", from(model, { tier: "scale" })]
  ] as const) {
    it(`without a cap an answer ${name} does not stop the run`, () =>
      inMemory(
        Effect.gen(function* () {
          const llm = named("a", () => answered)
          const uncapped = { maxCostUsd: undefined, noCap: true }
          assertIncludes(yield* runOf(jobOf(20), llm.layer, uncapped), { status: "done", done: 20, reason: null })
        })
      ))
  }

  it("under a cap a tier whose price is not known is refused before the first call", () =>
    inMemory(
      Effect.gen(function* () {
        const llm = named("a", ({ request }) => from(model, { tier: request.tier }))
        const error = yield* Effect.flip(runOf(jobOf(20, { tier: "priority" }), llm.layer))
        assertIncludes(error, { _tag: "RunRefused", reason: "unpriced" })
        assert.include(error.message, '"priority"')
        assert.strictEqual(llm.counts.calls, 0)
        // With its factor it runs, at twice the price.
        const end = yield* runOf(jobOf(20, { tier: "priority" }), llm.layer, {}, tiered)
        assertIncludes(end, { done: 20, spent: 2 * 20 * 4_500 })
      })
    ))

  it("the cap holds where a project's default tier is a dear one", () =>
    inMemory(
      Effect.gen(function* () {
        const hold = holdOf({ model, from: "1970-01-01", input: 0.15, output: 0.6, tiers: { priority: 2 } })
        const llm = named("a", () => Effect.delay(from(model, { usage: tokens(60, 100), tier: "priority" }), 100))
        const cap = Math.floor(hold * 8.5)
        const end = yield* runOf(jobOf(100), llm.layer, { maxCostUsd: cap / 1e9, maxConcurrency: 8 }, tiered)
        // Room for eight holds: as many go at once, and each costs twice 60 + 100 tokens.
        assertIncludes(end, { status: "suspended", held: 0, uncertain: 0, spent: end.calls * 2 * (9_000 + 60_000) })
        assert.strictEqual(llm.counts.most, 8)
        assert.isAtMost(end.spent, cap)
        assert.strictEqual(end.reason?.kind, "budget")
      })
    ))

  it("a failed call that was billed costs what its tier costs", () =>
    inMemory(
      Effect.gen(function* () {
        const usage = { ...tokens(1_000, 50), cost: Usd.zero }
        const llm = named("a", () => fail({ reason: "content_filter", category: "PERMANENT", charge: "known", usage }))
        const end = yield* runOf(jobOf(1, { tier: "priority" }), llm.layer, {}, tiered)
        assertIncludes(end, { failed: 1, spent: 2 * (1_000 * 150 + 50 * 600), uncertain: 0 })
      })
    ))

  it("a budget around a program by hand refuses a price that cannot be right", () =>
    inMemory(
      Effect.gen(function* () {
        const llm = scripted(() => good())
        const perToken = Price.layer([{ model, from: "1970-01-01", input: 0.000_000_15, output: 0.000_000_6 }])
        const error = yield* agentOf()
          .run({ id: 1, text: "row 1" })
          .pipe(
            Budget.within({ runId: "hand", maxCostUsd: 1 }),
            Effect.provide(Layer.merge(llm.layer, perToken)),
            Effect.flip
          )
        assert.isTrue(error._tag === "RunStopped" && error.reason.kind === "unpriced", String(error))
        assert.strictEqual(llm.counts.calls, 0)
      })
    ))
})

describe("a rate limit that never ends", () => {
  it("for one row, while others are answered: the row is asked twenty times and fails", () =>
    inMemory(
      Effect.gen(function* () {
        const hold = holdOf()
        const llm = named("a", ({ row }) =>
          idOf(row) === 3
            ? fail({ reason: "rate_limited", status: 200, charge: "uncertain" })
            : Effect.delay(from(model), 5_000)
        )
        const end = yield* runOf(jobOf(400, standard), llm.layer, { maxConcurrency: 2 })
        assertIncludes(end, { status: "done", done: 399, failed: 1, calls: 399 + 20, uncertain: 20 * hold, held: 0 })
      })
    ))

  it("of which nobody knows whether it is one: the tries of the row end, and with all rows refused the run", () =>
    inMemory(
      Effect.gen(function* () {
        const unknown = fail({ reason: "rate_limited", category: "UNKNOWN", status: 429 })
        const one = named("a", ({ row }) => (idOf(row) === 3 ? unknown : Effect.delay(from(model), 500)))
        // Three tries a row.
        assertIncludes(yield* runOf(jobOf(40), one.layer), { done: 39, failed: 1, calls: 39 + 3 })
        const all = named("b", () => unknown)
        const end = yield* Effect.provide(runOf(jobOf(2), all.layer), Memory.layer)
        assertIncludes(end, { status: "suspended", failed: 0, pending: 2 })
        assert.strictEqual(end.reason?.kind, "outage")
      })
    ))

  it("long over is not the beginning of the next one", () =>
    inMemory(
      Effect.gen(function* () {
        let refusals = 2
        const llm = named("a", () => (refusals-- > 0 ? fail({ reason: "rate_limited", status: 429 }) : from(model)))
        // The first run is stopped before it was answered.
        yield* Effect.scoped(
          Effect.gen(function* () {
            const handle = yield* Enrichment.start(jobOf(1), { runId: "stopped" })
            yield* Effect.sleep(200)
            yield* handle.stop
            yield* Effect.sleep(1_000)
          })
        ).pipe(Effect.provide(Budget.layer({ maxCostUsd: 1 })), Effect.provide([llm.layer, prices]))
        assert.strictEqual(refusals, 1)
        yield* Effect.sleep("1 hour")
        assertIncludes(yield* runOf(jobOf(3), llm.layer), { status: "done", done: 3 })
      })
    ))
})

describe("after a bad time", () => {
  for (const [name, failures, error] of [
    ["a 429", 1, { reason: "rate_limited", status: 429, retryAfterMs: 1_000 }],
    ["an outage", 12, { reason: "server_error" }]
  ] as const) {
    it(`${name}: a provider that refuses rows is there, so they go at the full width again`, () =>
      inMemory(
        Effect.gen(function* () {
          const llm = named("a", ({ n }) => {
            if (n === 1) return from(model)
            return n <= 1 + failures ? fail(error) : Effect.delay(refused, 1_000)
          })
          const end = yield* runOf(jobOf(161, standard), llm.layer, { maxConcurrency: 8 })
          assertIncludes(end, { status: "done", done: 1, failed: 160 })
          // One by one it would be 160 seconds.
          assert.isBelow(end.at, 80_000)
        })
      ))
  }

  it("an outage of 503: the width is what the first burst left of it, not one", () =>
    inMemory(
      Effect.gen(function* () {
        const llm = named("a", () =>
          Effect.flatMap(Clock.currentTimeMillis, (now) =>
            Effect.delay(now > 10_000 && now < 130_000 ? fail({ charge: "uncertain" }) : from(model), 800)
          )
        )
        const events = yield* eventsOf(jobOf(1_000, standard), llm.layer, { maxConcurrency: 16 })
        assertIncludes(endOf(events), { status: "done", done: 1_000, failed: 0 })
        const up = events.find(({ event }) => event._tag === "ProviderUp")?.at ?? 0
        assert.isAbove(up, 130_000)
        // Three quarters of sixteen, ten times in eight seconds.
        assert.isAtLeast(llm.counts.begunAt.filter((at) => at >= up && at < up + 8_000).length, 12 * 10)
      })
    ))

  it("the last rows of a run go as wide as the first ones", () =>
    inMemory(
      Effect.gen(function* () {
        const llm = named("a", () =>
          Effect.flatMap(Clock.currentTimeMillis, (now) =>
            now < 40_000 ? Effect.delay(fail({ reason: "server_error" }), 1_000) : Effect.delay(from(model), 60_000)
          )
        )
        const end = yield* runOf(jobOf(32, standard), llm.layer, { maxConcurrency: 16 })
        assertIncludes(end, { status: "done", done: 32, failed: 0 })
        // One by one it would be 32 minutes.
        assert.isBelow(end.at, 16 * 60_000)
      })
    ))

  it("an outage of fifty minutes within the limit of an hour fails no row, one call at a time", () =>
    inMemory(
      Effect.gen(function* () {
        const llm = named("a", ({ n }) =>
          Effect.flatMap(Clock.currentTimeMillis, (now) =>
            n > 3 && now < 50 * 60_000 ? fail() : Effect.delay(from(model), 500)
          )
        )
        const run = runOf(jobOf(10), llm.layer, { maxConcurrency: 1 })
        const patient = CircuitBreaker.layer({ outageMs: 3_600_000 })
        assertIncludes(yield* Effect.provide(run, patient), { status: "done", done: 10, failed: 0 })
      })
    ))
})

describe("time", () => {
  it("a clock that is set back an hour does not stop a paced run", () =>
    inMemory(
      Effect.gen(function* () {
        const base = yield* Effect.clock
        let ahead = 7_200_000
        const clock: Clock.Clock = {
          [Clock.ClockTypeId]: Clock.ClockTypeId,
          unsafeCurrentTimeMillis: () => base.unsafeCurrentTimeMillis() + ahead,
          unsafeCurrentTimeNanos: () => base.unsafeCurrentTimeNanos(),
          currentTimeMillis: Effect.sync(() => base.unsafeCurrentTimeMillis() + ahead),
          currentTimeNanos: base.currentTimeNanos,
          sleep: (duration) => base.sleep(duration)
        }
        const llm = named("a", ({ n }) => {
          if (n === 5) ahead = 3_600_000
          return from(model)
        })
        const run = runOf(jobOf(20), llm.layer, { requestsPerMinute: 60 })
        assertIncludes(yield* Effect.withClock(run, clock), { done: 20 })
        // One a second.
        assert.closeTo(base.unsafeCurrentTimeMillis(), 19_000, 1_000)
      })
    ))

  it("no timer outlives a run that was stopped in an outage", () =>
    inMemory(
      Effect.gen(function* () {
        const base = yield* Effect.clock
        let timers = 0
        const clock: Clock.Clock = {
          ...base,
          [Clock.ClockTypeId]: Clock.ClockTypeId,
          sleep: (duration) =>
            Effect.acquireUseRelease(
              Effect.sync(() => timers++),
              () => base.sleep(duration),
              () => Effect.sync(() => timers--)
            )
        }
        const llm = named("a", () => fail())
        const stopped = Effect.scoped(
          Effect.gen(function* () {
            const handle = yield* Enrichment.start(jobOf(3, standard), { runId })
            yield* base.sleep(Duration.millis(300))
            // The cool-down's at least.
            assert.isAbove(timers, 0)
            yield* handle.stop
            return yield* handle.await
          })
        ).pipe(
          Effect.provide(Budget.layer({ maxCostUsd: 1 })),
          Effect.provide([llm.layer, prices, CircuitBreaker.layer({ threshold: 2 })])
        )
        assertIncludes(yield* Effect.withClock(stopped, clock), { status: "suspended", failed: 0 })
        // Far less than the cool-down.
        yield* base.sleep(Duration.seconds(1))
        assert.strictEqual(timers, 0)
      })
    ))
})
