import { assert, describe, it } from "@effect/vitest"
import { Chunk, Clock, Effect, Either, Fiber, Option, Stream } from "effect"
import * as Budget from "../../src/programs/Budgets.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import type { ChatAnswer } from "../../src/services/LLM.ts"
import * as LLM from "../../src/services/LLM.ts"
import * as Retry from "../../src/services/Retry.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { idOf } from "../support/scriptedJob.ts"
import { fail, model, type Script, tokens } from "../support/scriptedLlm.ts"
import { eventsOf, from, inMemory, type Job, jobOf, named, prices, runId, runOf } from "../support/twoProviders.ts"

const spare = [{ model: "spare", provider: "b" }]
const noQuota = fail({ reason: "quota", category: "PERMANENT", scope: "run", message: "no quota" })
const limited = (retryAfterMs: number) => fail({ reason: "rate_limited", status: 429, retryAfterMs })
const broken = fail({ reason: "server_error", charge: "uncertain" })

/** Who answered each row. */
const answeredBy = (job: Job) =>
  Effect.map(Stream.runCollect(Enrichment.results(runId, job.agent.output)), (rows) =>
    Chunk.toReadonlyArray(rows).map(({ outcome }) =>
      Option.match(outcome, {
        onNone: () => "pending",
        onSome: Either.match({
          onLeft: ({ reason }) => reason,
          onRight: ({ parsed }) => parsed?.summary ?? "partial"
        })
      })
    )
  )

describe("a row that one route cannot have", () => {
  it("waits for the one that is away, and comes back", () =>
    inMemory(
      Effect.gen(function* () {
        const tooLong = (row: string) => idOf(row) >= 20 && idOf(row) < 25
        const first = named("a", ({ n }) =>
          Effect.flatMap(Clock.currentTimeMillis, (now) =>
            n > 5 && now < 60_000 ? fail() : Effect.delay(from(model), 200)
          )
        )
        const second = named("b", ({ request, row }) =>
          tooLong(row)
            ? fail({ reason: "context_length", category: "PERMANENT" })
            : Effect.delay(from(request.model), 1_000)
        )
        const job = jobOf(60, { fallback: spare })
        assertIncludes(yield* runOf(job, LLM.several(first.layer, second.layer)), { done: 60, failed: 0, held: 0 })
        assert.deepStrictEqual(
          (yield* answeredBy(job)).slice(20, 25),
          [20, 21, 22, 23, 24].map(() => model)
        )
      })
    ))

  it("waits for a fallback that is down, while the others go on at the first", () =>
    inMemory(
      Effect.gen(function* () {
        const bad = (row: string) => idOf(row) < 5
        const tooLong = fail({ reason: "context_length", category: "PERMANENT", status: 400 })
        const first = named("a", ({ row }) => Effect.delay(bad(row) ? tooLong : from(model), 100))
        const second = named("b", ({ request }) =>
          Effect.flatMap(Clock.currentTimeMillis, (now) => (now < 120_000 ? broken : from(request.model)))
        )
        const job = jobOf(90, { fallback: spare })
        const end = yield* runOf(job, LLM.several(first.layer, second.layer))
        assertIncludes(end, { status: "done", done: 90, failed: 0, held: 0 })
        assert.deepStrictEqual(
          yield* answeredBy(job),
          Array.from({ length: 90 }, (_, id) => (id < 5 ? "spare" : model))
        )
        // What the first answers was not held up by it.
        const good = first.counts.requests.flatMap(({ messages }, i) =>
          bad(messages.at(-1)?.content ?? "") ? [] : [first.counts.begunAt[i] ?? 0]
        )
        assert.isBelow(Math.max(...good), 120_000)
      })
    ))

  it("goes on at the fallback where the first refuses every request", () =>
    inMemory(
      Effect.gen(function* () {
        const first = named("a", () => fail({ reason: "bad_request", category: "PERMANENT", status: 400 }))
        const second = named("b", ({ request }) => from(request.model))
        const end = yield* runOf(jobOf(60, { fallback: spare }), LLM.several(first.layer, second.layer))
        assertIncludes(end, { done: 60, failed: 0 })
        // Ten refusals tell; three more were under way.
        assert.isAtMost(first.counts.calls, 10 + 3)
      })
    ))
})

