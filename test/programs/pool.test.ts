/** A cap that several runs of one database share: none of them, and no instant, passes it. */
import { assert, describe, it } from "@effect/vitest"
import { Effect, Either } from "effect"
import { vi } from "vitest"
import * as Memory from "../../src/layers/Memory.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import * as Budget from "../../src/programs/Budgets.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import { poolDifferences } from "../../src/programs/Soundness.ts"
import { RunRefused } from "../../src/services/Errors.ts"
import { Journal } from "../../src/services/Journal.ts"
import { Usd } from "../../src/services/Usd.ts"
import { tempFile } from "../laws/backends.ts"
import { jobOf, rowsOf } from "../support/scriptedJob.ts"
import { good, prices, type Scripted, scripted, tokens } from "../support/scriptedLlm.ts"

const NANO = 1_000_000_000
vi.setConfig({ testTimeout: 60_000 })

const run = (llm: Scripted, runId: string, budget: Budget.BudgetOptions) =>
  Enrichment.run(jobOf({ rows: rowsOf(60, (id) => `row ${id} of ${runId} ${"x".repeat((id * 37) % 400)}`) }), {
    runId
  }).pipe(Effect.provide(Budget.layer(budget)), Effect.provide([llm.layer, prices]))

/** Some turns of the event loop, so that calls overlap. */
const overlap = Effect.promise(() => new Promise<void>((resume) => setImmediate(() => setImmediate(resume))))

const bundles = [
  ["memory", Effect.succeed(Memory.layer)],
  ["SQLite", Effect.map(tempFile, (filename) => Sqlite.layer({ filename }))]
] as const

describe("A pool", () => {
  for (const [name, bundle] of bundles) {
    for (const maxConcurrency of [1, 8]) {
      it.scopedLive(
        `I10: three runs at once stay under the cap that they share, and go on where it is raised (${name}, concurrency ${maxConcurrency})`,
        () =>
          Effect.flatMap(bundle, (layer) =>
            Effect.gen(function* () {
              const ids = ["one", "two", "three"]
              // The output is far below its limit: holds that fill the pool become room again.
              const llm = scripted(({ row }) => good(tokens(20 + row.length, 7)), overlap)
              const together = (dollars: number) =>
                Effect.forEach(
                  ids,
                  (id) => run(llm, id, { maxCostUsd: 1, maxConcurrency, pool: { id: "all", maxCostUsd: dollars } }),
                  { concurrency: "unbounded" }
                )
              const cap = 0.003
              const short = yield* together(cap)
              const counted = short.reduce((sum, { spent, uncertain }) => sum + spent + uncertain, 0)
              assert.isAtMost(llm.counts.bill, cap * NANO)
              assert.strictEqual(llm.counts.bill, counted)
              for (const { failed, held, pool, reason } of short) {
                assert.strictEqual(reason?.kind, "budget")
                assert.deepStrictEqual({ failed, held, pool }, { failed: 0, held: 0, pool: "all" })
              }
              const journal = yield* Journal
              const audit = yield* journal.reads.pool("all")
              assert.deepStrictEqual(audit?.pool, {
                id: "all",
                cap: Usd.nano(cap * NANO),
                spent: Usd.nano(counted),
                uncertain: Usd.zero,
                held: Usd.zero
              })
              assert.deepStrictEqual(yield* poolDifferences(journal, "all"), [])
              // No run gave up early: what is left is less than one of the dearest holds.
              assert.isBelow(cap * NANO - counted, 200_000)

              const long = yield* together(1)
              assert.deepStrictEqual(
                long.map(({ done, status }) => ({ done, status })),
                ids.map(() => ({ done: 60, status: "done" }))
              )
              assert.strictEqual(llm.counts.calls, 180)
            }).pipe(Effect.provide(layer))
          )
      )
    }
  }

  it.effect("A run stays in the pool that it was begun in", () =>
    Effect.gen(function* () {
      const llm = scripted(() => good())
      yield* run(llm, "alone", { maxCostUsd: 1 })
      const moved = yield* Effect.either(run(llm, "alone", { pool: { id: "all", maxCostUsd: 1 } }))
      assert.isTrue(Either.isLeft(moved) && moved.left instanceof RunRefused && moved.left.reason === "bad_limit")
      assert.isUndefined(yield* Effect.flatMap(Journal, ({ reads }) => reads.pool("all")))
      const bad = yield* Effect.either(run(llm, "bad", { maxCostUsd: 1, pool: { id: "all", maxCostUsd: -1 } }))
      assert.isTrue(Either.isLeft(bad) && bad.left instanceof RunRefused && bad.left.reason === "bad_limit")
    }).pipe(Effect.provide(Memory.layer))
  )
})
