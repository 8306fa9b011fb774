/**
 * The journal's driver over any SQL database that `@effect/sql` speaks. All statements stand here; what differs by database is behind `Dialect`.
 *
 * @since 0.1.0
 */
import * as Migrator from "@effect/sql/Migrator"
import * as SqlClient from "@effect/sql/SqlClient"
import type { Connection } from "@effect/sql/SqlConnection"
import type { SqlError } from "@effect/sql/SqlError"
import { Array, Effect, Exit } from "effect"
import type { Book, Facts, HoldRecord, Needs, Writes } from "../services/Book.ts"
import { StorageError } from "../services/Errors.ts"
import type { Driver, Reads, RowResult } from "../services/Journal.ts"
import {
  bookColumns,
  type Cell,
  type Columns,
  callColumns,
  checkpointColumns,
  holdColumns,
  num,
  outcomeColumns,
  type Row,
  rowColumns,
  storeColumns,
  str,
  tables,
  toBook,
  toCall,
  toCheckpoint,
  toHold,
  toOutcome,
  toRow,
  toWorker,
  workerColumns
} from "./SqlTables.ts"

/**
 * What a database does in its own way: how a serialised transaction begins, and what its errors mean.
 *
 * @since 0.1.0
 */
export interface Dialect {
  readonly location: string
  readonly begin: string
  readonly toStorageError: (error: SqlError) => StorageError
  /** Tries again what failed only because another process holds the database. */
  readonly patiently: <A>(use: Effect.Effect<A, StorageError>) => Effect.Effect<A, StorageError>
}

/**
 * The driver over the `SqlClient` in the context, which must be its own: a transaction of the user's around it would deadlock.
 *
 * @since 0.1.0
 */
export const makeDriver = (dialect: Dialect): Effect.Effect<Driver, StorageError, SqlClient.SqlClient> =>
  Effect.gen(function* () {
    const client = (yield* SqlClient.SqlClient).withoutTransforms()
    yield* migrate(dialect)
    const connected = <A>(use: (connection: Connection) => Effect.Effect<A, SqlError>) =>
      dialect.patiently(
        Effect.scoped(Effect.flatMap(client.reserve, use)).pipe(Effect.mapError(dialect.toStorageError))
      )
    const transact = (needs: Needs, decide: (facts: Facts) => Writes) =>
      connected((db) =>
        Effect.uninterruptible(
          Effect.flatMap(db.executeRaw(dialect.begin, []), () =>
            facts(db, needs).pipe(
              Effect.flatMap((read) => apply(db, decide(read))),
              Effect.zipRight(db.executeRaw("commit", [])),
              // A failed statement or COMMIT leaves the transaction open: without this, later writes would fall into it.
              Effect.onExit((exit) =>
                Exit.isSuccess(exit) ? Effect.void : Effect.ignore(db.executeRaw("rollback", []))
              )
            )
          )
        )
      )
    return { durable: true, location: dialect.location, reads: reads(connected), transact }
  })

const migrate = (dialect: Dialect): Effect.Effect<void, StorageError, SqlClient.SqlClient> =>
  Effect.gen(function* () {
    const sql = yield* SqlClient.SqlClient
    const clustered = sql.onDialectOrElse({ sqlite: () => "without rowid", orElse: () => "" })
    const create = Effect.forEach(tables(clustered), (table) => sql.unsafe(table), { discard: true })
    yield* Migrator.make({})({ loader: Migrator.fromRecord({ "0001_init": create }), table: "longhaul_migrations" })
    // The migrator takes any failure to insert its own row for "another process migrates": look whether that one is done.
    const done = yield* sql`select migration_id from longhaul_migrations`
    if (done.length === 0) return yield* migrating(dialect)
  }).pipe(
    Effect.catchAllDefect((defect) => Effect.fail(defect)),
    Effect.mapError((error) =>
      error instanceof StorageError
        ? error
        : isSqlError(error)
          ? dialect.toStorageError(error)
          : new StorageError({
              reason: "schema",
              message: `the tables could not be created in ${dialect.location}`,
              path: dialect.location,
              cause: error
            })
    )
  )

const migrating = ({ location }: Dialect) =>
  new StorageError({ reason: "busy", path: location, message: `another process creates the tables of ${location}` })

const isSqlError = (error: unknown): error is SqlError =>
  typeof error === "object" && error !== null && "_tag" in error && error._tag === "SqlError"

// ---- facts and writes, inside the transaction

