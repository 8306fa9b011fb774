/**
 * Everything durable in one SQLite file: journal, store and checkpointer, with FULL commits, on a connection of its own.
 *
 * @example
 * import * as Sqlite from "longhaul/sqlite"
 * const durable = Sqlite.layer({ filename: "vendors.db" }) // tests: Memory.layer
 *
 * @since 0.1.0
 */
import { closeSync, existsSync, openSync, realpathSync } from "node:fs"
import { dirname, resolve } from "node:path"
import * as SqlClient from "@effect/sql/SqlClient"
import type { SqlError } from "@effect/sql/SqlError"
import * as SqliteClient from "@effect/sql-sqlite-node/SqliteClient"
import {
  Cause,
  Config,
  type ConfigError,
  Context,
  Effect,
  ExecutionStrategy,
  Exit,
  Layer,
  Schedule,
  Scope
} from "effect"
import type { Writes } from "../services/Book.ts"
import * as Checkpointer from "../services/Checkpointer.ts"
import { StorageError } from "../services/Errors.ts"
import { type Driver, Journal, make } from "../services/Journal.ts"
import * as Store from "../services/Store.ts"
import { locks } from "./JournalMemory.ts"
import { makeDriver } from "./JournalSql.ts"
import * as Guard from "./SqliteGuard.ts"

/** @since 0.1.0 */
export interface SqliteConfig {
  /** The database file; it is created if its directory exists. */
  readonly filename: string
  /** False: a missing file is an error, so that a mistyped name never starts an empty book. Default true. */
  readonly create?: boolean | undefined
}

export * as Rows from "./RowsSqlite.ts"

/**
 * Journal, Store and Checkpointer in one SQLite file.
 *
 * @since 0.1.0
 */
export const layer = (
  config: SqliteConfig
): Layer.Layer<Journal | Store.Store | Checkpointer.Checkpointer, StorageError> =>
  Store.layer.pipe(
    // One after the other, see Memory.
    Layer.provideMerge(Checkpointer.layer),
    Layer.provideMerge(Layer.scoped(Journal, Effect.flatMap(open(config), make)))
  )

/**
 * The same from configuration.
 *
 * @since 0.1.0
 */
export const layerConfig = (
  config: Config.Config.Wrap<SqliteConfig>
): Layer.Layer<Journal | Store.Store | Checkpointer.Checkpointer, StorageError | ConfigError.ConfigError> =>
  Layer.unwrapEffect(Effect.map(Config.unwrap(config), layer))

/** How long a statement waits for another process, in milliseconds: the wait blocks the whole event loop, so it is short and repeated. */
const BUSY_MS = 100
const busy = Schedule.intersect(Schedule.jittered(Schedule.spaced("50 millis")), Schedule.recurs(50))

/**
 * The driver over a SQLite file.
 *
 * @since 0.1.0
 */
export const open = (config: SqliteConfig): Effect.Effect<Driver, StorageError, Scope.Scope> =>
  Effect.gen(function* () {
    const create = config.create ?? true
    const path = config.filename === ":memory:" ? config.filename : yield* pathOf(resolve(config.filename), create)
    const connect = Effect.gen(function* () {
      const context = yield* Layer.build(
        SqliteClient.layer({ filename: path, prepareCacheSize: 1000, prepareCacheTTL: "365 days" })
      ).pipe(Effect.catchAllCause((cause) => Effect.fail(toStorageError(path, Cause.squash(cause)))))
      return yield* driverOver(Context.get(context, SqlClient.SqlClient), path, create)
    })
    // Each try has a client of its own: a client keeps the statements that it could not prepare.
    const scope = yield* Effect.scope
    return yield* retryBusy(
      Effect.flatMap(Scope.fork(scope, ExecutionStrategy.sequential), (own) =>
        Effect.onError(Scope.extend(connect, own), () => Scope.close(own, Exit.void))
      )
    )
  })

const driverOver = (client: SqlClient.SqlClient, path: string, create: boolean) =>
  Effect.gen(function* () {
    const toError = (error: SqlError) => toStorageError(path, error.cause)
    yield* client.unsafe(`pragma busy_timeout = ${BUSY_MS}`)
    yield* client`pragma synchronous = full`
    const dialect = { location: path, begin: "begin immediate", create, toStorageError: toError, patiently: retryBusy }
    const driver = yield* makeDriver(dialect).pipe(Effect.provideService(SqlClient.SqlClient, client))
    const check = Effect.flatMap(
      Effect.mapError(client<{ quick_check: string }>`pragma quick_check(1)`, toError),
      ([found]) => (found?.quick_check === "ok" ? Effect.void : damaged(path, found?.quick_check ?? "no answer"))
    )
    if (path === ":memory:") return { ...driver, lock: locks(), anchor: () => Effect.succeed(undefined), check }
    yield* safe(client, path)
    const { anchor, committed, intact, lock } = yield* Guard.make(path)
    const transact: Driver["transact"] = (needs, decide) =>
      Effect.suspend(() => {
        let written: Writes | undefined
        const group = driver.transact(needs, (facts) => {
          written = decide(facts)
          return written
        })
        return intact.pipe(
          Effect.zipRight(group),
          Effect.flatMap(() => (written === undefined ? Effect.void : committed(written)))
        )
      })
    return { ...driver, transact, check, lock, anchor }
  }).pipe(Effect.catchTag("SqlError", (error) => Effect.fail(toStorageError(path, error.cause))))

