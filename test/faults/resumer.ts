/** A process that works on a run whenever it is told to, for T10: it claims, then writes until it is fenced, each write with its worker's number; beside each it writes without a fence. */
import { createInterface } from "node:readline"
import * as SqliteClient from "@effect/sql-sqlite-node/SqliteClient"
import { Effect } from "effect"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import * as RunRecord from "../../src/programs/RunRecord.ts"
import type { Op } from "../../src/services/Book.ts"
import { type JournalShape, make } from "../../src/services/Journal.ts"

export const RUN = "run"

const fresh = { runId: RUN, job: "j", scope: "j", status: "running", source: "{}", createdAt: 0, chunkSize: 1 } as const
/** A snapshot whose time is the worker's number. */
const snapshot = (worker: number): Op => ({
  _tag: "RunSnapshot",
  fence: { runId: RUN, worker },
  status: "RUNNING",
  keep: "all",
  at: worker
})

/** Writes until it is fenced. */
const write = (journal: JournalShape, worker: number) =>
  Effect.gen(function* () {
    const sql = yield* SqliteClient.SqliteClient
    while (true) {
      yield* sql`insert into unfenced (worker) values (${worker})`
      const verdict = yield* journal.commit(snapshot(worker))
      if (verdict._tag === "Fenced") return
      yield* Effect.sleep("5 millis")
    }
  })

/** Works on the run in `db` at each line of its input. */
export const work = (db: string): Promise<void> =>
  Effect.gen(function* () {
    const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
    // The parent is gone.
    process.stdin.on("end", () => process.exit())
    console.log("ready")
    while (true) {
      const { done } = yield* Effect.promise(() => lines.next())
      if (done === true) return
      const said = yield* Effect.scoped(
        Effect.gen(function* () {
          const journal = yield* Effect.flatMap(Sqlite.open({ filename: db }), make)
          const { fence } = yield* RunRecord.open(journal, { fresh, limits: { cap: null } })
          console.log(`claimed ${fence.worker}`)
          yield* Effect.provide(write(journal, fence.worker), SqliteClient.layer({ filename: db }))
          return "fenced"
        })
      ).pipe(Effect.catchAll((error) => Effect.succeed(`${error._tag} ${"reason" in error ? error.reason : ""}`)))
      console.log(said)
    }
  }).pipe(Effect.runPromise)
