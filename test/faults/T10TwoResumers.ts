/**
 * T10: two processes and one run. While the owner lives, stopped or not, the lock keeps the other one off. Where the lock does not hold (its file is deleted here), the other one takes over, and the
 * first, when it wakes, can write nothing. Control: writes without a fence.
 */
import { readdirSync, rmSync } from "node:fs"
import { join } from "node:path"
import * as SqliteClient from "@effect/sql-sqlite-node/SqliteClient"
import { Effect } from "effect"
import { type Child, start, tempDir, url } from "../laws/backends.ts"
import { type Fault, makeChecks } from "./fault.ts"

const TAKEOVERS = 30

const signal = ({ pid }: Child, name: NodeJS.Signals) => Effect.sync(() => process.kill(pid, name))

/** How many writes came after one of a later worker. */
const stale = (workers: ReadonlyArray<number>): number => {
  let latest = 0
  return workers.filter((worker) => {
    const isStale = worker < latest
    latest = Math.max(latest, worker)
    return isStale
  }).length
}

const written = (db: string) =>
  Effect.gen(function* () {
    const sql = yield* SqliteClient.SqliteClient
    const fenced = yield* sql<{
      worker: number
    }>`select cast(value as integer) as worker from outcome order by commit_seq`
    const unfenced = yield* sql<{ worker: number }>`select worker from unfenced order by n`
    return { fenced: fenced.map(({ worker }) => worker), unfenced: unfenced.map(({ worker }) => worker) }
  }).pipe(Effect.provide(SqliteClient.layer({ filename: db })))

const deleteLocks = (db: string) =>
  Effect.sync(() => {
    for (const file of readdirSync(`${db}-runs`)) if (file.endsWith(".lock")) rmSync(join(`${db}-runs`, file))
  })

export const twoResumers: Fault = {
  id: "T10",
  name: "two resumers",
  run: Effect.gen(function* () {
    const { broken, check } = makeChecks()
    const db = join(yield* tempDir, "book.db")
    yield* Effect.provide(
      Effect.flatMap(
        SqliteClient.SqliteClient,
        (sql) => sql`create table unfenced (n integer primary key, worker integer)`
      ),
      SqliteClient.layer({ filename: db })
    )
    const script = `import { work } from ${url("test/faults/resumer.ts")}\nawait work(${JSON.stringify(db)})`
    let [owner, other] = yield* Effect.all([start(script), start(script)])
    check("both are ready", (yield* owner.line) === "ready" && (yield* other.line) === "ready")
    const workers: Array<number> = []
    const claimed = (line: string) => {
      const worker = Number(/^claimed (\d+)$/.exec(line)?.[1])
      check(`a takeover: ${line}`, Number.isInteger(worker))
      workers.push(worker)
    }
    yield* owner.say("go")
    claimed(yield* owner.line)

    let kept = 0
    for (let round = 0; round < TAKEOVERS; round++) {
      yield* Effect.sleep("20 millis")
      yield* signal(owner, "SIGSTOP")
      // A stopped owner keeps its lock; every third round shows it.
      if (round % 3 === 0) {
        yield* other.say("go")
        const line = yield* other.line
        check(`the owner is stopped and has the lock: ${line}`, line === "RunRefused busy")
        kept++
      }
      yield* deleteLocks(db)
      yield* other.say("go")
      let line = yield* other.line
      // It was stopped in the middle of a commit: nobody can write until it has ended.
      for (let tries = 0; line === "StorageError busy" && tries < 5; tries++) {
        yield* signal(owner, "SIGCONT")
        yield* Effect.sleep("10 millis")
        yield* signal(owner, "SIGSTOP")
        yield* other.say("go")
        line = yield* other.line
      }
      claimed(line)
      yield* Effect.sleep("20 millis")
      yield* signal(owner, "SIGCONT")
      const end = yield* owner.line
      check(`round ${round}: the stale owner says ${end}`, end === "fenced")
      ;[owner, other] = [other, owner]
    }
    const { fenced, unfenced } = yield* written(db)
    check(
      `workers are numbered upwards: ${workers}`,
      workers.every((worker, i) => worker === i + 1)
    )
    check(`${stale(fenced)} stale writes`, stale(fenced) === 0)
    check(`control: ${stale(unfenced)} stale writes without a fence`, stale(unfenced) > 0)
    return {
      figure: `${TAKEOVERS} takeovers, ${fenced.length} writes, ${stale(fenced)} stale; refused ${kept} of ${kept} times while the owner was stopped`,
      control: `without a fence ${stale(unfenced)} of ${unfenced.length} stale`,
      broken
    }
  })
}