const damaged = (path: string, detail: string) =>
  new StorageError({
    reason: "corrupt",
    path,
    message: `${path} is damaged (${detail}): put its last copy back, or see longhaul doctor --db ${path}`
  })

/**
 * What the promise of a durable hold rests on, asked of the database itself: after `journal_mode = wal` SQLite reports FULL and goes on with the weaker setting that it was
 * built with (better-sqlite3, docs/compilation.md: SQLITE_DEFAULT_WAL_SYNCHRONOUS=1), so it is read once tables were written.
 */
const safe = (client: SqlClient.SqlClient, path: string): Effect.Effect<void, StorageError | SqlError> =>
  Effect.gen(function* () {
    const [{ synchronous = -1 } = {}] = yield* client<{ synchronous: number }>`pragma synchronous`
    const [{ journal_mode: mode = "?" } = {}] = yield* client<{ journal_mode: string }>`pragma journal_mode`
    if (synchronous >= 2 && mode === "wal") return
    const message = `${path} is not safe against a loss of power (journal_mode ${mode}, synchronous ${synchronous}): is it on a network drive? Put it on a local disk`
    return yield* new StorageError({ reason: "unsafe", path, message })
  })

/** The driver of the schedule is made only when it is needed: nearly no commit ever waits. */
const retryBusy = <A>(write: Effect.Effect<A, StorageError>): Effect.Effect<A, StorageError> =>
  Effect.catchAll(write, (error) =>
    error.reason === "busy"
      ? Effect.retry(write, { schedule: busy, while: (again) => again.reason === "busy" })
      : Effect.fail(error)
  )

/** The file itself, by whatever name it was given: its lock and its anchors stand beside it. */
const pathOf = (named: string, create: boolean) =>
  Effect.zipRight(
    checkPath(named, create),
    Effect.sync(() => (existsSync(named) ? realpathSync(named) : named))
  )

const checkPath = (path: string, create: boolean) =>
  Effect.suspend(() => {
    if (!existsSync(dirname(path))) {
      return Effect.fail(
        new StorageError({
          reason: "cannot_open",
          path,
          message: `the directory of ${path} does not exist: create it, or name another --db`
        })
      )
    }
    if (existsSync(path)) return Effect.void
    if (!create) {
      return Effect.fail(new StorageError({ reason: "cannot_open", path, message: `there is no database ${path}` }))
    }
    // It holds rows and answers: nobody else's to read. What cannot be made here SQLite cannot open either, and says why.
    return Effect.ignore(Effect.try(() => closeSync(openSync(path, "a", 0o600))))
  })

/** SQLite's result codes (https://sqlite.org/rescode.html) by what an operator can do about them. */
const toStorageError = (path: string, cause: unknown): StorageError => {
  const code = typeof cause === "object" && cause !== null && "code" in cause ? String(cause.code) : ""
  const detail = cause instanceof Error ? cause.message : String(cause)
  const fail = (reason: StorageError["reason"], message: string) => new StorageError({ reason, message, path, cause })
  if (/Could not locate the bindings file|NODE_MODULE_VERSION|bindings/.test(detail)) {
    return fail(
      "binding_missing",
      'the native SQLite binding is not built: npm 12 blocks install scripts, so add "allowScripts": { "better-sqlite3": true } to package.json, then run npm rebuild better-sqlite3'
    )
  }
  if (code.startsWith("SQLITE_BUSY") || code.startsWith("SQLITE_LOCKED"))
    return fail("busy", `${path} is locked by another process`)
  if (code === "SQLITE_FULL" || code === "SQLITE_IOERR_WRITE")
    return fail("full", `no space left for ${path}: free some and resume`)
  if (code.startsWith("SQLITE_READONLY"))
    return fail("read_only", `${path} or its directory cannot be written: check its permissions`)
  if (code.startsWith("SQLITE_CORRUPT") || code === "SQLITE_NOTADB")
    return fail("corrupt", `${path} is damaged or not a SQLite database`)
  if (code === "SQLITE_CANTOPEN")
    return fail(
      "cannot_open",
      `${path} cannot be opened (${detail}): check that it is a file, and the permissions of its directory`
    )
  return fail("failed", `SQLite refused (${code === "" ? "no code" : code}) on ${path}: ${detail}`)
}
