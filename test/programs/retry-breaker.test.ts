import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { Chunk, Clock, Duration, Effect, Fiber, Option, Schema, Stream, TestClock } from "effect"
import { vi } from "vitest"
import * as Memory from "../../src/layers/Memory.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import * as Budget from "../../src/programs/Budgets.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import * as CircuitBreaker from "../../src/services/CircuitBreaker.ts"
import { CircuitOpen, LLMError } from "../../src/services/Errors.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { agentOf, jobOf, rowsOf, type ScriptedJobOptions, textOf } from "../support/scriptedJob.ts"
import { fail, good, permanent, prices, type Scripted, scripted } from "../support/scriptedLlm.ts"

const runId = "r"
const second = Effect.sleep("1 second")

/** Lets virtual time pass until the effect ends. */
const elapse = <A, E, R>(effect: Effect.Effect<A, E, R>, most: Duration.DurationInput = "2 hours") =>
  Effect.gen(function* () {
    const fiber = yield* Effect.fork(effect)
    yield* TestClock.adjust(most)
    const exit = yield* Fiber.poll(fiber)
    assert.isTrue(Option.isSome(exit), `the run is not over after ${Duration.format(most)}`)
    return yield* Fiber.join(fiber)
  })

const runWith = (
  llm: Scripted,
  job: Parameters<typeof Enrichment.run<Row_, Out_, Out_>>[0],
  budget: Budget.BudgetOptions = {},
  options: Enrichment.RunOptions = {}
) =>
  Enrichment.run(job, { runId, ...options }).pipe(
    Effect.provide(Budget.layer({ maxCostUsd: 100, maxConcurrency: 4, ...budget })),
    Effect.provide([llm.layer, prices])
  )
type Row_ = { readonly id: number; readonly text: string }
type Out_ = { readonly summary: string }

const outcomesOf = (job: { readonly agent: ReturnType<typeof agentOf> }) =>
  Effect.map(Stream.runCollect(Enrichment.results(runId, job.agent.output)), (rows) => Chunk.toReadonlyArray(rows))

// Room for a busy machine.
vi.setConfig({ testTimeout: 60_000 })

