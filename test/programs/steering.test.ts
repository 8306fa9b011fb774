import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { Chunk, Effect, Either, Fiber, Layer, Option, type Scope, Stream } from "effect"
import { vi } from "vitest"
import * as Memory from "../../src/layers/Memory.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import * as Budget from "../../src/programs/Budgets.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import * as Report from "../../src/programs/Report.ts"
import * as Steering from "../../src/programs/Steering.ts"
import type { Journal } from "../../src/services/Journal.ts"
import { tempDir } from "../laws/backends.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { idOf, jobOf, rowsOf } from "../support/scriptedJob.ts"
import { good, permanent, prices, type Script, scripted } from "../support/scriptedLlm.ts"

vi.setConfig({ testTimeout: 60_000 })

const runId = "steered"
const LOOKS = "350 millis"

/** A run, and who steers it: over a connection of its own where there is a file, as another process would. */
interface Stage {
  readonly run: Layer.Layer<Layer.Layer.Success<typeof Memory.layer>, unknown>
  readonly desk: Layer.Layer<Journal, unknown>
}
const stages: ReadonlyArray<readonly [string, Effect.Effect<Stage, never, Scope.Scope>]> = [
  [
    "memory",
    Effect.map(Effect.orDie(Layer.build(Memory.layer)), (built) => {
      const layer = Layer.succeedContext(built)
      return { run: layer, desk: layer }
    })
  ],
  [
    "SQLite",
    Effect.map(tempDir, (dir) => {
      const filename = join(dir, "run.db")
      return { run: Sqlite.layer({ filename }), desk: Sqlite.layer({ filename, create: false }) }
    })
  ]
]

/** So many rows, each a call of 20 ms. */
const slowly = (script: Script = () => good()) => scripted(script, Effect.sleep("20 millis"))

