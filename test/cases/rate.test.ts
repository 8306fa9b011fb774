import { assert, describe, it } from "@effect/vitest"
import { Effect, Exit, Fiber, Option, TestClock } from "effect"
import * as Memory from "../../src/layers/Memory.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import * as ExitCode from "../../src/programs/ExitCode.ts"
import * as Budget from "../../src/services/Budget.ts"
import { LLMError } from "../../src/services/Errors.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { countingLlm, promptOf } from "../support/countingLlm.ts"
import { elapse, inOrder, play, type Reply, repliesOf } from "../support/fixtureServer.ts"
import { backends, nth, processOn } from "../support/mortalProcess.ts"
import {
  assertSound,
  BILL,
  completion,
  enriched,
  fixture,
  good,
  idOf,
  jobOf,
  prices,
  quick,
  resultsOf,
  run,
  runId,
  vendors
} from "./vendors.ts"

describe("rate limit", () => {
  it.scoped("B69 retry-after-lockstep: nobody asks before the time is up, and then not all at once", () =>
    Effect.gen(function* () {
      const [limited] = repliesOf(fixture("B69-retry-after-lockstep-http"))
      const clock = yield* Effect.clock
      let told = 0
      let toldAt = 0
      let later = 0
      let together = 0
      const server = yield* play(async (seen) => {
        if (limited === undefined || seen.n > 8) {
          later++
          await new Promise((resume) => setTimeout(resume, 30))
          // Those that came before the first of them was answered.
          if (together === 0) together = later
          return good(seen)
        }
        // Eight workers are told so in the same instant.
        told++
        while (told < 8) await new Promise((resume) => setTimeout(resume, 1))
        toldAt = clock.unsafeCurrentTimeMillis()
        return limited
      })
      const job = jobOf({ rows: vendors(40), retry: quick(2) })
      const result = yield* elapse(server, run(job, server), { step: "50 millis", most: "1 minute" })
      assertSound(result, server.requests.length)
      // A refused try is no attempt: two are allowed, and no row failed.
      assertIncludes(result, { status: "done", done: 40, failed: 0, calls: 48, spent: 40 * BILL, uncertain: 0 })
      assert.isAtLeast((server.requests[8]?.at ?? 0) - toldAt, 7_000)
      assert.isAtMost(together, 4, "they come back in lockstep")
    }).pipe(Effect.provide(Memory.layer))
  )

  it.scoped("B75 huge-retry-after: a wait of a month suspends the run and says until when", () =>
    Effect.gen(function* () {
      const now = Date.UTC(2026, 9, 5, 10)
      yield* TestClock.setTime(now)
      const server = yield* play(inOrder(fixture("B75-huge-retry-after-http")))
      const job = jobOf({ rows: vendors(20) })
      const result = yield* elapse(server, run(job, server), { step: "1 second", most: "2 minutes" })
      assertSound(result, server.requests.length)
      assertIncludes(result, { status: "suspended", pending: 20, done: 0, failed: 0, spent: 0, uncertain: 0 })
      assert.strictEqual(result.reason?.kind, "outage")
      assert.include(result.reason?.message ?? "", "asks to wait until")
      // 30 days and a second later.
      assert.include(result.reason?.message ?? "", new Date(now + 2_592_001_000).toISOString().slice(0, 10))
      assert.isAtMost(server.requests.length, 8)
      for (const { at } of server.requests) assert.isBelow(at - now, 60_000)
      assert.strictEqual(ExitCode.ofResult(result), 4)
    }).pipe(Effect.provide(Memory.layer))
  )

  it.scoped("B102 replay-storm: a resume of 3,000 rows starts at the provider's pace, without what is done", () =>
    Effect.gen(function* () {
      const database = yield* backends.memory
      const clock = yield* Effect.clock
      const begun: Array<number> = []
      let refused = 0
      const llm = countingLlm((request) => {
        const now = clock.unsafeCurrentTimeMillis()
        begun.push(now)
        const sixtyBefore = begun[begun.length - 61]
        if (limiting && sixtyBefore !== undefined && sixtyBefore > now - 60_000) {
          refused++
          return tooMany
        }
        return JSON.stringify(enriched(idOf({ said: promptOf(request) })))
      })
      let limiting = false
      const [first] = vendors(1)
      const name = first?.name ?? ""
      const rows = Array.from({ length: 3_040 }, (_, i) => ({ id: `V-${String(i + 1).padStart(5, "0")}`, name }))
      const job = jobOf({ rows })
      const layers = (dies?: Parameters<typeof processOn>[1]) => [processOn(database, dies), llm.layer, prices] as const

      const dead = yield* Effect.exit(
        Enrichment.run(job, { runId }).pipe(
          Effect.provide(Budget.layer({ maxCostUsd: 10, maxConcurrency: 8 })),
          Effect.provide(layers(nth(41, (op) => op._tag === "Outcome")))
        )
      )
      assert.isTrue(Exit.isFailure(dead))
      const stored = (yield* Effect.provide(resultsOf, layers())).filter(isEnded)
      assert.lengthOf(stored, 40)

      limiting = true
      begun.length = 0
      const resumedAt = clock.unsafeCurrentTimeMillis()
      const fiber = yield* Effect.fork(
        Enrichment.run(job, { runId }).pipe(
          Effect.provide(Budget.layer({ maxCostUsd: 10, maxConcurrency: 8, requestsPerMinute: 60 })),
          Effect.provide(layers())
        )
      )
      // In small steps, so that a burst shows.
      for (let passed = 0; passed < 180; passed++) yield* TestClock.adjust("1 second")
      const inMinute = (minute: number) => begun.filter((at) => Math.floor((at - resumedAt) / 60_000) === minute).length
      assert.isAtMost(inMinute(0), 60)
      assert.isAtLeast(inMinute(0), 10)
      for (const minute of [1, 2]) {
        assert.isAtMost(inMinute(minute), 60)
        assert.isAtLeast(inMinute(minute), 40)
      }
      assert.strictEqual(refused, 0)
      yield* Fiber.interrupt(fiber)
      // What was stored before the crash was not asked again.
      for (const { id } of stored) assert.strictEqual(llm.asked.get(`${id}: ${name}`), 1)
      assert.isAtLeast(
        (yield* Effect.provide(resultsOf, layers())).filter(isEnded).length,
        40 + inMinute(0) + inMinute(1)
      )
    })
  )

  const spent = repliesOf(fixture("B156-reset-duration-http"))[0]
  const withReset = (reset: string, seen: Parameters<typeof idOf>[0]): Reply => ({
    ...completion(JSON.stringify(enriched(idOf(seen)))),
    headers: { ...spent?.headers, "x-ratelimit-reset-tokens": reset }
  })
  const start = Date.UTC(2026, 9, 5, 10)
  for (const [what, reset, least, most, step] of [
    ["minutes and seconds", "6m0s", 360_000, 400_000, 3_000],
    ["milliseconds", "120ms", 120, 2_000, 20],
    ["plain seconds", "30", 30_000, 35_000, 300],
    ["a fraction of a second", "1.5s", 1_500, 4_000, 50],
    // Read, or not known: in no case NaN or a year.
    ["an epoch time", String(start / 1000 + 45), 0, 60_000, 500],
    ["a word that nobody knows", "soon", 0, 1_000, 20]
  ] as const) {
    it.scoped(`B156 reset-duration: no tokens are left until a time given as ${what}: new calls wait for it`, () =>
      Effect.gen(function* () {
        yield* TestClock.setTime(start)
        const server = yield* play((seen) => (seen.n === 1 ? withReset(reset, seen) : good(seen)))
        const running = run(jobOf({ rows: vendors(3) }), server, { budget: { maxConcurrency: 1 } })
        const result = yield* elapse(server, running, { step, most: "10 minutes" })
        assertSound(result, server.requests.length)
        assertIncludes(result, { status: "done", done: 3, failed: 0, calls: 3, retries: 0 })
        const [first, second] = server.requests
        const waited = (second?.at ?? 0) - (first?.at ?? 0)
        assert.isAtLeast(waited, least)
        assert.isAtMost(waited, most)
      }).pipe(Effect.provide(Memory.layer))
    )
  }
})

const isEnded = ({ outcome }: { readonly outcome: Option.Option<unknown> }): boolean => Option.isSome(outcome)

const tooMany = new LLMError({
  reason: "rate_limited",
  category: "TRANSIENT",
  scope: "row",
  charge: "none",
  message: "60 requests a minute",
  status: 429
})