describe("Retry in a run", () => {
  it.effect("I11: a PERMANENT error is never retried: one call a row, the Failure in its slot", () =>
    Effect.gen(function* () {
      const llm = scripted(() => permanent)
      const job = jobOf({ rows: rowsOf(20) })
      const result = yield* elapse(runWith(llm, job))
      assertIncludes(result, { status: "done", failed: 20, calls: 20, retries: 0, held: 0 })
      assert.strictEqual(llm.counts.calls, 20)
      // A resume does not try them again either.
      yield* elapse(runWith(llm, job))
      assert.strictEqual(llm.counts.calls, 20)
      for (const row of yield* outcomesOf(job)) {
        assert.isTrue(
          Option.exists(row.outcome, (outcome) => outcome._tag === "Left" && outcome.left.reason === "bad_request")
        )
      }
    }).pipe(Effect.provide(Memory.layer))
  )

  for (const category of ["TRANSIENT", "UNKNOWN"] as const) {
    it.effect(
      `I12: a ${category} error is retried by the schedule and stops after five calls; resume tries it again`,
      () =>
        Effect.gen(function* () {
          const llm = scripted(({ row }) => (row === "row 3" ? fail({ category, reason: "unknown" }) : good()))
          const job = jobOf({ rows: rowsOf(8) })
          // Less than a turn's deadline: TestClock may be ahead of a fiber that is about to sleep.
          const result = yield* elapse(runWith(llm, job), "10 minutes")
          assertIncludes(result, { status: "done", done: 7, failed: 1, calls: 12, retries: 4, held: 0 })
          assert.strictEqual(llm.counts.byRow.get("row 3"), 5)
          assert.strictEqual(llm.counts.calls, 12)
          yield* elapse(runWith(llm, job), "10 minutes")
          assert.strictEqual(llm.counts.byRow.get("row 3"), 10)
          assert.strictEqual(llm.counts.calls, 17)
        }).pipe(Effect.provide(Memory.layer))
    )
  }

  it.effect("I12: a row that recovers within the schedule is done, after the schedule's waits", () =>
    Effect.gen(function* () {
      const llm = scripted(({ nth }) => (nth <= 4 ? fail() : good()))
      const job = jobOf({ rows: rowsOf(1) })
      const result = yield* elapse(runWith(llm, job))
      assertIncludes(result, { status: "done", done: 1, calls: 5, retries: 4 })
      const gaps = llm.counts.begunAt.slice(1).map((at, i) => at - (llm.counts.begunAt[i] ?? 0))
      for (const [i, base] of [500, 1000, 2000, 4000].entries()) {
        assert.isAtLeast(gaps[i] ?? 0, base * 0.8 - 1)
        assert.isAtMost(gaps[i] ?? 0, base * 1.2 + 1)
      }
    }).pipe(Effect.provide(Memory.layer))
  )

  it.effect("I12: a 429 with Retry-After cools every worker down, and no call begins before its end", () =>
    Effect.gen(function* () {
      const limited = fail({ reason: "rate_limited", status: 429, retryAfterMs: 30_000 })
      // The fifth call comes back while the three beside it are still in flight.
      const llm = scripted(({ n }) =>
        n === 5 ? Effect.delay(limited, "300 millis") : Effect.delay(good(), "1 second")
      )
      const job = jobOf({ rows: rowsOf(40) })
      const result = yield* elapse(runWith(llm, job))
      assertIncludes(result, { status: "done", done: 40, failed: 0, retries: 1 })
      const began = llm.counts.begunAt
      const limitedAt = (began[4] ?? 0) + 300
      assert.lengthOf(
        began.filter((at, i) => i > 4 && at >= limitedAt && at < limitedAt + 30_000),
        0
      )
      assert.isAbove(began.filter((at) => at >= limitedAt + 30_000).length, 20)
    }).pipe(Effect.provide(Memory.layer))
  )

  it.effect(
    "I12: a run that starts while the provider asks for time waits too: cool-down belongs to the provider",
    () =>
      Effect.gen(function* () {
        const limited = fail({ reason: "rate_limited", status: 429, retryAfterMs: 30_000 })
        const llm = scripted(({ n }) => (n === 1 ? limited : good()))
        const first = yield* Effect.fork(runWith(llm, jobOf({ rows: rowsOf(1) })))
        yield* TestClock.adjust("1 second")
        assert.strictEqual(llm.counts.calls, 1)
        const other = yield* Effect.fork(runWith(llm, jobOf({ rows: rowsOf(3) }), {}, { runId: "other" }))
        yield* TestClock.adjust("20 seconds")
        assert.strictEqual(llm.counts.calls, 1)
        yield* TestClock.adjust("1 minute")
        assertIncludes(yield* Fiber.join(other), { status: "done", done: 3 })
        assertIncludes(yield* Fiber.join(first), { status: "done", done: 1 })
      }).pipe(Effect.provide(Memory.layer))
  )

  it.effect("I27: a stop does not wait for a row's back-off: the row stays pending and the run ends at once", () =>
    Effect.gen(function* () {
      const llm = scripted(() => fail({ retryAfterMs: 500_000 }))
      yield* Effect.scoped(
        Effect.gen(function* () {
          const handle = yield* Enrichment.start(jobOf({ rows: rowsOf(3) }), { runId })
          yield* TestClock.adjust("1 second")
          assert.isAbove(llm.counts.calls, 0)
          yield* handle.stop
          yield* TestClock.adjust("1 second")
          const status = yield* Enrichment.status(runId)
          assertIncludes(status, { status: "suspended", failed: 0, pending: 3, held: 0 })
          assert.strictEqual(status.reason?.kind, "operator")
        })
      ).pipe(Effect.provide(Budget.layer({ maxCostUsd: 1 })), Effect.provide([llm.layer, prices]))
    }).pipe(Effect.provide(Memory.layer))
  )

  for (const reason of ["quota", "auth", "model_not_found"] as const) {
    it.effect(
      `I27: ${reason} concerns the whole run: it stops at once, no row is failed, calls in flight are settled`,
      () =>
        Effect.gen(function* () {
          const down = fail({ reason, category: "PERMANENT", scope: "run", message: `no ${reason}` })
          const llm = scripted(({ n }) =>
            n === 10 ? Effect.delay(down, "300 millis") : Effect.delay(good(), "1 second")
          )
          const job = jobOf({ rows: rowsOf(50) })
          const result = yield* elapse(runWith(llm, job))
          assertIncludes(result, { status: "suspended", stopReason: "suspended", failed: 0, held: 0 })
          assert.deepStrictEqual(result.reason, { kind: "provider", message: `no ${reason}` })
          assert.strictEqual(result.done + result.pending, 50)
          // The call that failed, and what was in flight beside it: none was sent after the failure came back.
          assert.isAtMost(llm.counts.calls, 10 + 3)
          assert.strictEqual(result.done, llm.counts.calls - 1)
          assert.strictEqual(llm.counts.aborted, 0)
          const resumed = yield* elapse(runWith(llm, job))
          assertIncludes(resumed, { status: "done", done: 50, failed: 0 })
          assert.strictEqual(llm.counts.calls, 51)
        }).pipe(Effect.provide(Memory.layer))
    )
  }
})

