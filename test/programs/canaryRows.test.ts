import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { Chunk, Effect, Fiber, Layer, Option, Stream } from "effect"
import { vi } from "vitest"
import * as Memory from "../../src/layers/Memory.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import * as Budget from "../../src/programs/Budgets.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import * as Report from "../../src/programs/Report.ts"
import * as Steering from "../../src/programs/Steering.ts"
import { type ChatAnswer, answer as makeAnswer } from "../../src/services/LLM.ts"
import { tempDir } from "../laws/backends.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { idOf, jobOf, rowsOf } from "../support/scriptedJob.ts"
import { model, permanent, prices, type Script, scripted, tokens } from "../support/scriptedLlm.ts"

vi.setConfig({ testTimeout: 60_000 })
const runId = "canary"

/** An answer that is the row's own. */
const own = (row: string, outputTokens = 10): ChatAnswer =>
  makeAnswer({ text: JSON.stringify({ summary: `about ${row}` }), model, usage: tokens(10, outputTokens) })
const good: Script = ({ row }) => Effect.succeed(own(row))
const same: Script = () => Effect.succeed(makeAnswer({ text: '{"summary":"same"}', model, usage: tokens(10, 5) }))

/** Rows of growing length. */
const rows = (n: number) => rowsOf(n, (id) => `row ${id} ${"x".repeat(id % 97)}`)

const begun = (script: Script, n: number, budget: Budget.BudgetOptions, options: Enrichment.RunOptions = {}) =>
  Effect.gen(function* () {
    const llm = scripted(script)
    const handle = yield* Enrichment.start(jobOf({ rows: rows(n) }), { runId, canary: 20, ...options }).pipe(
      Effect.provide([Budget.layer({ maxConcurrency: 4, ...budget }), llm.layer, prices])
    )
    const reports = yield* Effect.fork(
      Stream.runCollect(Stream.filter(handle.events, (event) => event._tag === "Canary"))
    )
    return { counts: llm.counts, handle, reports }
  })

const paused = Effect.repeat(Effect.delay(Report.status(runId), "20 millis"), {
  until: ({ paused }) => paused !== null
})

describe("A canary", () => {
  it.scopedLive("runs first, spread over the lengths; where nothing looks wrong the run goes on by itself", () =>
    Effect.gen(function* () {
      const { counts, handle, reports } = yield* begun(good, 400, { maxCostUsd: 1 })
      const result = yield* handle.await
      assertIncludes(result, { stopReason: "complete", done: 400, calls: 400 })
      const first = counts.requests.slice(0, 20).map(({ messages }) => messages.at(-1)?.content.length ?? 0)
      assert.isBelow(Math.min(...first), 12)
      assert.isAbove(Math.max(...first), 100)
      const [event] = Chunk.toReadonlyArray(yield* Fiber.join(reports))
      if (event?._tag !== "Canary") return assert.fail("no report")
      assertIncludes(event.report, { rows: 400, goesOn: true })
      assert.strictEqual(event.report.rates.rows, 20)
      const { total } = Option.getOrThrow(event.report.cost)
      assert.isAtMost(total.low, result.spent)
      assert.isAtLeast(total.high, result.spent)
      assert.deepStrictEqual(yield* Report.status(runId).pipe(Effect.map(({ paused }) => paused)), null)
    }).pipe(Effect.provide(Memory.layer))
  )

  for (const [what, script, budget, said] of [
    ["rows that fail", (call) => (idOf(call.row) % 3 === 0 ? permanent : good(call)), { noCap: true }, "failed"],
    ["a field with one value", same, { noCap: true }, "has one value"],
    ["a cost above the cap", good, { maxCostUsd: 0.002 }, "more than its cap"]
  ] satisfies ReadonlyArray<readonly [string, Script, Budget.BudgetOptions, string]>) {
    it.scopedLive(`with ${what} pauses the run, and sends nothing more until it is approved`, () =>
      Effect.gen(function* () {
        const { counts, handle } = yield* begun(script, 400, budget)
        const status = yield* paused
        assert.strictEqual(status.paused?.by, "canary")
        assert.include(status.paused?.message ?? "", said)
        const before = counts.calls
        assert.strictEqual(status.done + status.failed, 20)
        yield* Effect.sleep("400 millis")
        assert.strictEqual(counts.calls, before)
        yield* Steering.approve(runId)
        if (budget.maxCostUsd !== undefined) yield* Steering.set(runId, { maxCostUsd: 1 })
        const result = yield* handle.await
        assertIncludes(result, { stopReason: "complete", rows: 400, pending: 0 })
      }).pipe(Effect.provide(Memory.layer))
    )
  }

  it.scopedLive("that was cut short is ended first when the run goes on, and one that waits still waits", () =>
    Effect.gen(function* () {
      const filename = join(yield* tempDir, "run.db")
      const session = <A, E>(
        script: Script,
        use: (started: Effect.Effect.Success<ReturnType<typeof begun>>) => Effect.Effect<A, E, never>
      ) =>
        Effect.scoped(Effect.flatMap(begun(script, 300, { noCap: true }, { graceMs: 0 }), use)).pipe(
          Effect.provide(Sqlite.layer({ filename }))
        )
      const desk = yield* Layer.build(Sqlite.layer({ filename }))
      yield* session(
        (call) => (call.n > 8 ? Effect.never : same(call)),
        ({ counts }) => Effect.repeat(Effect.sleep("5 millis"), { until: () => counts.calls > 8 })
      ).pipe(Effect.timeoutOption("5 seconds"))
      const waiting = yield* session(same, ({ counts }) =>
        Effect.provide(
          Effect.map(paused, (status) => ({ ...status, sent: counts.calls })),
          desk
        )
      )
      assert.strictEqual(waiting.done, 20)
      const again = yield* session(same, ({ counts }) =>
        Effect.as(Effect.sleep("500 millis"), counts).pipe(Effect.map(({ calls }) => calls))
      )
      assert.strictEqual(again, 0)
      yield* Effect.provide(Steering.approve(runId), desk)
      const last = yield* session(same, ({ handle }) => Effect.orDie(handle.await))
      assertIncludes(last, { stopReason: "complete", done: 300 })
    })
  )

  it.scopedLive("goes on being the measure: a run whose rows get dearer is paused, and once approved goes on", () =>
    Effect.gen(function* () {
      const { counts, handle } = yield* begun(
        ({ n, row }) => Effect.succeed(own(row, n > 600 ? 30 : 10 + (idOf(row) % 3))),
        2_000,
        { noCap: true },
        { canary: 50 }
      )
      const status = yield* paused
      assert.strictEqual(status.paused?.by, "detector")
      assert.isAbove(counts.calls, 600)
      assert.isBelow(counts.calls, 900)
      const before = counts.calls
      yield* Effect.sleep("300 millis")
      assert.strictEqual(counts.calls, before)
      yield* Steering.approve(runId, { by: "ada" })
      assertIncludes(yield* handle.await, { stopReason: "complete", done: 2_000 })
    }).pipe(Effect.provide(Memory.layer))
  )
})
