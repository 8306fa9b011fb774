import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { Deferred, Effect, Either, Fiber, Random } from "effect"
import * as Memory from "../../src/layers/Memory.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import * as Budgets from "../../src/programs/Budgets.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import * as Budget from "../../src/services/Budget.ts"
import { LLMError } from "../../src/services/Errors.ts"
import { fromIterable } from "../../src/services/RowSource.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { countingLlm, isRepair, promptOf } from "../support/countingLlm.ts"
import { play, type Reply } from "../support/fixtureServer.ts"
import { nth, processOn, tempDir } from "../support/mortalProcess.ts"
import { assessing, assessorWith, dated, enrich, inputJob, inputs, readAsked } from "./inputs.ts"
import {
  assertSound,
  BILL,
  EnrichedVendor,
  enriched,
  good,
  HOLD,
  idOf,
  jobOf,
  openai,
  outcomeOf,
  prices,
  runId,
  until,
  vendors
} from "./vendors.ts"

const turns = (n: number) =>
  Effect.repeatN(
    Effect.promise(() => new Promise<void>((go) => setImmediate(go))),
    n
  )
const HOUR = 3_600_000

describe("concurrency", () => {
  it.live(
    "B56 permit-leak: 1,000 rows that are interrupted at random instants leave all eight permits behind",
    () =>
      Effect.gen(function* () {
        let inFlight = 0
        let most = 0
        let asks = 0
        const llm = assessing(() =>
          Effect.acquireUseRelease(
            Effect.sync(() => {
              asks++
              most = Math.max(most, ++inFlight)
            }),
            () => turns(1),
            () => Effect.sync(() => inFlight--)
          )
        )
        const agent = assessorWith(EnrichedVendor)
        const [row] = inputs(1)
        if (row === undefined) return assert.fail("there is no row")
        const cut = (ops: number) =>
          Effect.forEach(
            Array.from({ length: 20 }, (_, i) => i),
            () =>
              Effect.gen(function* () {
                const fiber = yield* Effect.fork(agent.run(row))
                yield* turns(yield* Random.nextIntBetween(0, 4))
                yield* Fiber.interrupt(fiber)
              }),
            { concurrency: 20, discard: true }
          ).pipe(Effect.withMaxOpsBeforeYield(ops))
        // Below a dozen steps a turn Effect's own runtime does not get on.
        const sweep = Effect.forEach([...Array(50).keys()], (i) => cut(12 + i), { discard: true })
        const rest = Effect.gen(function* () {
          yield* sweep
          const cutShort = asks
          most = 0
          yield* Effect.forEach(inputs(16), (one) => agent.run(one), { concurrency: 16 })
          return { cutShort, most }
        }).pipe(
          Budgets.within({ runId, maxCostUsd: 100, maxConcurrency: 8 }),
          Effect.provide([llm.layer, prices]),
          Effect.withRandom(Random.make("permits"))
        )
        const [end, totals] = yield* Effect.provide(Effect.all([rest, Enrichment.status(runId)]), Memory.layer)
        // Many were cut off in mid-call, and then eight were under way at once again.
        assert.isAbove(end.cutShort, 100)
        assert.strictEqual(end.most, 8)
        assert.strictEqual(inFlight, 0)
        assertIncludes(totals, { held: 0, calls: asks })
        assert.isAbove(totals.uncertain, 0)
      }),
    60_000
  )

  for (const [backend, place] of [
    ["memory", Effect.succeed(Memory.layer)],
    ["SQLite", Effect.map(tempDir, (dir) => Sqlite.layer({ filename: join(dir, "run.db") }))]
  ] as const) {
    it.scoped(
      `B94 stall-10min: 300 rows of several steps, 20 at once, end on ${backend} while no clock moves at all`,
      () =>
        Effect.gen(function* () {
          // Each answer needs a repair, and the test's clock stands still: what waited for a second look would never end.
          const llm = countingLlm((request) =>
            isRepair(request) ? JSON.stringify(enriched(readAsked(promptOf(request)).id)) : "let me see"
          )
          const budget = { maxConcurrency: 20 }
          const result = yield* Effect.provide(
            enrich(inputJob(fromIterable(inputs(300))), llm, { budget }),
            yield* place
          )
          assertSound(result, llm.calls())
          assertIncludes(result, { status: "done", done: 300, calls: 600, repairs: 300 })
        })
    )
  }

  it.scopedLive(
    "B134 interrupt-loses: a stop stands, whatever the call in flight then says, and no call begins after it",
    () =>
      Effect.gen(function* () {
        const failed: Reply = { status: 500, headers: {}, body: { error: { message: "oops" } } }
        const gate = yield* Deferred.make<void>()
        const server = yield* play(async (seen) => {
          if (idOf(seen) !== "V-005") return good(seen)
          await Effect.runPromise(Deferred.await(gate))
          return failed
        })
        const handle = yield* Enrichment.start(jobOf({ rows: vendors(10) }), { runId }).pipe(
          Effect.provide(Budget.layer({ maxCostUsd: 1, maxConcurrency: 1 })),
          Effect.provide([openai(server), prices])
        )
        yield* until(() => server.requests.length === 5)
        yield* handle.stop
        yield* Deferred.succeed(gate, undefined)
        const result = yield* handle.await
        assertSound(result, server.requests.length)
        assertIncludes(result, { status: "suspended", done: 4, failed: 0, pending: 6, calls: 5, uncertain: HOLD })
        assert.deepStrictEqual(result.reason, { kind: "operator", message: "asked to stop" })
      }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive(
    "B134 interrupt-loses: a stop that a kill overtakes is forgotten, and a resume ends the run, paid once",
    () =>
      Effect.gen(function* () {
        const database = Sqlite.open({ filename: join(yield* tempDir, "run.db") })
        const job = inputJob(fromIterable(inputs(10)))
        const llm = assessing(() => Effect.sleep("20 millis"))
        const budget = { maxConcurrency: 1 }
        const dies = nth(1, (op) => op._tag === "RunSnapshot" && op.status === "SUSPENDED")
        const running = yield* Effect.fork(Effect.provide(enrich(job, llm, { budget }), processOn(database, dies)))
        yield* until(() => llm.calls() === 4)
        yield* Fiber.interrupt(running)
        const killed = yield* Effect.provide(Enrichment.status(runId), processOn(database))
        assertIncludes(killed, { status: "running", held: 0 })
        const ended = yield* Effect.provide(enrich(job, llm, { budget }), processOn(database))
        assertSound(ended, llm.calls())
        assertIncludes(ended, { status: "done", done: 10, calls: 10, spent: 10 * BILL })
      })
  )
})

describe("a clock that is set anew", () => {
  it.scopedLive("B139 clock-step: an hour back and two ahead change no wait, no call and no drain", () =>
    Effect.gen(function* () {
      let offset = 0
      let asks = 0
      const passing = new LLMError({
        reason: "server_error",
        category: "TRANSIENT",
        scope: "row",
        charge: "none",
        message: "not now"
      })
      const llm = countingLlm((request) => {
        asks++
        // A row that waits to be tried again when the clock jumps.
        if (asks === 10) offset = -HOUR
        if (asks === 30) offset = 2 * HOUR
        return asks === 10 || asks === 30 ? passing : JSON.stringify(enriched(readAsked(promptOf(request)).id))
      })
      const rows = inputs(60)
      const job = inputJob(fromIterable(rows))
      const date = () => Date.now() + offset
      const result = yield* dated(Effect.timeout(enrich(job, llm), "20 seconds"), date)
      assertSound(result, asks)
      assertIncludes(result, { status: "done", done: 60, calls: 62, retries: 2, uncertain: 0 })
      assert.isTrue(Either.isRight(yield* Effect.either(outcomeOf("V-060"))))

      // Ahead in the middle of a drain: the call in flight has its whole grace.
      offset = 0
      const asked = yield* Deferred.make<void>()
      const slow = assessing(() => Effect.zipRight(Deferred.succeed(asked, undefined), Effect.sleep("300 millis")))
      const other = { ...job, scope: "drain" }
      const fiber = yield* Effect.fork(
        dated(enrich(other, slow, { run: { runId: "drain", graceMs: 10_000 }, budget: { maxConcurrency: 1 } }), date)
      )
      yield* Deferred.await(asked)
      const stopping = yield* Effect.fork(Fiber.interrupt(fiber))
      offset = 2 * HOUR
      yield* Fiber.join(stopping)
      const drained = yield* Enrichment.status("drain")
      assertIncludes(drained, { status: "suspended", done: 1, calls: 1, uncertain: 0, held: 0 })
    }).pipe(Effect.provide(Memory.layer))
  )
})