const breakerOf = (llm: Scripted) => CircuitBreaker.of(llm.shape).state()

/** How many probes fit into an outage of `ms`: the first after `coolMs`, each next one after twice the wait. */
const probesIn = (ms: number): number => {
  let [at, wait, probes] = [0, CircuitBreaker.defaults.coolMs, 0]
  while (at <= ms) {
    at += wait
    wait = Math.min(2 * wait, CircuitBreaker.defaults.maxCoolMs)
    probes++
  }
  return probes
}

/** Good until the k-th call, then failing for a time, then good again. */
const outage = (k: number, ms: number) => {
  let from = Number.POSITIVE_INFINITY
  return scripted(
    ({ n }) =>
      Effect.flatMap(Clock.currentTimeMillis, (now) => {
        if (n >= k) from = Math.min(from, now)
        return now >= from && now < from + ms ? fail({ charge: "none", message: "scripted outage" }) : good()
      }),
    second
  )
}

describe("The circuit breaker in a run", () => {
  it.effect("I13: a thousand PERMANENT rows leave the breaker closed", () =>
    Effect.gen(function* () {
      const llm = scripted(() => permanent)
      const result = yield* elapse(runWith(llm, jobOf({ rows: rowsOf(1000), chunkSize: 100 })))
      assertIncludes(result, { status: "done", failed: 1000, calls: 1000 })
      assert.deepStrictEqual(breakerOf(llm), CircuitBreaker.closed)
    }).pipe(Effect.provide(Memory.layer))
  )

  it("I13: only TRANSIENT and UNKNOWN failures in a row open the breaker; a rate limit has its own cool-down", () => {
    const open = (
      parts: { readonly category: LLMError["category"]; readonly reason: LLMError["reason"] },
      n: number
    ) => {
      const error = new LLMError({ scope: "row", charge: "none", message: "m", ...parts })
      return Array.from({ length: n }).reduce<CircuitBreaker.State>(
        (state) => CircuitBreaker.transition(CircuitBreaker.defaults, state, { _tag: "Failed", error, at: 0 }),
        CircuitBreaker.closed
      ).provider
    }
    const { threshold } = CircuitBreaker.defaults
    assert.strictEqual(open({ category: "TRANSIENT", reason: "overloaded" }, threshold - 1), "up")
    assert.strictEqual(open({ category: "TRANSIENT", reason: "overloaded" }, threshold), "down")
    assert.strictEqual(open({ category: "UNKNOWN", reason: "unknown" }, threshold), "down")
    assert.strictEqual(open({ category: "PERMANENT", reason: "bad_request" }, 1000), "up")
    assert.strictEqual(open({ category: "TRANSIENT", reason: "rate_limited" }, 1000), "up")
  })

  for (const minutes of [1, 5]) {
    for (const concurrency of [2, 8]) {
      it.effect(
        `I13: no row becomes a Failure because of an outage of ${minutes} min at concurrency ${concurrency}, few calls are sent into it, and the run completes`,
        () =>
          Effect.gen(function* () {
            const ms = minutes * 60_000
            const llm = outage(21, ms)
            const job = jobOf({ rows: rowsOf(60) })
            const result = yield* elapse(runWith(llm, job, { maxConcurrency: concurrency }))
            assertIncludes(result, { status: "done", stopReason: "complete", done: 60, failed: 0, held: 0 })
            const most = CircuitBreaker.defaults.threshold + concurrency + probesIn(ms)
            assert.isAbove(llm.counts.failed, CircuitBreaker.defaults.threshold)
            assert.isAtMost(llm.counts.failed, most)
            assert.strictEqual(llm.counts.calls, 60 + llm.counts.failed)
            assert.strictEqual(result.calls, llm.counts.calls)
            assert.strictEqual(breakerOf(llm).provider, "up")
          }).pipe(Effect.provide(Memory.layer))
      )
    }
  }

  it.effect("I13: an outage past the limit suspends the run as an outage, no row failed; a resume completes it", () =>
    Effect.gen(function* () {
      const llm = outage(21, 3_600_000)
      const job = jobOf({ rows: rowsOf(60) })
      const result = yield* elapse(runWith(llm, job), "30 minutes")
      assertIncludes(result, { status: "suspended", failed: 0, held: 0 })
      assert.strictEqual(result.reason?.kind, "outage")
      assert.include(result.reason?.message ?? "", "scripted outage")
      assert.strictEqual(result.done + result.pending, 60)
      yield* TestClock.adjust("1 hour")
      const resumed = yield* elapse(runWith(llm, job))
      assertIncludes(resumed, { status: "done", done: 60, failed: 0 })
      assert.strictEqual(llm.counts.calls, 60 + llm.counts.failed)
    }).pipe(Effect.provide(Memory.layer))
  )

  it.effect(
    "I14: CircuitOpen, as a run reports it, carries the failure that opened the breaker, through encoding too",
    () =>
      Effect.gen(function* () {
        const llm = outage(1, 60_000)
        const events = yield* elapse(
          Stream.runCollect(Enrichment.events(jobOf({ rows: rowsOf(30) }), { runId })).pipe(
            Effect.provide(Budget.layer({ maxCostUsd: 1 })),
            Effect.provide([llm.layer, prices])
          )
        )
        const opens = Chunk.toReadonlyArray(events).flatMap((event) =>
          event._tag === "ProviderDown" && event.error !== undefined ? [event.error] : []
        )
        assert.isAbove(opens.length, 0)
        for (const open of opens) {
          const back = Schema.decodeUnknownSync(CircuitOpen)(
            JSON.parse(JSON.stringify(Schema.encodeSync(CircuitOpen)(open)))
          )
          assert.instanceOf(back.cause, LLMError)
          assertIncludes({ ...back.cause }, { reason: "overloaded", category: "TRANSIENT" })
          assert.strictEqual(back.cause.message, "scripted outage")
        }
      }).pipe(Effect.provide(Memory.layer))
  )

  it.effect(
    "I13: a provider that only says 429 while it is probed is asked at the schedule's pace, never in a loop",
    () =>
      Effect.gen(function* () {
        // The first failures open the breaker; from then on 429 without Retry-After, for a minute.
        const llm = scripted(({ n }) =>
          Effect.flatMap(Clock.currentTimeMillis, (now) => {
            if (n <= 10) return fail()
            if (n > 500) return Effect.die(new Error("the provider is asked in a loop"))
            return now < 60_000 ? fail({ reason: "rate_limited", status: 429 }) : good()
          })
        )
        const result = yield* elapse(runWith(llm, jobOf({ rows: rowsOf(40) })))
        assert.strictEqual(result.status, "done")
        assert.isBelow(llm.counts.calls, 300)
      }).pipe(Effect.provide(Memory.layer))
  )

  it.effect("I13: within a hand-written budget an outage is waited for too, and no agent fails because of it", () =>
    Effect.gen(function* () {
      const llm = outage(5, 120_000)
      const agent = agentOf()
      const results = yield* elapse(
        Effect.forEach(rowsOf(30), (row) => agent.run(row), { concurrency: 8 }).pipe(
          Budget.within({ runId: "hand", maxCostUsd: 1, maxConcurrency: 4 }),
          Effect.provide([llm.layer, prices])
        )
      )
      assert.lengthOf(results, 30)
      assert.isAtMost(llm.counts.failed, CircuitBreaker.defaults.threshold + 4 + probesIn(120_000))
    }).pipe(Effect.provide(Memory.layer))
  )
})

