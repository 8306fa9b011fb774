/** Orders that come at the one wrong instant: each is placed before a certain commit, or between two reads, of the run that they concern. */
import { assert, describe, it } from "@effect/vitest"
import { Context, Effect, Fiber, Layer } from "effect"
import { vi } from "vitest"
import * as Memory from "../../src/layers/Memory.ts"
import * as Budget from "../../src/programs/Budgets.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import * as Refresh from "../../src/programs/Refresh.ts"
import * as Report from "../../src/programs/Report.ts"
import * as Steering from "../../src/programs/Steering.ts"
import { start, transition } from "../../src/services/Admission.ts"
import type { Op } from "../../src/services/Book.ts"
import { Journal, type JournalShape } from "../../src/services/Journal.ts"
import { fromIterable } from "../../src/services/RowSource.ts"
import * as Throttle from "../../src/services/Throttle.ts"
import { Usd } from "../../src/services/Usd.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { bookOf } from "../support/records.ts"
import { agentOf, idOf, jobOf, rowsOf } from "../support/scriptedJob.ts"
import { good, permanent, prices, type Script, scripted } from "../support/scriptedLlm.ts"

vi.setConfig({ testTimeout: 60_000 })
const runId = "raced"

type Order = Effect.Effect<unknown, unknown, Journal>

/** A run whose journal lets an order come just before the first operation of a kind, or once just after the book was read. */
const setting = (rows: number, script: Script = () => good()) =>
  Effect.gen(function* () {
    const built = yield* Effect.orDie(Layer.build(Memory.layer))
    const real = Context.get(built, Journal)
    const steer = <A, E>(order: Effect.Effect<A, E, Journal>) => Effect.provideService(order, Journal, real)
    let before: { readonly is: (op: Op) => boolean; readonly order: Order } | undefined
    let afterRead: Order | undefined
    const take = (order: Order | undefined) => (order === undefined ? Effect.void : Effect.orDie(steer(order)))
    const journal: JournalShape = {
      ...real,
      commit: (op) =>
        Effect.suspend(() => {
          const order = before?.is(op) === true ? before.order : undefined
          if (order !== undefined) before = undefined
          return Effect.zipRight(take(order), real.commit(op))
        }),
      reads: {
        ...real.reads,
        book: (id) =>
          Effect.tap(real.reads.book(id), () => {
            const order = afterRead
            afterRead = undefined
            return take(order)
          })
      }
    }
    const llm = scripted(script, Effect.sleep("10 millis"))
    const job = jobOf({ rows: rowsOf(rows) })
    const env = Layer.succeedContext(Context.add(built, Journal, journal))
    const ran = (budget: Budget.BudgetOptions, options: Enrichment.RunOptions = {}, over = job) =>
      Enrichment.run(over, { runId, ...options }).pipe(
        Effect.provide([Budget.layer(budget), llm.layer, prices]),
        Effect.provide(env)
      )
    return {
      job,
      env,
      ran,
      steer,
      llm,
      counts: llm.counts,
      real,
      sent: (calls: number) => Effect.repeat(Effect.sleep("5 millis"), { until: () => llm.counts.calls >= calls }),
      justBefore: (is: (op: Op) => boolean, order: Order) => {
        before = { is, order }
      },
      betweenReads: (order: Order) => {
        afterRead = order
      }
    }
  })

/** Row 0 is answered only once it may. */
const held = () => {
  let free = false
  const script: Script = ({ row }) =>
    idOf(row) === 0 ? Effect.zipRight(Effect.repeat(Effect.sleep("5 millis"), { until: () => free }), good()) : good()
  return {
    script,
    free: () => {
      free = true
    }
  }
}