const facts = (db: Connection, needs: Needs) =>
  Effect.gen(function* () {
    const books = new Map<string, Book>()
    const live = new Map<string, Set<number>>()
    for (const id of needs.runs) {
      const rows = yield* db.execute(statements.runWithWorkers, [id], undefined)
      const workers = new Set<number>()
      for (const row of rows) {
        if (row.live_worker !== null) workers.add(num(row.live_worker))
        if (!books.has(id)) books.set(id, toBook(row))
      }
      live.set(id, workers)
    }
    const versions = new Map<string, number>()
    for (const id of needs.checkpoints) {
      const [row] = yield* db.execute(statements.latestVersion, [id], undefined)
      versions.set(id, num(row?.version ?? 0))
    }
    const holds = new Map<string, ReadonlyArray<HoldRecord>>()
    const workers = new Map<string, number>()
    for (const id of needs.claims) {
      holds.set(id, (yield* db.execute(statements.holds, [id], undefined)).map(toHold))
      const [row] = yield* db.execute(statements.latestWorker, [id], undefined)
      workers.set(id, num(row?.worker ?? 0))
    }
    return { books, live, versions, holds, workers }
  })

const apply = (db: Connection, writes: Writes) =>
  Effect.gen(function* () {
    for (const [id, book] of writes.books) {
      if (writes.created.has(id)) yield* insert(db, "run", bookColumns, [book])
      else yield* db.executeRaw(statements.updateRun, [...bookColumns.slice(1).map(([, cell]) => cell(book)), id])
    }
    for (const worker of writes.workers) {
      if (worker.live) yield* insert(db, "worker", workerColumns, [worker])
      else yield* db.executeRaw(statements.fence, [worker.runId, worker.worker])
    }
    for (const { at, runId, worker } of writes.beats) yield* db.executeRaw(statements.beat, [at, runId, worker])
    for (const { discard, runId } of writes.unloads) {
      yield* db.executeRaw(statements.unload, [runId])
      if (discard) yield* db.executeRaw(statements.discardWorkers, [runId])
      if (discard) yield* db.executeRaw(statements.discard, [runId])
    }
    yield* insert(db, "manifest", rowColumns, writes.rows)
    for (const { epoch, runId, seq } of writes.epochs) yield* db.executeRaw(statements.epoch, [epoch, runId, seq])
    yield* insert(db, "hold", holdColumns, [...writes.holds.values()])
    yield* deleteHolds(db, writes.closed)
    yield* insert(db, "call", callColumns, writes.calls)
    yield* insert(db, "outcome", outcomeColumns, writes.outcomes)
    yield* insert(db, "checkpoint", checkpointColumns, writes.checkpoints)
    for (const { all, id, upto } of writes.prunes) {
      yield* db.executeRaw(all ? statements.dropCheckpoints : statements.prune, [id, upto])
    }
    for (const { entries, replace } of writes.puts) yield* put(db, entries, replace)
  })

/** At most this many rows a statement: 64 x 24 columns stays far below SQLite's 32,766 variables. */
const WIDTH = 64

const insertText = (table: string, columns: ReadonlyArray<readonly [string, unknown]>, rows: number, tail: string) => {
  const id = `${table} ${rows}${tail}`
  const known = insertTexts.get(id)
  if (known !== undefined) return known
  const names = columns.map(([name]) => name).join(", ")
  const text = `insert into ${table} (${names}) values ${tuples(columns.length, rows)}${tail}`
  insertTexts.set(id, text)
  return text
}
/** At most `WIDTH` for each table: the same text each time, so that it is built and hashed once. */
const insertTexts = new Map<string, string>()

const tuples = (columns: number, rows: number) => {
  const tuple = `(${Array.replicate("?", columns).join(", ")})`
  return Array.replicate(tuple, rows).join(", ")
}

const insert = Effect.fnUntraced(function* <A>(
  db: Connection,
  table: string,
  columns: Columns<A>,
  records: ReadonlyArray<A>,
  tail = ""
) {
  for (let i = 0; i < records.length; i += WIDTH) {
    const part = records.slice(i, i + WIDTH)
    const cells: Array<Cell> = []
    for (const record of part) for (const [, cell] of columns) cells.push(cell(record))
    yield* db.executeRaw(insertText(table, columns, part.length, tail), cells)
  }
})

const deleteHolds = (db: Connection, closed: ReadonlyArray<HoldRecord>) =>
  Effect.forEach(
    Object.values(Array.groupBy(closed, (hold) => `${hold.runId}/${hold.worker}`)),
    (group) => {
      const [{ runId, worker }] = group
      const text = `${statements.deleteHolds} (${group.map(() => "?").join(", ")})`
      return db.executeRaw(text, [runId, worker, ...group.map((hold) => hold.n)])
    },
    { discard: true }
  )

const put = (db: Connection, entries: ReadonlyArray<readonly [string, string]>, replace: boolean) =>
  insert(db, "store", storeColumns, entries, replace ? statements.overwrite : statements.firstWins)

// ---- statements

/**
 * Every statement of fixed text, for the test that reads its query plan.
 *
 * @since 0.1.0
 */