/** Whatever the interruption hit, no trace of it may stay: not in the outcomes, not in the store, not in the money. */
const afterInterruption = (job: ReturnType<typeof jobOf>, llm: Scripted, rows: number) =>
  Effect.gen(function* () {
    const status = yield* Effect.option(Enrichment.status(runId))
    if (Option.isSome(status)) {
      assert.strictEqual(status.value.held, 0)
      assert.strictEqual(status.value.failed, 0)
      assert.strictEqual(status.value.partial, 0)
      // Every outcome that stands was really answered.
      assert.isAtMost(status.value.done, llm.counts.calls)
      for (const row of yield* outcomesOf(job)) {
        assert.isTrue(Option.match(row.outcome, { onNone: () => true, onSome: (outcome) => outcome._tag === "Right" }))
      }
    }
    assert.strictEqual(llm.counts.live, 0)
    const before = llm.counts.calls
    const resumed = yield* runWith(llm, job)
    assertIncludes(resumed, { status: "done", done: rows, failed: 0, partial: 0, held: 0 })
    return { paidAgain: llm.counts.calls - rows, before, resumed }
  })

/** A call that takes some turns of the scheduler, so that an interruption can fall between any two. */
const turns = (n: number) => Effect.repeatN(Effect.yieldNow(), n)