describe("a route that is left", () => {
  it("gives a row that was tried there its own tries at the other", () =>
    inMemory(
      Effect.gen(function* () {
        const first = named("a", ({ n }) =>
          Effect.delay(n <= 4 ? from(model) : fail({ reason: "timeout", charge: "uncertain" }), n <= 4 ? 100 : 1_000)
        )
        const second = named("b", ({ nth, request, row }) =>
          nth === 1 && idOf(row) < 12 ? Effect.delay(broken, 50) : Effect.delay(from(request.model), 100)
        )
        const end = yield* runOf(jobOf(60, { fallback: spare }), LLM.several(first.layer, second.layer))
        assertIncludes(end, { status: "done", done: 60, failed: 0 })
        // Nobody waits for the one that was left.
        assert.isBelow(end.at, 300_000)
      })
    ))

  it("gets no call that was only queued for it", () =>
    inMemory(
      Effect.gen(function* () {
        let leftAt = Number.POSITIVE_INFINITY
        const first = named("a", ({ n }) =>
          n <= 6
            ? Effect.delay(from(model), 500)
            : Effect.zipRight(
                Effect.sleep(500),
                Effect.flatMap(Clock.currentTimeMillis, (now) => {
                  leftAt = Math.min(leftAt, now)
                  return noQuota
                })
              )
        )
        const second = named("b", ({ request }) => Effect.delay(from(request.model), 500))
        const end = yield* runOf(jobOf(40, { fallback: spare }), LLM.several(first.layer, second.layer))
        assertIncludes(end, { done: 40, held: 0, calls: first.counts.calls + second.counts.calls })
        assert.isBelow(leftAt, Number.POSITIVE_INFINITY)
        assert.deepStrictEqual(
          first.counts.begunAt.filter((at) => at >= leftAt),
          []
        )
      })
    ))

  it("does not hold the other one up by the time that it asked for", () =>
    inMemory(
      Effect.gen(function* () {
        const first = named("a", ({ n }) =>
          n === 1 ? Effect.delay(noQuota, 100) : Effect.delay(limited(500_000), 200)
        )
        const second = named("b", ({ request }) => Effect.delay(from(request.model), 100))
        const end = yield* runOf(jobOf(40, { fallback: spare }), LLM.several(first.layer, second.layer))
        assertIncludes(end, { done: 40, failed: 0 })
        assert.isBelow(end.at, 500_000)
      })
    ))

  it("does not hold the other one up by its limit of requests", () =>
    inMemory(
      Effect.gen(function* () {
        const first = named("a", ({ n }) => (n === 1 ? from(model, { limits: { requestsPerMinute: 6 } }) : noQuota))
        const second = named("b", ({ request }) => from(request.model))
        const end = yield* runOf(jobOf(40, { fallback: spare }), LLM.several(first.layer, second.layer))
        assertIncludes(end, { done: 40, failed: 0 })
        // At six a minute the second call alone would wait that long.
        assert.isBelow(end.at, 10_000)
      })
    ))

  it("lets a row that backs off there go on at the other", () =>
    inMemory(
      Effect.gen(function* () {
        const first = named("a", ({ n }) =>
          n === 1 ? fail({ reason: "overloaded", status: 503, retryAfterMs: 590_000 }) : Effect.delay(noQuota, 300)
        )
        const second = named("b", ({ request }) => Effect.delay(from(request.model), 100))
        const end = yield* runOf(jobOf(10, { fallback: spare }), LLM.several(first.layer, second.layer))
        assertIncludes(end, { done: 10, failed: 0 })
        assert.isBelow(end.at, 590_000)
      })
    ))
})

describe("a wish to wait", () => {
  for (const [name, wish] of [
    ["ten minutes", 590_000],
    ["thirty days", 30 * 86_400_000]
  ] as const) {
    it(`of ${name} is not waited for where another one is there`, () =>
      inMemory(
        Effect.gen(function* () {
          const first = named("a", ({ n }) => (n === 5 ? limited(wish) : Effect.delay(from(model), 300)))
          const second = named("b", ({ request }) => Effect.delay(from(request.model), 300))
          const job = jobOf(20, { fallback: spare })
          const events = yield* eventsOf(job, LLM.several(first.layer, second.layer))
          assert.isBelow(events.at(-1)?.at ?? wish, wish)
          assert.strictEqual(events.filter(({ event }) => event._tag === "ProviderLeft").length, 1)
          const who = yield* answeredBy(job)
          assert.deepStrictEqual(
            [who.filter((name) => name === model).length, who.filter((name) => name === "spare").length],
            [first.counts.calls - 1, second.counts.calls]
          )
          assert.isAbove(second.counts.calls, 0)
        })
      ))
  }

  it("of seconds is waited for", () =>
    inMemory(
      Effect.gen(function* () {
        const first = named("a", ({ n }) => (n === 1 ? limited(20_000) : from(model)))
        const second = named("b", ({ request }) => from(request.model))
        const end = yield* runOf(jobOf(20, { fallback: spare }), LLM.several(first.layer, second.layer))
        assertIncludes(end, { done: 20, failed: 0 })
        assert.strictEqual(second.counts.calls, 0)
        assert.isAtLeast(end.at, 20_000)
      })
    ))

  for (const [name, second] of [
    ["of the fallback", ({ n, request }) => (n === 1 ? limited(20_000) : from(request.model))],
    ["of the fallback in its limits", ({ request }) => from(request.model, { limits: { requestsPerMinute: 6 } })]
  ] satisfies ReadonlyArray<readonly [string, Script]>) {
    it(`${name} does not hold the first one up`, () =>
      inMemory(
        Effect.gen(function* () {
          const tooLong = fail({ reason: "context_length", category: "PERMANENT", status: 400 })
          const a = named("a", ({ row }) => Effect.delay(idOf(row) === 3 ? tooLong : from(model), 500))
          const b = named("b", second)
          const job = jobOf(200, { fallback: spare })
          assertIncludes(yield* runOf(job, LLM.several(a.layer, b.layer)), { done: 200, failed: 0 })
          assert.strictEqual((yield* answeredBy(job))[3], "spare")
          // Half a second a call, so there is never more between two that begin.
          const gaps = a.counts.begunAt.slice(1).map((at, i) => at - (a.counts.begunAt[i] ?? 0))
          assert.isAtMost(Math.max(...gaps), 500)
        })
      ))
  }
})

