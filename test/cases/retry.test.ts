import { assert, describe, it } from "@effect/vitest"
import { Chunk, Effect, Fiber, Layer, Redacted, Stream } from "effect"
import * as Memory from "../../src/layers/Memory.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import * as ExitCode from "../../src/programs/ExitCode.ts"
import * as Budget from "../../src/services/Budget.ts"
import * as CircuitBreaker from "../../src/services/CircuitBreaker.ts"
import { LLM } from "../../src/services/LLM.ts"
import * as Retry from "../../src/services/Retry.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { inOrder, play, type Reply, type Script } from "../support/fixtureServer.ts"
import {
  assertSound,
  BILL,
  failureOf,
  fixture,
  good,
  HOLD,
  idOf,
  jobOf,
  openai,
  prices,
  quick,
  resultsOf,
  run,
  runId,
  until,
  vendors
} from "./vendors.ts"

const failing = (status: number, error: object): Reply => ({
  status,
  headers: { "content-type": "application/json" },
  body: { error }
})
const unavailable = failing(503, { message: "no upstream is healthy", type: "server_error" })
const silence: Reply = { status: 200, headers: {}, body: "", wire: { send_bytes: 0, ends: "stall" } }
const numberOf = (seen: Parameters<typeof idOf>[0]): number => Number(idOf(seen).slice(2))

