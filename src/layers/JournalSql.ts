/**
 * The journal's driver over any SQL database that `@effect/sql` speaks. All statements stand here; what differs by database is behind `Dialect`.
 *
 * @since 0.1.0
 */
import * as SqlClient from "@effect/sql/SqlClient"
import type { Connection } from "@effect/sql/SqlConnection"
import type { SqlError } from "@effect/sql/SqlError"
import { Array, Effect, Exit } from "effect"
import {
  type Book,
  callId,
  type Facts,
  type HoldRecord,
  type Needs,
  type Pool,
  rowId,
  type Writes
} from "../services/Book.ts"
import { StorageError } from "../services/Errors.ts"
import { corrected, type Driver, type Reads, type RowResult } from "../services/Journal.ts"
import { Usd } from "../services/Usd.ts"
import {
  bookColumns,
  type Cell,
  type Columns,
  callColumns,
  checkpointColumns,
  correctionColumns,
  holdColumns,
  num,
  orderColumns,
  outcomeColumns,
  poolColumns,
  type Row,
  rowColumns,
  storeColumns,
  str,
  toBook,
  toCall,
  toCheckpoint,
  toCorrection,
  toEntry,
  toHold,
  toOrder,
  toOutcome,
  toPool,
  toRow,
  toWorker,
  workerColumns
} from "./SqlTables.ts"
import { migrate } from "./SqlVersions.ts"

/**
 * What a database does in its own way: how a serialised transaction begins, and what its errors mean.
 *
 * @since 0.1.0
 */
export interface Dialect {
  readonly location: string
  readonly begin: string
  /** Whether tables are made where there are none. */
  readonly create: boolean
  readonly toStorageError: (error: SqlError) => StorageError
  /** Tries again what failed only because another process holds the database. */
  readonly patiently: <A>(use: Effect.Effect<A, StorageError>) => Effect.Effect<A, StorageError>
}

/** A driver but for what is the database's own. @since 0.1.0 */
export type SqlDriver = Pick<Driver, "durable" | "location" | "reads" | "transact">

/**
 * The driver over the `SqlClient` in the context, which must be its own: a transaction of the user's around it would deadlock.
 *
 * @since 0.1.0
 */
export const makeDriver = (dialect: Dialect): Effect.Effect<SqlDriver, StorageError, SqlClient.SqlClient> =>
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
    return { durable: true, location: dialect.location, reads: reads(connected, dialect), transact }
  })

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
    const pools = new Map<string, Pool>()
    for (const id of new Set([...needs.pools, ...[...books.values()].flatMap(({ pool }) => pool ?? [])])) {
      const [row] = yield* db.execute(statements.pool, [id], undefined)
      if (row !== undefined) pools.set(id, toPool(row))
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
    const uncertain = new Map<string, Usd>()
    for (const id of needs.uncertain) {
      const [row] = yield* db.execute(statements.countedAt, [id.runId, id.worker, id.n], undefined)
      if (row !== undefined) uncertain.set(callId(id), Usd.nano(num(row.cost)))
    }
    const epochs = new Map<string, number>()
    for (const id of needs.rows) {
      const [row] = yield* db.execute(statements.epochOf, [id.runId, id.seq], undefined)
      if (row !== undefined) epochs.set(rowId(id), num(row.epoch))
    }
    return { books, live, pools, versions, holds, workers, uncertain, epochs }
  })