export const statements = {
  runWithWorkers: `select r.*, w.worker as live_worker from run r
    left join worker w on w.run_id = r.run_id and w.live = 1 where r.run_id = ?`,
  latestVersion: "select version from checkpoint where id = ? order by version desc limit 1",
  latestWorker: "select worker from worker where run_id = ? order by worker desc limit 1",
  holds: "select * from hold where run_id = ?",
  updateRun: `update run set ${bookColumns
    .slice(1)
    .map(([name]) => `${name} = ?`)
    .join(", ")} where run_id = ?`,
  fence: "update worker set live = 0 where run_id = ? and worker = ?",
  beat: "update worker set beat_at = ? where run_id = ? and worker = ?",
  unload: "delete from manifest where run_id = ?",
  discardWorkers: "delete from worker where run_id = ?",
  discard: "delete from run where run_id = ?",
  epoch: "update manifest set epoch = ? where run_id = ? and seq = ?",
  deleteHolds: "delete from hold where run_id = ? and worker = ? and n in",
  prune: "delete from checkpoint where id = ? and version <= ? and status <> 'DONE'",
  dropCheckpoints: "delete from checkpoint where id = ? and version <= ?",
  overwrite: " on conflict (key) do update set value = excluded.value",
  firstWins: " on conflict (key) do nothing",
  book: "select * from run where run_id = ?",
  books: "select * from run order by created_at, run_id",
  workers: "select * from worker where run_id = ? order by worker",
  pending: `select m.* from manifest m
    left join outcome o on o.run_id = m.run_id and o.seq = m.seq and o.epoch = m.epoch
    where m.run_id = ? and m.seq > ? and o.seq is null order by m.seq limit ?`,
  manifest: "select * from manifest where run_id = ? and seq > ? order by seq limit ?",
  outcomes: "select * from outcome where run_id = ? and seq > ? and seq <= ? order by seq, epoch",
  openCalls: `select c.* from call c
    join manifest m on m.run_id = c.run_id and m.seq = c.seq
    left join outcome o on o.run_id = m.run_id and o.seq = m.seq and o.epoch = m.epoch
    where c.run_id = ? and o.seq is null order by c.worker, c.n`,
  idsUpto: `select m.id from manifest m where m.run_id = ? and exists (
    select 1 from outcome o where o.run_id = m.run_id and o.seq = m.seq and o.commit_seq <= ?) order by m.seq`,
  versions: "select version from checkpoint where id = ? order by version",
  checkpoint: "select * from checkpoint where id = ? and version = ?",
  latestCheckpoint: "select * from checkpoint where id = ? order by version desc limit 1",
  values: "select key, value from store where key in"
} as const

type Connected = <A>(use: (db: Connection) => Effect.Effect<A, SqlError>) => Effect.Effect<A, StorageError>

const reads = (connected: Connected): Reads => {
  const all = <A>(statement: string, params: ReadonlyArray<Cell>, to: (row: Row) => A) =>
    connected((db) => Effect.map(db.execute(statement, params, undefined), (rows) => rows.map(to)))
  const first = <A>(statement: string, params: ReadonlyArray<Cell>, to: (row: Row) => A) =>
    Effect.map(all(statement, params, to), (rows): A | undefined => rows[0])
  return {
    book: (runId) => first(statements.book, [runId], toBook),
    books: all(statements.books, [], toBook),
    workers: (runId) => all(statements.workers, [runId], toWorker),
    pending: (runId, after, limit) => all(statements.pending, [runId, after, limit], toRow),
    results: (runId, after, limit) =>
      Effect.gen(function* () {
        const rows = yield* all(statements.manifest, [runId, after, limit], toRow)
        const last = rows.at(-1)?.seq ?? after
        const outcomes = yield* all(statements.outcomes, [runId, after, last], toOutcome)
        // In order of epoch, so the latest of a row stays.
        const latest = new Map(outcomes.map((outcome) => [outcome.seq, outcome]))
        return rows.map((row): RowResult => ({ row, outcome: latest.get(row.seq) }))
      }),
    openCalls: (runId) => all(statements.openCalls, [runId], toCall),
    idsUpto: (runId, commitSeq) => all(statements.idsUpto, [runId, commitSeq], (row) => str(row.id)),
    checkpoints: (id) => all(statements.versions, [id], (row) => num(row.version)),
    checkpoint: (id, version) =>
      version === undefined
        ? first(statements.latestCheckpoint, [id], toCheckpoint)
        : first(statements.checkpoint, [id, version], toCheckpoint),
    values: (keys) => valuesOf(all, keys)
  }
}

const valuesOf = (
  all: <A>(
    statement: string,
    params: ReadonlyArray<Cell>,
    to: (row: Row) => A
  ) => Effect.Effect<Array<A>, StorageError>,
  keys: ReadonlyArray<string>
) =>
  Effect.map(
    Effect.forEach(Array.chunksOf(keys, 500), (part) =>
      all(
        `${statements.values} (${part.map(() => "?").join(", ")})`,
        part,
        (row) => [str(row.key), str(row.value)] as const
      )
    ),
    (parts): ReadonlyMap<string, string> => new Map(parts.flat())
  )
