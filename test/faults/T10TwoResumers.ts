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

/** Between two commits: in the middle of one it would keep everybody from writing. */
const stop = (owner: Child, db: string): Effect.Effect<void> =>
  Effect.gen(function* () {
    yield* signal(owner, "SIGSTOP")
    if (yield* isFree(db)) return
    yield* signal(owner, "SIGCONT")
    yield* Effect.sleep("3 millis")
    yield* stop(owner, db)
  })

const isFree = (db: string) =>
  Effect.gen(function* () {
    const sql = yield* SqliteClient.SqliteClient
    yield* sql`pragma busy_timeout = 20`
    const connection = yield* sql.reserve
    yield* connection.executeRaw("begin immediate", [])
    yield* connection.executeRaw("rollback", [])
    return true
  }).pipe(
    Effect.scoped,
    Effect.provide(SqliteClient.layer({ filename: db })),
    Effect.catchAllCause(() => Effect.succeed(false))
  )

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
    const fenced = yield* sql<{ worker: number }>`select at as worker from checkpoint order by version`
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
      yield* stop(owner, db)
      // A stopped owner keeps its lock; every third round shows it.
      if (round % 3 === 0) {
        yield* other.say("go")
        const line = yield* other.line
        check(`the owner is stopped and has the lock: ${line}`, line === "RunRefused busy")
        kept++
      }
      yield* deleteLocks(db)
      yield* other.say("go")
      claimed(yield* other.line)
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
    check(`${fenced.length} writes, ${stale(fenced)} stale`, fenced.length > TAKEOVERS && stale(fenced) === 0)
    check(`control: ${stale(unfenced)} stale writes without a fence`, stale(unfenced) > 0)
    return {
      figure: `${TAKEOVERS} takeovers, ${fenced.length} writes, ${stale(fenced)} stale; refused ${kept} of ${kept} times while the owner was stopped`,
      control: `without a fence ${stale(unfenced)} of ${unfenced.length} stale`,
      broken
    }
  })
}