const apply = (db: Connection, writes: Writes) =>
  Effect.gen(function* () {
    for (const [id, book] of writes.books) {
      if (writes.created.has(id)) yield* insert(db, "run", bookColumns, [book])
      else yield* db.executeRaw(statements.updateRun, [...bookColumns.slice(1).map(([, cell]) => cell(book)), id])
    }
    yield* insert(db, "pool", poolColumns, [...writes.pools.values()], statements.setPool)
    for (const worker of writes.workers) {
      if (worker.live) yield* insert(db, "worker", workerColumns, [worker])
      else yield* db.executeRaw(statements.fence, [worker.runId, worker.worker])
    }
    for (const { at, runId, sign, worker } of writes.beats) {
      yield* db.executeRaw(statements.beat, [at, sign?.phase ?? null, sign?.allowed ?? null, runId, worker])
    }
    for (const { discard, runId } of writes.unloads) {
      yield* db.executeRaw(statements.unload, [runId])
      if (discard) yield* db.executeRaw(statements.discardWorkers, [runId])
      if (discard) yield* db.executeRaw(statements.discard, [runId])
    }
    yield* insert(db, "manifest", rowColumns, writes.rows)
    for (const row of writes.changed) {
      yield* db.executeRaw(statements.change, [...changeable.map(([, cell]) => cell(row)), row.runId, row.seq])
    }
    for (const { runId, seq } of writes.removed) yield* db.executeRaw(statements.remove, [runId, seq])
    for (const { epoch, runId, seq } of writes.epochs) yield* db.executeRaw(statements.epoch, [epoch, runId, seq])
    yield* insert(db, "steering", orderColumns, writes.orders)
    yield* insert(db, "hold", holdColumns, [...writes.holds.values()])
    yield* deleteHolds(db, writes.closed)
    yield* insert(db, "call", callColumns, writes.calls)
    yield* insert(db, "correction", correctionColumns, writes.corrections)
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

/** The columns of a row that its source may change: all but its place. */
const changeable = rowColumns.slice(2)

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
  beat: "update worker set beat_at = ?, phase = ?, allowed = ? where run_id = ? and worker = ?",
  unload: "delete from manifest where run_id = ?",
  discardWorkers: "delete from worker where run_id = ?",
  discard: "delete from run where run_id = ?",
  change: `update manifest set ${changeable.map(([name]) => `${name} = ?`).join(", ")} where run_id = ? and seq = ?`,
  remove: "delete from manifest where run_id = ? and seq = ?",
  epochOf: "select epoch from manifest where run_id = ? and seq = ?",
  epoch: "update manifest set epoch = ? where run_id = ? and seq = ?",
  deleteHolds: "delete from hold where run_id = ? and worker = ? and n in",
  prune: "delete from checkpoint where id = ? and version <= ? and status <> 'DONE'",
  dropCheckpoints: "delete from checkpoint where id = ? and version <= ?",
  pool: "select * from pool where id = ?",
  poolSums: `select coalesce(sum(spent), 0) as spent, coalesce(sum(uncertain), 0) as uncertain, coalesce(sum(held), 0) as held
    from run where pool = ?`,
  setPool: ` on conflict (id) do update set ${poolColumns
    .slice(1)
    .map(([name]) => `${name} = excluded.${name}`)
    .join(", ")}`,
  overwrite: " on conflict (key) do update set value = excluded.value, crc = excluded.crc",
  firstWins: " on conflict (key) do nothing",
  book: "select * from run where run_id = ?",
  books: "select * from run order by created_at, run_id",
  workers: "select * from worker where run_id = ? order by worker",
  pending: `select m.* from manifest m
    left join outcome o on o.run_id = m.run_id and o.seq = m.seq and o.epoch = m.epoch
    where m.run_id = ? and m.seq > ? and o.seq is null order by m.seq limit ?`,
  manifest: "select * from manifest where run_id = ? and seq > ? order by seq limit ?",
  outcomes: "select * from outcome where run_id = ? and seq > ? and seq <= ? and commit_seq <= ? order by seq, epoch",
  calls: "select * from call where run_id = ? and (worker, n) > (?, ?) order by worker, n limit ?",
  uncertain: "select * from call where run_id = ? and state = 'uncertain' order by worker, n",
  corrections: "select * from correction where run_id = ?",
  orders: "select * from steering where run_id = ? and n > ? order by n",
  lastCall: "select n from call where run_id = ? and worker = ? order by n desc limit 1",
  countedAt: `select c.cost from call c
    left join correction k on k.run_id = c.run_id and k.worker = c.worker and k.n = c.n
    where c.run_id = ? and c.worker = ? and c.n = ? and c.state = 'uncertain' and k.n is null`,
  callSums: `select coalesce(sum(case when c.state = 'settled' then c.cost else coalesce(k.cost, 0) end), 0) as spent,
    coalesce(sum(case when c.state = 'uncertain' and k.n is null then c.cost else 0 end), 0) as uncertain
    from call c left join correction k on k.run_id = c.run_id and k.worker = c.worker and k.n = c.n where c.run_id = ?`,
  holdCount: "select count(*) as n from hold where run_id = ?",
  holdSum: "select coalesce(sum(amount), 0) as held from hold where run_id = ?",
  rowSums: `select count(*) as total, count(o.seq) as ended from manifest m
    left join outcome o on o.run_id = m.run_id and o.seq = m.seq and o.epoch = m.epoch where m.run_id = ?`,
  openCalls: `select c.* from call c
    join manifest m on m.run_id = c.run_id and m.seq = c.seq
    left join outcome o on o.run_id = m.run_id and o.seq = m.seq and o.epoch = m.epoch
    where c.run_id = ? and o.seq is null order by c.worker, c.n`,
  idsUpto: `select m.id from manifest m where m.run_id = ? and exists (
    select 1 from outcome o where o.run_id = m.run_id and o.seq = m.seq and o.commit_seq <= ?) order by m.seq`,
  versions: "select version from checkpoint where id = ? order by version",
  checkpoint: "select * from checkpoint where id = ? and version = ?",
  latestCheckpoint: "select * from checkpoint where id = ? order by version desc limit 1",
  values: "select * from store where key in"
} as const

type Connected = <A>(use: (db: Connection) => Effect.Effect<A, SqlError>) => Effect.Effect<A, StorageError>

const reads = (connected: Connected, { location }: Dialect): Reads => {
  const all = <A>(statement: string, params: ReadonlyArray<Cell>, to: (row: Row) => A) =>
    Effect.flatMap(
      connected((db) => db.execute(statement, params, undefined)),
      (rows) => Effect.try({ try: () => rows.map(to), catch: damaged(location) })
    )
  const first = <A>(statement: string, params: ReadonlyArray<Cell>, to: (row: Row) => A) =>
    Effect.map(all(statement, params, to), (rows): A | undefined => rows[0])
  /** Calls with what was learned of them later: corrections are few. */
  const calls = (statement: string, params: readonly [runId: string, ...rest: ReadonlyArray<Cell>]) =>
    Effect.gen(function* () {
      const found = yield* all(statement, params, toCall)
      const later = yield* all(statements.corrections, [params[0]], toCorrection)
      const byCall = new Map(later.map((correction) => [callId(correction), correction]))
      return found.map((call) => corrected(call, byCall.get(callId(call))))
    })
  /** One snapshot: the run may be at work. */
  const atOnce = (parts: ReadonlyArray<string>, id: string) =>
    connected((db) =>
      Effect.acquireUseRelease(
        db.executeRaw("begin", []),
        () =>
          Effect.forEach(parts, (statement) =>
            Effect.map(db.execute(statement, [id], undefined), ([row]): Row | undefined => row)
          ),
        () => Effect.ignore(db.executeRaw("commit", []))
      )
    )
  return {
    book: (runId) => first(statements.book, [runId], toBook),
    books: all(statements.books, [], toBook),
    workers: (runId) => all(statements.workers, [runId], toWorker),
    pending: (runId, after, limit) => all(statements.pending, [runId, after, limit], toRow),
    results: (runId, after, limit, upto = Number.MAX_SAFE_INTEGER) =>
      Effect.gen(function* () {
        const rows = yield* all(statements.manifest, [runId, after, limit], toRow)
        const last = rows.at(-1)?.seq ?? after
        const outcomes = yield* all(statements.outcomes, [runId, after, last, upto], toOutcome)
        // In order of epoch, so the latest of a row stays.
        const latest = new Map(outcomes.map((outcome) => [outcome.seq, outcome]))
        return rows.map((row): RowResult => ({ row, outcome: latest.get(row.seq) }))
      }),
    orders: (runId, after) => all(statements.orders, [runId, after], toOrder),
    openCalls: (runId) => calls(statements.openCalls, [runId]),
    calls: (runId, { n, worker }, limit) => calls(statements.calls, [runId, worker, n, limit]),
    uncertain: (runId) =>
      Effect.map(calls(statements.uncertain, [runId]), (all) => all.filter(({ state }) => state === "uncertain")),
    inFlight: (runId) =>
      Effect.map(
        first(statements.holdCount, [runId], (row) => num(row.n)),
        (n) => n ?? 0
      ),
    lastCall: ({ runId, worker }) =>
      Effect.map(
        first(statements.lastCall, [runId, worker], (row) => num(row.n)),
        (n) => n ?? 0
      ),
    audit: (runId) =>
      Effect.flatMap(
        atOnce([statements.book, statements.callSums, statements.holdSum, statements.rowSums], runId),
        ([run, call, hold, rows]) => Effect.try({ try: () => auditOf(run, call, hold, rows), catch: damaged(location) })
      ),
    pool: (id) =>
      Effect.flatMap(atOnce([statements.pool, statements.poolSums], id), ([pool, sums]) =>
        Effect.try({
          try: () => (pool === undefined ? undefined : { pool: toPool(pool), sums: moneyOf(sums) }),
          catch: damaged(location)
        })
      ),
    idsUpto: (runId, commitSeq) => all(statements.idsUpto, [runId, commitSeq], (row) => str(row.id)),
    checkpoints: (id) => all(statements.versions, [id], (row) => num(row.version)),
    checkpoint: (id, version) =>
      version === undefined
        ? first(statements.latestCheckpoint, [id], toCheckpoint)
        : first(statements.checkpoint, [id, version], toCheckpoint),
    values: (keys) =>
      Effect.map(
        Effect.forEach(Array.chunksOf(keys, 500), (part) =>
          all(`${statements.values} (${part.map(() => "?").join(", ")})`, part, toEntry)
        ),
        (parts): ReadonlyMap<string, string> => new Map(parts.flat())
      )
  }
}

const auditOf = (run: Row | undefined, call: Row | undefined, hold: Row | undefined, rows: Row | undefined) =>
  run === undefined
    ? undefined
    : {
        book: toBook(run),
        sums: {
          ...moneyOf({ ...call, ...hold }),
          rows: num(rows?.total ?? 0),
          ended: num(rows?.ended ?? 0)
        }
      }

const moneyOf = (row: Row | undefined) => ({
  spent: num(row?.spent ?? 0),
  uncertain: num(row?.uncertain ?? 0),
  held: num(row?.held ?? 0)
})

const damaged = (location: string) => (error: unknown) =>
  new StorageError({
    reason: "corrupt",
    path: location,
    message: `${location} is damaged: ${error instanceof Error ? error.message : String(error)}; put its last copy back, or see longhaul doctor --db ${location}`,
    cause: error
  })
