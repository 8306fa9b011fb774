/**
 * The versions of the tables in SQL, and the way from one to the next.
 *
 * @since 0.1.0
 */
import * as Migrator from "@effect/sql/Migrator"
import * as SqlClient from "@effect/sql/SqlClient"
import type { SqlError } from "@effect/sql/SqlError"
import { Effect } from "effect"
import { StorageError } from "../services/Errors.ts"
import type { Dialect } from "./JournalSql.ts"

const text = "text not null"
const int = "bigint not null"

/** The tables of the first version; `bigint` and `text` mean the same in SQLite and Postgres. `without rowid` is SQLite's word for a clustered key. @since 0.1.0 */
export const tables = (clustered: string): ReadonlyArray<string> => [
  `create table run (
    run_id text primary key, job ${text}, scope ${text}, status ${text}, reason text, settings ${text}, source ${text},
    created_at ${int}, cap bigint, max_calls bigint, max_concurrency ${int}, chunk_size ${int},
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
  `create table outcome (run_id ${text}, seq ${int}, epoch ${int}, commit_seq ${int}, kind ${text}, category ${text}, key ${text},
    fallback ${int}, value ${text}, primary key (run_id, seq, epoch)) ${clustered}`,
  `create table checkpoint (id ${text}, version ${int}, status ${text}, state ${text}, metadata ${text}, upto_commit_seq ${int}, at ${int},
    primary key (id, version)) ${clustered}`,
  `create table store (key text primary key, value ${text}) ${clustered}`
]

/**
 * What came with the second version: a checksum of every text that is read back (null in rows from before), what a result was made with, and what was learned of a call later.
 */
const proof = (clustered: string): ReadonlyArray<string> => [
  `alter table run add column kept ${int} default 0`,
  `alter table outcome add column made ${text} default ''`,
  ...["manifest", "call", "outcome", "checkpoint", "store"].map(
    (table) => `alter table ${table} add column crc bigint`
  ),
  `create table correction (run_id ${text}, worker ${int}, n ${int}, source ${text}, cost ${int}, input_tokens ${int}, cached_tokens ${int},
    cache_write_tokens ${int}, output_tokens ${int}, reasoning_tokens ${int}, answer text, note ${text}, at ${int}, crc ${int},
    primary key (run_id, worker, n)) ${clustered}`
]

/**
 * What came with the third version: what an operator ordered from another process.
 */
const steering = (clustered: string): ReadonlyArray<string> => [
  "alter table run add column paused text",
  "alter table run add column canary text",
  `alter table run add column orders ${int} default 0`,
  "alter table run add column requests_per_minute bigint",
  "alter table run add column tokens_per_minute bigint",
  `create table steering (run_id ${text}, n ${int}, by ${text}, given ${text}, at ${int}, crc ${int}, primary key (run_id, n)) ${clustered}`
]

/**
 * What came with the fourth version: a cap that several runs share.
 */
const pools = (clustered: string): ReadonlyArray<string> => [
  "alter table run add column pool text",
  "create index run_pool on run (pool)",
  `create table pool (id text primary key, cap bigint, spent ${int}, uncertain ${int}, held ${int}) ${clustered}`
]

/**
 * What came with the fifth version: what a worker says of itself.
 */
const signs = (): ReadonlyArray<string> => [
  "alter table worker add column phase text",
  "alter table worker add column allowed bigint"
]

/** The tables' versions, oldest first; a database of a version above them was made by a newer Longhaul. */
const versions = [tables, proof, steering, pools, signs] as const

/**
 * Brings a database's tables to this version.
 *
 * @since 0.1.0
 */
export const migrate = (dialect: Dialect): Effect.Effect<void, StorageError, SqlClient.SqlClient> =>
  Effect.gen(function* () {
    const sql = yield* SqlClient.SqlClient
    const clustered = sql.onDialectOrElse({ sqlite: () => "without rowid", orElse: () => "" })
    const present = yield* latest(sql)
    if (present === 0 && !dialect.create) return yield* notOurs(dialect)
    if (present > versions.length) return yield* newer(dialect, present)
    if (present === versions.length) return
    const loader = Migrator.fromRecord(
      Object.fromEntries(
        versions.map((version, i) => [
          `${String(i + 1).padStart(4, "0")}_v${i + 1}`,
          Effect.forEach(version(clustered), (statement) => sql.unsafe(statement), { discard: true })
        ])
      )
    )
    yield* Migrator.make({})({ loader, table: "longhaul_migrations" })
    // The migrator takes any failure to insert its own row for "another process migrates": look whether that one is done.
    if ((yield* latest(sql)) < versions.length) return yield* migrating(dialect)
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

/** The version of the tables; 0: there are none. */
const latest = (sql: SqlClient.SqlClient) =>
  Effect.gen(function* () {
    const found = yield* sql.onDialectOrElse({
      sqlite: () => sql`select name from sqlite_master where type = 'table' and name = 'longhaul_migrations'`,
      orElse: () => sql`select table_name from information_schema.tables where table_name = 'longhaul_migrations'`
    })
    if (found.length === 0) return 0
    const [row] = yield* sql<{ id: number | null }>`select max(migration_id) as id from longhaul_migrations`
    return Number(row?.id ?? 0)
  })

const notOurs = ({ location }: Dialect) =>
  new StorageError({
    reason: "schema",
    path: location,
    message: `${location} holds no runs: it is not a Longhaul database, or it was emptied; put its last copy back, or name another --db`
  })

const newer = ({ location }: Dialect, present: number) =>
  new StorageError({
    reason: "schema",
    path: location,
    message: `${location} was written by a newer Longhaul (tables of version ${present}, this one knows ${versions.length}): update Longhaul`
  })

const migrating = ({ location }: Dialect) =>
  new StorageError({ reason: "busy", path: location, message: `another process creates the tables of ${location}` })

const isSqlError = (error: unknown): error is SqlError =>
  typeof error === "object" && error !== null && "_tag" in error && error._tag === "SqlError"