describe("the question to a fallback", () => {
  it("is put in the way that this provider knows", () =>
    inMemory(
      Effect.gen(function* () {
        const first = named("a", () => noQuota, { outputMode: "json_schema" })
        const second = named("b", ({ request }) => from(request.model), { outputMode: "json_object" })
        yield* runOf(jobOf(1, { fallback: spare }), LLM.several(first.layer, second.layer))
        const [asked] = second.counts.requests
        assert.strictEqual(asked?.format.mode, "json_object")
        // A server without schemas reads it in the prompt.
        assert.include(asked?.messages[0]?.content ?? "", '"summary"')
        assert.strictEqual(first.counts.requests[0]?.format.mode, "json_schema")
      })
    ))

  it("does not name the first provider's tier", () =>
    inMemory(
      Effect.gen(function* () {
        const first = named("a", () => noQuota)
        const second = named("b", ({ request }) => from(request.model))
        const job = jobOf(1, { fallback: spare, tier: "default" })
        yield* runOf(job, LLM.several(first.layer, second.layer))
        assert.deepStrictEqual(
          [first, second].map(({ counts }) => counts.requests[0]?.tier),
          ["default", undefined]
        )
      })
    ))

  it("may go to any provider of several that were put together one by one", () =>
    inMemory(
      Effect.gen(function* () {
        const [a, b, c] = [
          named("a", () => noQuota),
          named("b", () => noQuota),
          named("c", ({ request }) => from(request.model))
        ]
        const llm = LLM.several(LLM.several(a.layer, b.layer), c.layer)
        const shape = yield* Effect.provide(LLM.LLM, llm)
        assert.deepStrictEqual(
          shape.others?.map(({ provider }) => provider),
          ["b", "c"]
        )
        const job = jobOf(5, { fallback: [...spare, { model: "spare", provider: "c" }] })
        assertIncludes(yield* runOf(job, llm), { done: 5 })
      })
    ))
})

