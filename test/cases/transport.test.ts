import { assert, describe, it } from "@effect/vitest"
import { Effect, Fiber } from "effect"
import * as Memory from "../../src/layers/Memory.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { inOrder, play, type Reply, repliesOf } from "../support/fixtureServer.ts"
import {
  assertSound,
  BILL,
  failureOf,
  fixture,
  good,
  HOLD,
  jobOf,
  quick,
  run,
  runId,
  thenGood,
  until,
  vendors
} from "./vendors.ts"

const broken: Reply = { status: 200, headers: {}, body: "", wire: { send_bytes: 0, ends: "reset" } }

describe("transport", () => {
  it.scopedLive(
    "B07 body-stall: a body that stalls ends at the timeout as uncertain, is tried again, and holds nobody up",
    () =>
      Effect.gen(function* () {
        const server = yield* play(thenGood(fixture("B07-body-stall-http")))
        const begun = Date.now()
        const result = yield* run(jobOf({ rows: vendors(6) }), server, {
          budget: { maxConcurrency: 2 },
          llm: { timeoutMs: 600 }
        })
        assert.isAtMost(Date.now() - begun, 4_000)
        assertSound(result, server.requests.length)
        assertIncludes(result, { status: "done", done: 6, calls: 7, retries: 1, spent: 6 * BILL, uncertain: HOLD })
        // All others were asked while the first one was stalled.
        const stalled = server.requests[0]
        const again = server.requests.filter(({ said }) => said === stalled?.said)[1]
        assert.strictEqual(again?.n ?? 0, 7)
        assert.isAtLeast((again?.at ?? 0) - (stalled?.at ?? 0), 300)
      }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive("B07 body-stall: a run can be shut down while it waits for a stalled body", () =>
    Effect.gen(function* () {
      const server = yield* play(inOrder(fixture("B07-body-stall-http")))
      const fiber = yield* Effect.fork(run(jobOf(), server, { llm: { timeoutMs: 30_000 }, run: { graceMs: 50 } }))
      yield* until(() => server.requests.length >= 1)
      const begun = Date.now()
      yield* Fiber.interrupt(fiber)
      assert.isAtMost(Date.now() - begun, 1_000)
      const totals = yield* Enrichment.status(runId)
      assertSound(totals, 1)
      assertIncludes(totals, { status: "suspended", pending: 1, failed: 0, uncertain: HOLD })
    }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive("B103 html-502: a proxy's page is a passing failure by its status, and is tried again", () =>
    Effect.gen(function* () {
      const server = yield* play(inOrder(fixture("B103-html-502-http-seq")))
      const result = yield* run(jobOf(), server)
      assertSound(result, server.requests.length)
      assertIncludes(result, { status: "done", done: 1, calls: 2, retries: 1, spent: BILL, uncertain: HOLD })
    }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive("B103 html-502: what is said of it is one short line without the page", () =>
    Effect.gen(function* () {
      const [page] = repliesOf(fixture("B103-html-502-http-seq"))
      const server = yield* play(() => ({
        ...(page ?? broken),
        body: `${String(page?.body)}${"<p>x</p>".repeat(20_000)}`
      }))
      yield* run(jobOf({ retry: quick(1) }), server)
      const { message, cause } = yield* failureOf("V-001")
      assert.match(message, /502/)
      assert.notMatch([message, ...cause].join(), /[<>\r\n]/)
      assert.isAtMost(message.length, 300)
    }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive(
    "B122 done-without-fin: a stream that is left open ends at the timeout, eight at once too, and is dropped",
    () =>
      Effect.gen(function* () {
        const [stream] = repliesOf(fixture("B122-done-without-fin-http-sse"))
        const server = yield* play((seen) => (seen.n <= 8 && stream !== undefined ? stream : good(seen)))
        const begun = Date.now()
        const result = yield* run(jobOf({ rows: vendors(8) }), server, { llm: { timeoutMs: 800 } })
        assert.isAtMost(Date.now() - begun, 4_000)
        assertSound(result, server.requests.length)
        assertIncludes(result, { status: "done", done: 8, calls: 16, retries: 8, spent: 8 * BILL, uncertain: 8 * HOLD })
        yield* until(() => server.live() === 0)
      }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive(
    "B142 keepalive-reset A: a connection that is reset before a byte of the request is read costs the row nothing but a try",
    () =>
      Effect.gen(function* () {
        const server = yield* play(good, { resets: 1 })
        const result = yield* run(jobOf(), server)
        // The server knows nothing of the first one.
        assert.lengthOf(server.requests, 1)
        assertIncludes(result, { status: "done", done: 1, calls: 2, retries: 1, spent: BILL, uncertain: HOLD, held: 0 })
      }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive("B142 keepalive-reset A: a connection that is refused is not charged", () =>
    Effect.gen(function* () {
      const gone = yield* Effect.scoped(play(good))
      const result = yield* run(jobOf({ retry: quick(2) }), gone)
      assertIncludes(result, { failed: 1, calls: 2, spent: 0, uncertain: 0 })
      assertIncludes(yield* failureOf("V-001"), { reason: "connection", category: "TRANSIENT" })
    }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive("B142 keepalive-reset A: a pooled connection that the server closed meanwhile fails no row", () =>
    Effect.gen(function* () {
      const server = yield* play(good)
      const first = yield* run(jobOf({ rows: vendors(4) }), server)
      assertIncludes(first, { done: 4 })
      server.closeIdle()
      const second = yield* run(jobOf({ rows: vendors(8) }), server, { run: { runId: "second" } })
      assertIncludes(second, { status: "done", done: 8, failed: 0, storeHits: 4 })
      assert.isAtMost(second.uncertain, 4 * HOLD)
    }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive(
    "B142 keepalive-reset B: a reset after the request was sent is tried again, the first try uncertain",
    () =>
      Effect.gen(function* () {
        const server = yield* play(thenGood(broken))
        const result = yield* run(jobOf(), server)
        assertSound(result, server.requests.length)
        assertIncludes(result, { status: "done", done: 1, calls: 2, retries: 1, spent: BILL, uncertain: HOLD })
      }).pipe(Effect.provide(Memory.layer))
  )
})