describe("An order at the wrong instant", () => {
  it.scopedLive("a raise between the last look and the suspension: the run goes on", () =>
    Effect.gen(function* () {
      const { justBefore, ran } = yield* setting(30)
      justBefore(
        (op) => op._tag === "RunSnapshot" && op.status === "SUSPENDED",
        Steering.set(runId, { maxCalls: 1_000 })
      )
      assertIncludes(yield* ran({ noCap: true, maxCalls: 5 }), { stopReason: "complete", done: 30 })
    })
  )

  it.scopedLive("a raise between the two reads of one look is heard at the next", () =>
    Effect.gen(function* () {
      const { free, script } = held()
      const { betweenReads, ran, sent, steer } = yield* setting(30, script)
      const running = yield* Effect.fork(ran({ noCap: true, maxCalls: 5, maxConcurrency: 2 }))
      yield* sent(5)
      yield* Effect.sleep("100 millis")
      yield* steer(Steering.set(runId, { maxConcurrency: 3 }))
      betweenReads(Steering.set(runId, { maxCalls: 1_000 }))
      yield* Effect.sleep("700 millis")
      free()
      assertIncludes(yield* Fiber.join(running), { stopReason: "complete", done: 30, maxCalls: 1_000 })
    })
  )

  it.scopedLive(
    "a cap that is lowered to where all rows fit ends nothing, though calls in flight fill it just now",
    () =>
      Effect.gen(function* () {
        const { ran, sent, steer } = yield* setting(100)
        const running = yield* Effect.fork(ran({ maxCostUsd: 1, maxConcurrency: 8 }))
        yield* sent(10)
        const { held, spent } = yield* steer(Report.status(runId))
        const all = 100 * (10 * 150 + 5 * 600)
        yield* steer(Steering.set(runId, { maxCostUsd: (Math.max(spent + held, all) + 100_000) / 1e9 }))
        assertIncludes(yield* Fiber.join(running), { stopReason: "complete", done: 100 })
      })
  )

  it.scopedLive("a limit that is lowered, and raised again to less than at first, leaves the run at its width", () =>
    Effect.gen(function* () {
      const { free, script } = held()
      const { counts, ran, sent, steer } = yield* setting(300, script)
      const running = yield* Effect.fork(ran({ noCap: true, maxCalls: 2_000, maxConcurrency: 8 }))
      yield* sent(40)
      yield* steer(Steering.set(runId, { maxCalls: 1 }))
      yield* Effect.sleep("60 millis")
      yield* steer(Steering.set(runId, { maxCalls: 1_000 }))
      yield* Effect.sleep("350 millis")
      counts.most = 0
      free()
      yield* sent(Math.min(300, counts.calls + 40))
      assertIncludes(yield* Fiber.join(running), { stopReason: "complete", done: 300 })
      assert.strictEqual(counts.most, 8)
    })
  )

  it.scopedLive(
    "a cap that is set while the rows are listed stands above the run's own; a drain then is heard before a call",
    () =>
      Effect.gen(function* () {
        for (const [order, parts] of [
          [Steering.set(runId, { maxCostUsd: 0 }), { cap: Usd.zero, calls: 0 }],
          [Steering.drain(runId), { calls: 0, stopReason: "suspended" }]
        ] as const) {
          const { counts, justBefore, ran } = yield* setting(20)
          justBefore((op) => op._tag === "Load", order)
          assertIncludes(yield* ran({ maxCostUsd: 50 }), parts)
          assert.strictEqual(counts.calls, 0)
        }
      })
  )

  it.scopedLive("a cancel while a resume takes its rows up is final, and one before the rows are listed", () =>
    Effect.gen(function* () {
      const { counts, justBefore, ran } = yield* setting(20, ({ row }) => (idOf(row) === 3 ? permanent : good()))
      yield* ran({ noCap: true, maxCalls: 12 })
      const before = counts.calls
      justBefore((op) => op._tag === "Reopen", Steering.cancel(runId))
      assertIncludes(yield* ran({ maxCalls: 100 }, { retry: "failed" }), {
        status: "cancelled",
        stopReason: "suspended"
      })
      assert.strictEqual(counts.calls, before)
      const early = yield* setting(20)
      early.justBefore((op) => op._tag === "Unload", Steering.cancel(runId))
      assertIncludes(yield* early.ran({ noCap: true }), { status: "cancelled", done: 0 })
      assert.strictEqual(early.counts.calls, 0)
    })
  )

  it.scopedLive("rows queued again while a refresh compares: it compares again, and book and records agree", () =>
    Effect.gen(function* () {
      const { env, job, justBefore, ran, real } = yield* setting(5)
      yield* ran({ noCap: true })
      justBefore((op) => op._tag === "Refresh", Steering.requeue(runId, { rows: ["2"] }))
      // What the prompt does not show asks the same.
      const rows = rowsOf(5).map((row) => (row.id === 2 ? { ...row, note: "new" } : row))
      const changed = { ...job, source: fromIterable(rows) }
      yield* Effect.provide(Refresh.refresh(changed, { runId, apply: true }), env)
      const audit = yield* real.reads.audit(runId)
      assert.deepStrictEqual([audit?.book.done, audit?.sums.ended], [4, 4])
      assertIncludes(yield* ran({}, {}, changed), { stopReason: "complete", done: 5 })
    })
  )

  it.scopedLive("a program under a budget of its own hears a pause, its end and a drain", () =>
    Effect.gen(function* () {
      const { counts, env, llm, sent, steer } = yield* setting(1)
      const agent = agentOf()
      const program = Effect.forEach(rowsOf(60), (row) => agent.run(row), { concurrency: 4 }).pipe(
        Budget.within({ runId, noCap: true }),
        Effect.provide([llm.layer, prices]),
        Effect.provide(env)
      )
      const running = yield* Effect.fork(Effect.either(program))
      yield* sent(8)
      yield* steer(Steering.pause(runId))
      yield* Effect.sleep("100 millis")
      const before = counts.calls
      yield* Effect.sleep("300 millis")
      assert.strictEqual(counts.calls, before)
      yield* steer(Steering.unpause(runId))
      yield* sent(before + 4)
      yield* steer(Steering.drain(runId))
      const ended = yield* Fiber.join(running)
      if (ended._tag === "Left") assert.strictEqual(ended.left._tag, "RunStopped")
    })
  )
})

