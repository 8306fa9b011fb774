/**
 * The journal's driver over any SQL database that `@effect/sql` speaks. All statements stand here; what differs by database is behind `Dialect`.
 *
 * @since 0.1.0
 */
import * as Migrator from "@effect/sql/Migrator"
import * as SqlClient from "@effect/sql/SqlClient"
import type { Connection } from "@effect/sql/SqlConnection"
import type { SqlError } from "@effect/sql/SqlError"
import { Array, Effect, Exit, Schema } from "effect"
import type {
  Book,
  CallRecord,
  CheckpointRecord,
  Facts,
  HoldRecord,
  Needs,
  OutcomeRecord,
  RowRecord,
  WorkerRecord,
  Writes
} from "../services/Book.ts"
import { StopReason, StorageError } from "../services/Errors.ts"
import type { Driver, Reads, RowResult } from "../services/Journal.ts"
import { Usd } from "../services/Usd.ts"

/**
 * What a database does in its own way: how a serialised transaction begins, and what its errors mean.
 *
 * @since 0.1.0
 */
export interface Dialect {
  readonly location: string
  readonly begin: string
  readonly toStorageError: (error: SqlError) => StorageError
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
      Effect.scoped(Effect.flatMap(client.reserve, use)).pipe(Effect.mapError(dialect.toStorageError))
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

const text = "text not null"
const int = "bigint not null"

/** The tables; `bigint` and `text` mean the same in SQLite and Postgres. `without rowid` is SQLite's word for a clustered key. */
const tables = (clustered: string): ReadonlyArray<string> => [
  `create table run (
    run_id text primary key, job ${text}, scope ${text}, status ${text}, reason text, settings ${text}, source ${text},
    created_at ${int}, updated_at ${int}, cap bigint, max_calls bigint, max_concurrency ${int}, chunk_size ${int},
    row_count ${int}, filtered ${int}, spent ${int}, uncertain ${int}, held ${int}, calls ${int}, retries ${int}, repairs ${int},
    replays ${int}, store_hits ${int}, memo_hits ${int}, unasked ${int}, reruns ${int}, input_tokens ${int}, cached_tokens ${int},
    cache_write_tokens ${int}, output_tokens ${int}, reasoning_tokens ${int}, done ${int}, partial ${int}, failed ${int},
    commit_seq ${int})`,
  `create table worker (run_id ${text}, worker ${int}, live ${int}, host ${text}, pid ${int}, started_at ${int}, beat_at ${int},
    primary key (run_id, worker)) ${clustered}`,
  `create table manifest (run_id ${text}, seq ${int}, id ${text}, version ${text}, line ${int}, value ${text}, epoch ${int},
    primary key (run_id, seq)) ${clustered}`,
  `create table hold (run_id ${text}, worker ${int}, n ${int}, seq ${int}, epoch ${int}, turn ${int}, attempt ${int}, request ${text},
    model ${text}, amount ${int}, price ${text}, at ${int}, primary key (run_id, worker, n)) ${clustered}`,
  `create table call (run_id ${text}, worker ${int}, n ${int}, seq ${int}, epoch ${int}, turn ${int}, attempt ${int}, request ${text},
    model ${text}, amount ${int}, price ${text}, at ${int}, state ${text}, cost ${int}, input_tokens ${int}, cached_tokens ${int},
    cache_write_tokens ${int}, output_tokens ${int}, reasoning_tokens ${int}, reason ${text}, answer text, finish text, request_id text,
    closed_at ${int}, primary key (run_id, worker, n)) ${clustered}`,
  `create table outcome (run_id ${text}, seq ${int}, epoch ${int}, commit_seq ${int}, kind ${text}, category ${text}, key ${text}, value ${text},
    primary key (run_id, seq, epoch)) ${clustered}`,
  `create table checkpoint (id ${text}, version ${int}, status ${text}, state ${text}, metadata ${text}, upto_commit_seq ${int}, at ${int},
    primary key (id, version)) ${clustered}`,
  `create table store (key text primary key, value ${text}) ${clustered}`
]

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

type Cell = string | number | null
type Columns<A> = ReadonlyArray<readonly [column: string, cell: (record: A) => Cell]>

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

const insertText = (table: string, columns: ReadonlyArray<readonly [string, unknown]>, rows: number, tail = "") =>
  `insert into ${table} (${columns.map(([name]) => name).join(", ")}) values ${tuples(columns.length, rows)}${tail}`

const tuples = (columns: number, rows: number) => {
  const tuple = `(${Array.replicate("?", columns).join(", ")})`
  return Array.replicate(tuple, rows).join(", ")
}

const insert = <A>(db: Connection, table: string, columns: Columns<A>, records: ReadonlyArray<A>, tail = "") =>
  Effect.gen(function* () {
    for (let i = 0; i < records.length; i += WIDTH) {
      const part = records.slice(i, i + WIDTH)
      const cells = part.flatMap((record) => columns.map(([, cell]) => cell(record)))
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

// ---- records and columns

const json = (reason: StopReason | null) => (reason === null ? null : JSON.stringify(reason))

const bookColumns: Columns<Book> = [
  ["run_id", (book) => book.runId],
  ["job", (book) => book.job],
  ["scope", (book) => book.scope],
  ["status", (book) => book.status],
  ["reason", (book) => json(book.reason)],
  ["settings", (book) => book.settings],
  ["source", (book) => book.source],
  ["created_at", (book) => book.createdAt],
  ["updated_at", (book) => book.updatedAt],
  ["cap", (book) => book.cap],
  ["max_calls", (book) => book.maxCalls],
  ["max_concurrency", (book) => book.maxConcurrency],
  ["chunk_size", (book) => book.chunkSize],
  ["row_count", (book) => book.rows],
  ["filtered", (book) => book.filtered],
  ["spent", (book) => book.spent],
  ["uncertain", (book) => book.uncertain],
  ["held", (book) => book.held],
  ["calls", (book) => book.calls],
  ["retries", (book) => book.retries],
  ["repairs", (book) => book.repairs],
  ["replays", (book) => book.replays],
  ["store_hits", (book) => book.storeHits],
  ["memo_hits", (book) => book.memoHits],
  ["unasked", (book) => book.unasked],
  ["reruns", (book) => book.reruns],
  ["input_tokens", (book) => book.inputTokens],
  ["cached_tokens", (book) => book.cachedTokens],
  ["cache_write_tokens", (book) => book.cacheWriteTokens],
  ["output_tokens", (book) => book.outputTokens],
  ["reasoning_tokens", (book) => book.reasoningTokens],
  ["done", (book) => book.done],
  ["partial", (book) => book.partial],
  ["failed", (book) => book.failed],
  ["commit_seq", (book) => book.commitSeq]
]

const workerColumns: Columns<WorkerRecord> = [
  ["run_id", (worker) => worker.runId],
  ["worker", (worker) => worker.worker],
  ["live", (worker) => (worker.live ? 1 : 0)],
  ["host", (worker) => worker.host],
  ["pid", (worker) => worker.pid],
  ["started_at", (worker) => worker.startedAt],
  ["beat_at", (worker) => worker.beatAt]
]

const rowColumns: Columns<RowRecord> = [
  ["run_id", (row) => row.runId],
  ["seq", (row) => row.seq],
  ["id", (row) => row.id],
  ["version", (row) => row.version],
  ["line", (row) => row.line],
  ["value", (row) => row.value],
  ["epoch", (row) => row.epoch]
]

const holdColumns: Columns<HoldRecord> = [
  ["run_id", (hold) => hold.runId],
  ["worker", (hold) => hold.worker],
  ["n", (hold) => hold.n],
  ["seq", (hold) => hold.seq],
  ["epoch", (hold) => hold.epoch],
  ["turn", (hold) => hold.turn],
  ["attempt", (hold) => hold.attempt],
  ["request", (hold) => hold.request],
  ["model", (hold) => hold.model],
  ["amount", (hold) => hold.amount],
  ["price", (hold) => hold.price],
  ["at", (hold) => hold.at]
]

const callColumns: Columns<CallRecord> = [
  ...holdColumns,
  ["state", (call) => call.state],
  ["cost", (call) => call.cost],
  ["input_tokens", (call) => call.inputTokens],
  ["cached_tokens", (call) => call.cachedTokens],
  ["cache_write_tokens", (call) => call.cacheWriteTokens],
  ["output_tokens", (call) => call.outputTokens],
  ["reasoning_tokens", (call) => call.reasoningTokens],
  ["reason", (call) => call.reason],
  ["answer", (call) => call.answer],
  ["finish", (call) => call.finish],
  ["request_id", (call) => call.requestId],
  ["closed_at", (call) => call.closedAt]
]

const outcomeColumns: Columns<OutcomeRecord> = [
  ["run_id", (outcome) => outcome.runId],
  ["seq", (outcome) => outcome.seq],
  ["epoch", (outcome) => outcome.epoch],
  ["commit_seq", (outcome) => outcome.commitSeq],
  ["kind", (outcome) => outcome.kind],
  ["category", (outcome) => outcome.category],
  ["key", (outcome) => outcome.key],
  ["value", (outcome) => outcome.value]
]

const checkpointColumns: Columns<CheckpointRecord> = [
  ["id", (checkpoint) => checkpoint.id],
  ["version", (checkpoint) => checkpoint.version],
  ["status", (checkpoint) => checkpoint.status],
  ["state", (checkpoint) => checkpoint.state],
  ["metadata", (checkpoint) => checkpoint.metadata],
  ["upto_commit_seq", (checkpoint) => checkpoint.uptoCommitSeq],
  ["at", (checkpoint) => checkpoint.at]
]

const storeColumns: Columns<readonly [string, string]> = [
  ["key", ([key]) => key],
  ["value", ([, value]) => value]
]

/** What a driver may hand out for one row; Postgres gives a bigint as text. */
type Row = Readonly<Record<string, unknown>>

const num = (cell: unknown): number => Number(cell)
const str = (cell: unknown): string => String(cell)
const strOrNull = (cell: unknown): string | null => (cell === null ? null : String(cell))
const numOrNull = (cell: unknown): number | null => (cell === null ? null : Number(cell))
const oneOf =
  <A extends string>(...values: ReadonlyArray<A>) =>
  (cell: unknown): A => {
    const found = values.find((value) => value === cell)
    if (found === undefined) throw new Error(`unexpected value ${str(cell)} in the database`)
    return found
  }
const runStatus = oneOf("loading", "running", "suspended", "done")
const callState = oneOf("settled", "uncertain", "released")
const outcomeKind = oneOf("done", "partial", "failed")
const checkpointStatus = oneOf("RUNNING", "SUSPENDED", "DONE")
const toReason = Schema.decodeUnknownSync(Schema.parseJson(StopReason))

const toBook = (row: Row): Book => ({
  runId: str(row.run_id),
  job: str(row.job),
  scope: str(row.scope),
  status: runStatus(row.status),
  reason: row.reason === null ? null : toReason(row.reason),
  settings: str(row.settings),
  source: str(row.source),
  createdAt: num(row.created_at),
  updatedAt: num(row.updated_at),
  cap: row.cap === null ? null : Usd.nano(num(row.cap)),
  maxCalls: numOrNull(row.max_calls),
  maxConcurrency: num(row.max_concurrency),
  chunkSize: num(row.chunk_size),
  rows: num(row.row_count),
  filtered: num(row.filtered),
  spent: Usd.nano(num(row.spent)),
  uncertain: Usd.nano(num(row.uncertain)),
  held: Usd.nano(num(row.held)),
  calls: num(row.calls),
  retries: num(row.retries),
  repairs: num(row.repairs),
  replays: num(row.replays),
  storeHits: num(row.store_hits),
  memoHits: num(row.memo_hits),
  unasked: num(row.unasked),
  reruns: num(row.reruns),
  ...toTokens(row),
  done: num(row.done),
  partial: num(row.partial),
  failed: num(row.failed),
  commitSeq: num(row.commit_seq)
})

const toTokens = (row: Row) => ({
  inputTokens: num(row.input_tokens),
  cachedTokens: num(row.cached_tokens),
  cacheWriteTokens: num(row.cache_write_tokens),
  outputTokens: num(row.output_tokens),
  reasoningTokens: num(row.reasoning_tokens)
})

const toRow = (row: Row): RowRecord => ({
  runId: str(row.run_id),
  seq: num(row.seq),
  id: str(row.id),
  version: str(row.version),
  line: num(row.line),
  value: str(row.value),
  epoch: num(row.epoch)
})

const toHold = (row: Row): HoldRecord => ({
  runId: str(row.run_id),
  worker: num(row.worker),
  n: num(row.n),
  seq: num(row.seq),
  epoch: num(row.epoch),
  turn: num(row.turn),
  attempt: num(row.attempt),
  request: str(row.request),
  model: str(row.model),
  amount: Usd.nano(num(row.amount)),
  price: str(row.price),
  at: num(row.at)
})

const toCall = (row: Row): CallRecord => ({
  ...toHold(row),
  ...toTokens(row),
  state: callState(row.state),
  cost: Usd.nano(num(row.cost)),
  reason: str(row.reason),
  answer: strOrNull(row.answer),
  finish: strOrNull(row.finish),
  requestId: strOrNull(row.request_id),
  closedAt: num(row.closed_at)
})

const toOutcome = (row: Row): OutcomeRecord => ({
  runId: str(row.run_id),
  seq: num(row.seq),
  epoch: num(row.epoch),
  commitSeq: num(row.commit_seq),
  kind: outcomeKind(row.kind),
  category: str(row.category),
  key: str(row.key),
  value: str(row.value)
})

const toCheckpoint = (row: Row): CheckpointRecord => ({
  id: str(row.id),
  version: num(row.version),
  status: checkpointStatus(row.status),
  state: str(row.state),
  metadata: str(row.metadata),
  uptoCommitSeq: num(row.upto_commit_seq),
  at: num(row.at)
})

const toWorker = (row: Row): WorkerRecord => ({
  runId: str(row.run_id),
  worker: num(row.worker),
  live: num(row.live) === 1,
  host: str(row.host),
  pid: num(row.pid),
  startedAt: num(row.started_at),
  beatAt: num(row.beat_at)
})

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