describe("what a fallback answered", () => {
  /** Interrupted between its answer, which does not fit, and the repair of it. `isBack`: the first one is there again when it goes on. */
  const cutShort = (fallback: string, isBack = false) =>
    Effect.gen(function* () {
      let hangs = true
      const first = named("a", () => (hangs || !isBack ? noQuota : from(model)))
      const second = named("b", ({ nth, request }) => {
        if (nth === 1) return from(request.model, { text: "{" })
        return hangs ? Effect.never : from(request.model)
      })
      const job = jobOf(1, { fallback: [{ model: fallback, provider: "b" }] })
      const llm = LLM.several(first.layer, second.layer)
      const fiber = yield* Enrichment.run(job, { runId, graceMs: 0 }).pipe(
        Effect.provide(Budget.layer({ maxCostUsd: 1 })),
        Effect.provide([llm, prices]),
        Effect.fork
      )
      yield* Effect.sleep(2_000)
      yield* Fiber.interrupt(fiber)
      hangs = false
      return { end: yield* runOf(job, llm), first, job, llm, second }
    })

  it("is not paid for again after a crash: the repair alone is asked", () =>
    inMemory(
      Effect.gen(function* () {
        const { end, second } = yield* cutShort("spare")
        assertIncludes(end, { done: 1, repairs: 1, held: 0 })
        // The answer, the repair that was cut off, the repair.
        assert.strictEqual(second.counts.calls, 3)
      })
    ))

  const straight = Effect.gen(function* () {
    const first = named("a", () => noQuota)
    const second = named("b", ({ request }) => from(request.model))
    const job = jobOf(1, { fallback: [{ model, provider: "b" }] })
    const llm = LLM.several(first.layer, second.layer)
    return { end: yield* runOf(job, llm), first, job, llm, second }
  })
  for (const [name, play, calls] of [
    ["live", straight, 2],
    ["replayed after a crash", cutShort(model), 2],
    ["replayed after a crash, and the first one repaired it", cutShort(model, true), 1]
  ] as const) {
    it(`is not stored for other runs, even under the same model's name: ${name}`, () =>
      inMemory(
        Effect.gen(function* () {
          const { end, first, job, llm, second } = yield* play
          assertIncludes(end, { done: 1 })
          const asked = () => first.counts.calls + second.counts.calls
          const before = asked()
          const other = yield* Enrichment.run(job, { runId: "other" }).pipe(
            Effect.provide(Budget.layer({ maxCostUsd: 1 })),
            Effect.provide([llm, prices])
          )
          assertIncludes(other, { done: 1, storeHits: 0 })
          assert.strictEqual(asked(), before + calls)
        })
      ))
  }

  it("is drift once the prompt is another", () =>
    inMemory(
      Effect.gen(function* () {
        const llm = named("a", ({ request }) => (request.model === model ? fail() : from(request.model)))
        const fallback = [{ model: "spare" }]
        assertIncludes(yield* runOf(jobOf(3, { fallback }), llm.layer), { done: 3 })
        const refused = yield* Effect.flip(runOf(jobOf(3, { fallback, system: "Another prompt." }), llm.layer))
        assertIncludes(refused, { _tag: "RunRefused", reason: "drift" })
      })
    ))
})

describe("chaos", () => {
  const dice = (seed: number) => () => {
    seed = (seed * 1_103_515_245 + 12_345) % 2 ** 31
    return seed / 2 ** 31
  }
  /** Sixty answers of a hundred, the rest is whatever a provider can do. */
  const any = (name: string, roll: () => number): Effect.Effect<ChatAnswer, Effect.Effect.Error<typeof broken>> =>
    Effect.suspend(() => {
      const what = roll()
      const ms = Math.floor(roll() * 3_000)
      if (what < 0.6) return Effect.delay(from(name), ms)
      if (what < 0.65) return Effect.delay(fail({ reason: "rate_limited", status: 429 }), ms)
      if (what < 0.7) return Effect.delay(limited(Math.floor(roll() * 20_000)), ms)
      if (what < 0.8) return Effect.delay(fail({ charge: "uncertain" }), ms)
      if (what < 0.9) return Effect.delay(fail({ reason: "timeout", charge: "uncertain" }), 10 * ms)
      if (what < 0.95) return Effect.delay(fail({ reason: "bad_request", category: "PERMANENT" }), ms)
      if (what < 0.97) return Effect.die(new Error("a defect"))
      const limits = { requestsPerMinute: 100 + Math.floor(roll() * 500), waitMs: roll() < 0.3 ? 5_000 : undefined }
      return Effect.delay(from(name, { limits, usage: tokens(10, 5) }), ms)
    })

  for (const seed of [1, 2, 3]) {
    it(`two providers that fail in every way and are down in turns, seed ${seed}: it ends, nothing is held, every call is counted`, () =>
      inMemory(
        Effect.gen(function* () {
          const roll = dice(seed)
          const down = (everyMs: number, which: number, of: number) =>
            Effect.map(Clock.currentTimeMillis, (now) => Math.floor(now / everyMs) % of === which)
          const first = named("a", ({ request }) =>
            Effect.if(down(60_000, 1, 3), { onTrue: () => broken, onFalse: () => any(request.model, roll) })
          )
          const second = named("b", ({ request }) =>
            Effect.if(down(45_000, 2, 4), { onTrue: () => broken, onFalse: () => any(request.model, roll) })
          )
          const job = jobOf(150, { fallback: spare, retry: Retry.standard })
          const end = yield* runOf(job, LLM.several(first.layer, second.layer), { maxConcurrency: 8, maxCostUsd: 100 })
          assertIncludes(end, { status: "done", pending: 0, held: 0 })
          assert.strictEqual(end.calls, first.counts.calls + second.counts.calls)
          assert.strictEqual(end.done + end.failed, 150)
          // Each of these calls may have been billed, so no row gets many of them.
          for (const { counts } of [first, second]) assert.isAtMost(Math.max(...counts.byRow.values()), 20)
        })
      ))
  }
})