describe("More room", () => {
  it("does not lift a stop that came after the one for want of room", () => {
    const from = bookOf("run", { cap: Usd.nano(10), spent: Usd.nano(10) })
    const stopOf = (...events: ReadonlyArray<Parameters<typeof transition>[1]>) =>
      events.reduce((state, event) => transition(state, event)[0], start(from)).stop?.kind
    const stop = (kind: "budget" | "operator" | "breach") =>
      ({ _tag: "Stop", reason: { kind, message: kind } }) as const
    const raise = { _tag: "Limits", cap: Usd.nano(100) } as const
    assert.strictEqual(stopOf(stop("budget"), raise), undefined)
    assert.strictEqual(stopOf(stop("budget"), stop("operator"), raise), "operator")
    assert.strictEqual(stopOf(stop("budget"), stop("breach"), stop("operator"), raise), "breach")
    assert.strictEqual(stopOf(stop("operator"), stop("budget"), raise), "operator")
  })

  it("leaves the pace that the provider told, where the operator has none of his own", () => {
    const told = Throttle.learn(Throttle.start(Throttle.defaults), { requestsPerMinute: 600 }, 0)
    const busy = Throttle.granted(told, { retry: false, tokens: 0, waited: false }, 0)
    assert.deepStrictEqual(Throttle.limit(busy, { requestsPerMinute: null, tokensPerMinute: null }, 5), busy)
    assert.deepStrictEqual(Throttle.limit(busy, { requestsPerMinute: 60 }, 5).requests, { perMinute: 60, nextAt: 5 })
  })
})