describe("Interruption", () => {
  const rows = 12
  const options: ScriptedJobOptions = { rows: rowsOf(rows), chunkSize: 5 }

  it.effect(
    "I19: interrupted at any await, a run leaves no Failure and no held money, settles its calls in flight, and a resume pays nothing twice",
    () =>
      Effect.gen(function* () {
        let [early, middle, late] = [0, 0, 0]
        for (let k = 0; k < 160; k += k < 60 ? 1 : 3) {
          const llm = scripted(() => good(), turns(4))
          const job = jobOf(options)
          yield* Effect.gen(function* () {
            const fiber = yield* Effect.fork(runWith(llm, job, { maxConcurrency: 3 }))
            yield* turns(k)
            yield* Fiber.interrupt(fiber)
            const { before, paidAgain, resumed } = yield* afterInterruption(job, llm, rows)
            assert.strictEqual(paidAgain, 0, `interrupted after ${k} turns`)
            assert.strictEqual(resumed.uncertain, 0)
            assert.strictEqual(resumed.spent, llm.counts.bill)
            assert.strictEqual(llm.counts.aborted, 0)
            if (before === 0) early++
            else if (before < rows) middle++
            else late++
          }).pipe(Effect.provide(Memory.layer))
        }
        assert.isTrue(
          early > 0 && middle > 5 && late > 0,
          `cut before, in and after the calls: ${early}, ${middle}, ${late}`
        )
      }),
    60_000
  )

  it.effect(
    "I19: with no grace the calls in flight are aborted and counted as uncertain, the others are as if never begun",
    () =>
      Effect.gen(function* () {
        let aborted = 0
        for (let k = 0; k < 120; k += 3) {
          const llm = scripted(() => good(), turns(9))
          const job = jobOf(options)
          yield* Effect.gen(function* () {
            const fiber = yield* Effect.fork(runWith(llm, job, { maxConcurrency: 3 }, { graceMs: 0 }))
            yield* turns(k)
            const interrupting = yield* Effect.fork(Fiber.interrupt(fiber))
            yield* TestClock.adjust("1 second")
            yield* Fiber.join(interrupting)
            const { paidAgain, resumed } = yield* afterInterruption(job, llm, rows)
            assert.strictEqual(paidAgain, llm.counts.aborted)
            assert.strictEqual(resumed.uncertain > 0, llm.counts.aborted > 0)
            assert.isAtMost(llm.counts.aborted, 3)
            aborted += llm.counts.aborted
          }).pipe(Effect.provide(Memory.layer))
        }
        assert.isAbove(aborted, 0)
      }),
    60_000
  )

  it.effect("I19: a row interrupted while it backs off is pending, not failed", () =>
    Effect.gen(function* () {
      const llm = scripted(({ nth }) => (nth <= 2 ? fail() : good()))
      const job = jobOf(options)
      const fiber = yield* Effect.fork(runWith(llm, job))
      yield* TestClock.adjust("100 millis")
      yield* Fiber.interrupt(fiber)
      const status = yield* Enrichment.status(runId)
      assertIncludes(status, { status: "suspended", done: 0, failed: 0, pending: rows, held: 0 })
      const resumed = yield* elapse(runWith(llm, job))
      assertIncludes(resumed, { status: "done", done: rows, failed: 0 })
    }).pipe(Effect.provide(Memory.layer))
  )

  const onDisk = <A, E, R>(use: (layer: ReturnType<typeof Sqlite.layer>) => Effect.Effect<A, E, R>) =>
    Effect.acquireUseRelease(
      Effect.sync(() => mkdtempSync(join(tmpdir(), "longhaul-interrupt-"))),
      (dir) => use(Sqlite.layer({ filename: join(dir, "run.db") })),
      (dir) => Effect.sync(() => rmSync(dir, { recursive: true }))
    )

  it.live(
    "I19: on SQLite too: interrupted at any await, held = 0, no Failure, and a resume from the file pays nothing twice",
    () =>
      Effect.gen(function* () {
        let middle = 0
        // On a busy machine a run may take longer to begin than all of these.
        for (let ms = 0; ms < 60 || (middle === 0 && ms < 5_000); ms += ms < 60 ? 4 : ms) {
          const llm = scripted(() => good(), Effect.sleep("3 millis"))
          const job = jobOf(options)
          yield* onDisk((sqlite) =>
            Effect.gen(function* () {
              const interrupted = Effect.gen(function* () {
                const fiber = yield* Effect.fork(runWith(llm, job, { maxConcurrency: 3 }))
                yield* Effect.sleep(ms)
                yield* Fiber.interrupt(fiber)
              })
              yield* Effect.provide(interrupted, sqlite)
              // A connection of its own: what counts is what the file holds.
              const { before, paidAgain, resumed } = yield* Effect.provide(afterInterruption(job, llm, rows), sqlite)
              assert.strictEqual(paidAgain, 0, `interrupted after ${ms} ms`)
              assert.strictEqual(resumed.spent, llm.counts.bill)
              if (before > 0 && before < rows) middle++
            })
          )
        }
        assert.isAbove(middle, 0)
      }),
    60_000
  )

  it.effect("I19: within a hand-written budget an interruption settles the call in flight", () =>
    Effect.gen(function* () {
      const llm = scripted(() => good(), second)
      const program = agentOf()
        .run({ id: 1, text: textOf(1) })
        .pipe(Budget.within({ runId: "hand", maxCostUsd: 1 }), Effect.provide([llm.layer, prices]))
      const fiber = yield* Effect.fork(program)
      yield* TestClock.adjust("500 millis")
      const interrupting = yield* Effect.fork(Fiber.interrupt(fiber))
      yield* TestClock.adjust("1 second")
      yield* Fiber.join(interrupting)
      assertIncludes(yield* Enrichment.status("hand"), { held: 0, uncertain: 0, spent: llm.counts.bill, calls: 1 })
    }).pipe(Effect.provide(Memory.layer))
  )

  it.effect("I19: a defect in the provider is the row's Failure, its money uncertain, and the run goes on", () =>
    Effect.gen(function* () {
      const llm = scripted(({ row }) => (row === "row 2" ? Effect.die(new Error("bug")) : good()))
      const result = yield* elapse(runWith(llm, jobOf(options)))
      assertIncludes(result, { status: "done", done: rows - 1, failed: 1, held: 0 })
      assert.isAbove(result.uncertain, 0)
    }).pipe(Effect.provide(Memory.layer))
  )
})