describe("retry classification", () => {
  it.scopedLive(
    "B17 insufficient-quota: an empty account stops the run at once, costs nothing, and a resume goes on",
    () =>
      Effect.gen(function* () {
        let empty = true
        const refuse = inOrder(fixture("B17-insufficient-quota-http"))
        const server = yield* play((seen) => (empty ? refuse(seen) : good(seen)))
        const job = jobOf({ rows: vendors(50) })
        const result = yield* run(job, server)
        assertSound(result, server.requests.length)
        assertIncludes(result, { status: "suspended", pending: 50, failed: 0, spent: 0, uncertain: 0, retries: 0 })
        assert.deepStrictEqual(result.reason, {
          kind: "provider",
          message: "You exceeded your current quota, please check your plan and billing details."
        })
        assert.isAtMost(server.requests.length, 8)
        assert.strictEqual(ExitCode.ofResult(result), 4)
        empty = false
        const resumed = yield* run(job, server)
        assertSound(resumed, server.requests.length)
        assertIncludes(resumed, { status: "done", done: 50, spent: 50 * BILL, uncertain: 0 })
      }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive("B29 auth-mid-run: a key that is revoked half way suspends the run; a new one finishes it", () =>
    Effect.gen(function* () {
      const refuse = inOrder(fixture("B29-auth-mid-run-http"))
      const server = yield* play((seen) =>
        numberOf(seen) <= 20 || seen.authorization === "Bearer sk-new" ? good(seen) : refuse(seen)
      )
      const job = jobOf({ rows: vendors(100) })
      const result = yield* run(job, server)
      assertSound(result, server.requests.length)
      assertIncludes(result, { status: "suspended", done: 20, pending: 80, failed: 0, spent: 20 * BILL, uncertain: 0 })
      assert.strictEqual(result.reason?.kind, "provider")
      assert.include(result.reason?.message ?? "", "Incorrect API key provided")
      assert.isAtMost(server.requests.length - 20, 8)
      assert.notStrictEqual(ExitCode.ofResult(result), 0)
      const before = server.requests.length
      const resumed = yield* run(job, server, { llm: { apiKey: Redacted.make("sk-new") } })
      assertSound(resumed, server.requests.length)
      assertIncludes(resumed, { status: "done", done: 100, spent: 100 * BILL })
      assert.strictEqual(server.requests.length - before, 80)
    }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive(
    "B30 schema-400: a schema that is refused stops the run with the provider's own words, not 10,000 rows",
    () =>
      Effect.gen(function* () {
        const server = yield* play(inOrder(fixture("B30-schema-400-http")))
        const [first] = vendors(1)
        const name = first?.name ?? ""
        const rows = Array.from({ length: 10_000 }, (_, i) => ({ id: `V-${String(i + 1).padStart(5, "0")}`, name }))
        const result = yield* run(jobOf({ rows }), server)
        assertSound(result, server.requests.length)
        assertIncludes(result, { status: "suspended", pending: 10_000, failed: 0, spent: 0, uncertain: 0 })
        assert.deepStrictEqual(result.reason, {
          kind: "provider",
          message:
            "Invalid schema for response_format 'enriched_vendor': In context=('properties', 'notes'), 'required' is required to be supplied and to be an array including every key in properties. Missing 'notes'."
        })
        assert.isAtMost(server.requests.length, 8)
      }).pipe(Effect.provide(Memory.layer))
  )

  for (const timeoutMs of [300, 1_500]) {
    it.scopedLive(
      `B96 cancel-retried: no request begins after a row's deadline of a second, each takes ${timeoutMs} ms`,
      () =>
        Effect.gen(function* () {
          const server = yield* play(() => silence)
          const deadline = 1_000
          const retry = Retry.policy({ attempts: 5, base: "5 millis", longest: "20 millis", deadline })
          const result = yield* run(jobOf({ retry }), server, { llm: { timeoutMs } })
          assertSound(result, server.requests.length)
          const [first] = server.requests
          for (const { at } of server.requests) assert.isAtMost(at - (first?.at ?? 0), deadline + 250)
          const { calls } = result
          assert.isAtMost(calls, Math.ceil(deadline / timeoutMs))
          assertIncludes(result, { failed: 1, pending: 0, spent: 0, uncertain: calls * HOLD })
          assertIncludes(yield* failureOf("V-001"), { reason: "timeout" })
          yield* Effect.sleep("200 millis")
          assert.strictEqual(server.requests.length, calls)
        }).pipe(Effect.provide(Memory.layer))
    )
  }

  it.scopedLive("B96 cancel-retried: a run that is stopped sends nothing more, and its rows stay pending", () =>
    Effect.gen(function* () {
      const server = yield* play(() => silence)
      const running = run(jobOf({ rows: vendors(4), retry: quick(5) }), server, {
        budget: { maxConcurrency: 2 },
        run: { graceMs: 50 }
      })
      const fiber = yield* Effect.fork(running)
      yield* until(() => server.requests.length >= 2)
      yield* Fiber.interrupt(fiber)
      yield* Effect.sleep("200 millis")
      assert.lengthOf(server.requests, 2)
      const totals = yield* Enrichment.status(runId)
      assertSound(totals, 2)
      assertIncludes(totals, { status: "suspended", failed: 0, pending: 4, spent: 0, uncertain: 2 * HOLD })
    }).pipe(Effect.provide(Memory.layer))
  )
})

describe("retry amplification", () => {
  it.scopedLive("B18 sdk-times-own: three attempts are three requests", () =>
    Effect.gen(function* () {
      const server = yield* play(() => unavailable)
      const result = yield* run(jobOf({ retry: quick(3) }), server)
      assertSound(result, server.requests.length)
      assert.lengthOf(server.requests, 3)
      assertIncludes(result, { failed: 1, calls: 3, retries: 2, spent: 0, uncertain: 3 * HOLD })
      assertIncludes(yield* failureOf("V-001"), { category: "TRANSIENT" })
    }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive("B18 sdk-times-own: one deadline covers all attempts of a row", () =>
    Effect.gen(function* () {
      const server = yield* play(() => unavailable)
      const retry = Retry.policy({ attempts: 9, base: "100 millis", longest: "100 millis", deadline: "250 millis" })
      const result = yield* run(jobOf({ retry }), server)
      assertSound(result, server.requests.length)
      assertIncludes(result, { failed: 1 })
      assert.isAtMost(server.requests.length, 4)
    }).pipe(Effect.provide(Memory.layer))
  )
})

describe("circuit breaker", () => {
  const options = { ...CircuitBreaker.defaults, threshold: 3, coolMs: 20, maxCoolMs: 40, outageMs: 300 }
  const watched = (script: Script) =>
    Effect.gen(function* () {
      const server = yield* play(script)
      const llm = yield* Effect.provide(LLM, openai(server))
      const health = CircuitBreaker.of(llm, options)
      const events = Stream.runCollect(Enrichment.events(jobOf({ rows: vendors(50) }), { runId })).pipe(
        Effect.provide(Budget.layer({ maxCostUsd: 1, maxConcurrency: 4 })),
        Effect.provide([Layer.succeed(LLM, llm), prices])
      )
      const seen = Chunk.toReadonlyArray(yield* events)
      return { server, health, opened: seen.flatMap((event) => (event._tag === "ProviderDown" ? [event.error] : [])) }
    })

  it.scopedLive("B32 4xx-opens: ten bad rows in a row leave the breaker closed and the others unharmed", () =>
    Effect.gen(function* () {
      const { health, opened, server } = yield* watched((seen) =>
        numberOf(seen) > 10
          ? good(seen)
          : numberOf(seen) % 2 === 0
            ? failing(400, { message: "too long", code: "context_length_exceeded" })
            : failing(400, { message: "filtered", code: "content_filter" })
      )
      assert.lengthOf(opened, 0)
      assert.deepStrictEqual(health.state(), CircuitBreaker.closed)
      const totals = yield* Enrichment.status(runId)
      assertSound(totals, server.requests.length)
      assertIncludes(totals, { status: "done", done: 40, failed: 10, calls: 50, retries: 0, spent: 40 * BILL })
      // Some providers bill a prompt that they filtered.
      assert.strictEqual(totals.uncertain, 5 * HOLD)
      assertIncludes(yield* failureOf("V-001"), { reason: "content_filter", category: "PERMANENT" })
      assertIncludes(yield* failureOf("V-002"), { reason: "context_length", category: "PERMANENT" })
    }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive("B32 4xx-opens: a provider that fails opens it, the cause is told, and the rows stay pending", () =>
    Effect.gen(function* () {
      const { opened, server } = yield* watched(() => unavailable)
      assert.isAbove(opened.length, 0)
      for (const open of opened) {
        if (open !== undefined) assert.strictEqual(open.cause.message, "no upstream is healthy")
      }
      const totals = yield* Enrichment.status(runId)
      assertSound(totals, server.requests.length)
      assertIncludes(totals, { status: "suspended", done: 0, failed: 0, pending: 50 })
      assert.strictEqual(totals.reason?.kind, "outage")
      assert.include(totals.reason?.message ?? "", "no upstream is healthy")
      assert.lengthOf(yield* resultsOf, 50)
    }).pipe(Effect.provide(Memory.layer))
  )
})