for (const [name, stage] of stages) {
  describe(`Steering over ${name}`, () => {
    const setting = (rows: number, script?: Script) =>
      Effect.gen(function* () {
        const { desk, run } = yield* stage
        const llm = slowly(script)
        const job = jobOf({ rows: rowsOf(rows) })
        const ran = (budget: Budget.BudgetOptions, options: Enrichment.RunOptions = {}) =>
          Enrichment.run(job, { runId, ...options }).pipe(
            Effect.provide([Budget.layer(budget), llm.layer, prices]),
            Effect.provide(run)
          )
        const steer = <A, E>(order: Effect.Effect<A, E, Journal>) => Effect.provide(order, desk)
        /** Until so many calls were sent. */
        const sent = (calls: number) =>
          Effect.repeat(Effect.sleep("5 millis"), { until: () => llm.counts.calls >= calls })
        return { job, llm, ran, steer, sent, counts: llm.counts }
      })

    it.scopedLive("a pause lets calls in flight end and none begin, until it is over; then the run goes on", () =>
      Effect.gen(function* () {
        const { counts, ran, sent, steer } = yield* setting(60)
        const running = yield* Effect.fork(ran({ noCap: true, maxConcurrency: 4 }))
        yield* sent(8)
        const paused = yield* steer(Steering.pause(runId, { by: "ada", message: "lunch" }))
        assert.deepStrictEqual(paused.paused, { by: "operator", message: "paused by ada: lunch" })
        // What had its hold by then may still be sent; nothing after it.
        yield* Effect.sleep("60 millis")
        const before = counts.calls
        assert.strictEqual(counts.live, 0)
        yield* Effect.sleep(LOOKS)
        assert.strictEqual(counts.calls, before)
        const totals = yield* steer(Report.status(runId))
        assertIncludes(totals, { status: "running", held: 0 })
        yield* steer(Steering.unpause(runId))
        const result = yield* Fiber.join(running)
        assertIncludes(result, { stopReason: "complete", done: 60, paused: null, calls: 60 })
        assert.strictEqual(counts.calls, 60)
      })
    )

    it.scopedLive("a paused run that is begun again is still paused, and sends nothing", () =>
      Effect.gen(function* () {
        const { counts, ran, sent, steer } = yield* setting(40)
        const first = yield* Effect.fork(ran({ noCap: true, maxConcurrency: 4 }, { graceMs: 0 }))
        yield* sent(6)
        yield* steer(Steering.pause(runId))
        yield* Fiber.interrupt(first)
        const before = counts.calls
        const again = yield* Effect.fork(ran({}))
        yield* Effect.sleep(LOOKS)
        assert.strictEqual(counts.calls, before)
        yield* steer(Steering.unpause(runId))
        assertIncludes(yield* Fiber.join(again), { stopReason: "complete", done: 40 })
      })
    )

    it.scopedLive("a cap that is raised while the run lands on it is in force at once: the same run ends done", () =>
      Effect.gen(function* () {
        // Row 0 hangs until the cap was raised, so that the run is landing all the while.
        let raised = false
        const { ran, steer } = yield* setting(30, ({ row }) =>
          idOf(row) === 0
            ? Effect.zipRight(Effect.repeat(Effect.sleep("5 millis"), { until: () => raised }), good())
            : good()
        )
        const stopping = yield* Effect.fork(ran({ maxCostUsd: 0.001, maxConcurrency: 3 }))
        yield* Effect.repeat(Effect.delay(steer(Report.status(runId)), "20 millis"), {
          until: ({ calls, held }) => calls > 3 && held > 0
        }).pipe(Effect.retry({ times: 50 }))
        // Long enough for the queue to be denied: nothing else fits.
        yield* Effect.sleep("300 millis")
        yield* steer(Steering.set(runId, { maxCostUsd: 1 }, { by: "ada" }))
        yield* Effect.sleep(LOOKS)
        raised = true
        const result = yield* Fiber.join(stopping)
        assertIncludes(result, { stopReason: "complete", done: 30, reason: null, cap: 1_000_000_000 })
      })
    )

    it.scopedLive("a raise that comes with the last answer is heard before the run is suspended", () =>
      Effect.gen(function* () {
        let raise: Effect.Effect<unknown> = Effect.void
        const { ran, steer } = yield* setting(6, ({ n }) => (n === 2 ? Effect.zipRight(raise, good()) : good()))
        raise = Effect.orDie(steer(Steering.set(runId, { maxCalls: 100 })))
        // The limit of calls is reached with the second one, whose answer brings the raise.
        const result = yield* ran({ noCap: true, maxCalls: 2, maxConcurrency: 1 })
        assertIncludes(result, { stopReason: "complete", done: 6, calls: 6 })
      })
    )

    it.scopedLive("more at once takes effect in the run that goes on, and less too", () =>
      Effect.gen(function* () {
        const { counts, ran, sent, steer } = yield* setting(3_000)
        const running = yield* Effect.fork(ran({ noCap: true, maxConcurrency: 2 }))
        yield* sent(4)
        assert.strictEqual(counts.most, 2)
        yield* steer(Steering.set(runId, { maxConcurrency: 16 }))
        yield* sent(80)
        assert.strictEqual(counts.most, 16)
        yield* steer(Steering.set(runId, { maxConcurrency: 3 }))
        yield* Effect.sleep(LOOKS)
        counts.most = 0
        yield* sent(counts.calls + 9)
        assert.isAtMost(counts.most, 3)
        yield* steer(Steering.drain(runId))
        assertIncludes(yield* Fiber.join(running), { stopReason: "suspended", maxConcurrency: 3, held: 0 })
      })
    )

    it.scopedLive(
      "rows that failed are queued again, by name or all of them, while the run goes on and when it is done",
      () =>
        Effect.gen(function* () {
          let mended = false
          const { job, counts, ran, sent, steer } = yield* setting(40, ({ row }) =>
            idOf(row) % 10 === 3 && !mended ? permanent : good()
          )
          const running = yield* Effect.fork(ran({ noCap: true, maxConcurrency: 2 }))
          yield* sent(24)
          mended = true
          assert.strictEqual(yield* steer(Steering.requeue(runId, { rows: ["3"] })), 1)
          const result = yield* Fiber.join(running)
          // Rows 13 and 23 may have failed before it was mended; row 3 did, and was asked again.
          assert.strictEqual(result.stopReason, "complete")
          assert.strictEqual(counts.byRow.get("row 3"), 2)
          assert.strictEqual(result.reruns, 1)
          const { failed } = result
          assert.strictEqual(yield* steer(Steering.requeue(runId, "failed")), failed)
          assertIncludes(yield* steer(Report.status(runId)), { failed: 0, pending: failed })
          const last = yield* ran({}, { retry: "none" })
          assertIncludes(last, { stopReason: "complete", done: 40, failed: 0, reruns: 1 + failed })
          const rows = yield* steer(Stream.runCollect(Report.results(runId, job.agent.output)))
          for (const { outcome } of Chunk.toReadonlyArray(rows)) assert.isTrue(Option.exists(outcome, Either.isRight))
        })
    )

    it.scopedLive("a drain stops who works on the run now, and not who resumes it", () =>
      Effect.gen(function* () {
        const { counts, ran, sent, steer } = yield* setting(60)
        const running = yield* Effect.fork(ran({ noCap: true, maxConcurrency: 4 }))
        yield* sent(8)
        yield* steer(Steering.drain(runId, { by: "ada" }))
        const drained = yield* Fiber.join(running)
        assertIncludes(drained, {
          stopReason: "suspended",
          reason: { kind: "operator", message: "drained by ada" },
          held: 0,
          uncertain: 0
        })
        assert.strictEqual(counts.aborted, 0)
        assertIncludes(yield* ran({}), { stopReason: "complete", done: 60, calls: 60 })
      })
    )

    it.scopedLive("a run that is cancelled ends, takes no order any more and is not begun again", () =>
      Effect.gen(function* () {
        const { counts, ran, sent, steer } = yield* setting(60)
        const running = yield* Effect.fork(ran({ noCap: true, maxConcurrency: 4 }))
        yield* sent(8)
        yield* steer(Steering.cancel(runId, { by: "ada" }))
        const reason = { kind: "cancelled", message: "cancelled by ada" } as const
        const ended = yield* Fiber.join(running)
        assertIncludes(ended, { stopReason: "suspended", status: "cancelled", reason, held: 0 })
        assert.strictEqual(counts.aborted, 0)
        const before = counts.calls
        for (const order of [
          ran({}),
          steer(Steering.unpause(runId)),
          steer(Steering.set(runId, { maxCostUsd: 5 })),
          steer(Steering.requeue(runId, "failed").pipe(Effect.zipRight(Steering.pause(runId)))),
          steer(Steering.cancel(runId))
        ]) {
          const refused = yield* Effect.flip(order)
          assert.include(Object(refused), { _tag: "RunRefused", reason: "cancelled" })
        }
        assert.strictEqual(counts.calls, before)
        assertIncludes(yield* steer(Report.status(runId)), { status: "cancelled", done: ended.done })
      })
    )

    it.scopedLive("what cannot be ordered is refused: the reason and the way out are named", () =>
      Effect.gen(function* () {
        const { ran, steer } = yield* setting(5)
        const result = yield* ran({ maxCostUsd: 1 })
        const refused = (order: Effect.Effect<unknown, { readonly message: string }, Journal>, message: string) =>
          Effect.map(Effect.flip(steer(order)), (error) => assert.include(String(error), message))
        yield* refused(Steering.pause("nobody"), "there is no run nobody")
        yield* refused(Steering.pause(runId), "is done")
        yield* refused(Steering.cancel(runId), "is done")
        yield* refused(Steering.set(runId, { maxCostUsd: 0 }), "a cap below that cannot be kept")
        yield* refused(Steering.set(runId, { maxConcurrency: 0 }), "maxConcurrency must be")
        yield* refused(Steering.requeue(runId, { rows: ["77"] }), 'no row with the id "77"')
        yield* steer(Steering.requeue(runId, { rows: ["2"] }))
        yield* refused(Steering.requeue(runId, { rows: ["2"] }), 'row "2" of run steered is pending already')
        const { reruns, spent } = yield* steer(Report.status(runId))
        assert.deepStrictEqual([reruns, spent], [1, result.spent])
      })
    )
  })
}
