import { join } from "node:path"
import * as SqlClient from "@effect/sql/SqlClient"
import * as SqliteClient from "@effect/sql-sqlite-node/SqliteClient"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Exit, Layer } from "effect"
import * as Memory from "../../src/layers/Memory.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import * as ExitCode from "../../src/programs/ExitCode.ts"
import * as Budget from "../../src/services/Budget.ts"
import { StorageError } from "../../src/services/Errors.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { countingLlm, promptOf } from "../support/countingLlm.ts"
import { play } from "../support/fixtureServer.ts"
import { nth, processOn, tempDir } from "../support/mortalProcess.ts"
import {
  assertSound,
  BILL,
  completion,
  enriched,
  failureOf,
  good,
  HOLD,
  idOf,
  jobOf,
  NANO,
  prices,
  quick,
  resultsOf,
  run,
  runId,
  vendors
} from "./vendors.ts"

const pause = (ms: number) => new Promise<void>((resume) => setTimeout(resume, ms))
/** An ordinary answer, too late for a client that waits 300 ms: billed all the same. */
const late = (bill: () => void) => async (seen: Parameters<typeof idOf>[0]) => {
  bill()
  await pause(900)
  return completion(JSON.stringify(enriched(idOf(seen))))
}

describe("unaccounted spend", () => {
  it.scopedLive(
    "B02 timeout-zero: a call that was given up counts at its hold, each time, apart from what is known",
    () =>
      Effect.gen(function* () {
        let billed = 0
        const server = yield* play(late(() => (billed += BILL)))
        const result = yield* run(jobOf({ retry: quick(3) }), server, { llm: { timeoutMs: 300 } })
        assertSound(result, server.requests.length)
        assertIncludes(result, { failed: 1, calls: 3, retries: 2, spent: 0, uncertain: 3 * HOLD })
        assert.isAtLeast(result.spent + result.uncertain, billed)
        assertIncludes(yield* failureOf("V-001"), { reason: "timeout", category: "TRANSIENT" })
      }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive("B02 timeout-zero: the cap stops a run on what it does not know, too", () =>
    Effect.gen(function* () {
      const server = yield* play(late(() => {}))
      const result = yield* run(jobOf({ rows: vendors(2), retry: quick(3) }), server, {
        budget: { maxCostUsd: (3 * HOLD) / NANO, maxConcurrency: 1 },
        llm: { timeoutMs: 300 }
      })
      assertSound(result, server.requests.length)
      assertIncludes(result, { status: "suspended", calls: 3, spent: 0, uncertain: 3 * HOLD })
      assert.strictEqual(result.reason?.kind, "budget")
      assert.isAbove(result.pending, 0)
    }).pipe(Effect.provide(Memory.layer))
  )

  it.live(
    "B03 ledger-lag-crash: ten kills in ten chunks lose no charge and count none twice; the calls in flight are uncertain",
    () =>
      Effect.scoped(
        Effect.gen(function* () {
          const rows = vendors(1_000)
          const job = jobOf({ rows, chunkSize: 100 })
          const filename = join(yield* tempDir, "run.db")
          const database = Sqlite.open({ filename })
          const turn = Effect.promise(() => new Promise<void>((resume) => setImmediate(resume)))
          const llm = countingLlm(
            (request) => JSON.stringify(enriched(idOf({ said: promptOf(request) }))),
            () => turn
          )
          const processThat = (dies?: Parameters<typeof processOn>[1]) =>
            Enrichment.run(job, { runId }).pipe(
              Effect.provide(Budget.layer({ maxCostUsd: 1, maxConcurrency: 8 })),
              Effect.provide([processOn(database, dies), llm.layer, prices])
            )
          const book = Effect.provide(Enrichment.status(runId), Sqlite.layer({ filename }))

          let lost = 0
          for (let chunk = 0; chunk < 10; chunk++) {
            const settled = 100 * chunk + 57
            const before = chunk === 0 ? 0 : 100 * (chunk - 1) + 57
            const dead = yield* Effect.exit(processThat(nth(settled - before + 1, (op) => op._tag === "Settle")))
            assert.isTrue(Exit.isFailure(dead))
            const now = yield* book
            // What stands of earlier kills is uncertain by now, what was in flight at this one is still held.
            assertIncludes(now, { spent: settled * BILL, uncertain: lost * HOLD })
            assert.isAtMost(now.done, settled)
            assert.isAtLeast(now.held, HOLD)
            lost += now.held / HOLD
          }
          assert.isAtMost(lost, 10 * 8)

          const ended = yield* processThat()
          assertSound(ended, llm.calls())
          assertIncludes(ended, { status: "done", done: 1_000, spent: 1_000 * BILL, uncertain: lost * HOLD })
          assert.strictEqual(llm.calls(), 1_000 + lost)
          const ledger = yield* Effect.flatMap(
            SqlClient.SqlClient,
            (sql) => sql`select state, sum(cost) as cost, count(*) as calls from call group by state order by state`
          ).pipe(Effect.provide(SqliteClient.layer({ filename })))
          assert.deepStrictEqual(ledger, [
            { state: "settled", cost: 1_000 * BILL, calls: 1_000 },
            { state: "uncertain", cost: lost * HOLD, calls: lost }
          ])
        })
      ),
    30_000
  )

  it.scopedLive(
    "B74 ledger-flush-failure: a database that is locked when the answer comes gets result and charge later, once",
    () =>
      Effect.gen(function* () {
        const filename = join(yield* tempDir, "run.db")
        const other = yield* Layer.build(SqliteClient.layer({ filename }))
        const lock = (sql: string) => Effect.runPromise(Effect.provide(query(sql), other))
        let locked = 0
        const server = yield* play(async (seen) => {
          if (seen.n === 2) {
            await lock("begin immediate")
            locked++
            setTimeout(() => void lock("rollback"), 400)
          }
          return good(seen)
        })
        const result = yield* run(jobOf({ rows: vendors(4) }), server, { budget: { maxConcurrency: 1 } }).pipe(
          Effect.provide(Sqlite.layer({ filename }))
        )
        assertSound(result, server.requests.length)
        assert.strictEqual(locked, 1)
        assertIncludes(result, { status: "done", done: 4, calls: 4, spent: 4 * BILL, uncertain: 0 })
        assert.deepStrictEqual(yield* Effect.provide(query("select count(*) as n from call"), other), [{ n: 4 }])
      })
  )

  it.scopedLive(
    "B74 ledger-flush-failure: a settlement that cannot be written ends the run, and is not forgotten",
    () =>
      Effect.gen(function* () {
        const filename = join(yield* tempDir, "run.db")
        const server = yield* play(good)
        const job = jobOf({ rows: vendors(30) })
        const dies = nth(5, (op) => op._tag === "Settle")
        const ended = yield* Effect.flip(Effect.provide(run(job, server), processOn(Sqlite.open({ filename }), dies)))
        assert.instanceOf(ended, StorageError)
        assert.strictEqual(ExitCode.ofError(ended), 74)
        const sent = server.requests.length
        assert.isAtMost(sent, 4 + 8)
        const [resumed, rows] = yield* Effect.all([run(job, server), resultsOf]).pipe(
          Effect.provide(Sqlite.layer({ filename }))
        )
        assertSound(resumed, server.requests.length)
        assertIncludes(resumed, { status: "done", done: 30, spent: 30 * BILL, uncertain: (sent - 4) * HOLD })
        assert.strictEqual(server.requests.length, 30 + sent - 4)
        assert.lengthOf(rows, 30)
      })
  )
})

const query = (text: string) => Effect.flatMap(SqlClient.SqlClient, (sql) => sql.unsafe(text))
