/**
 * What guards a SQLite file from outside it, in a directory beside it (`vendors.db-runs`): for each run a lock that ends with its process, and an anchor that
 * tells a database which lost its last commits. Internal to Sqlite.
 *
 * @since 0.1.0
 */
import { createHash } from "node:crypto"
import { existsSync, mkdirSync, statSync } from "node:fs"
import { open, readFile, rename, rm } from "node:fs/promises"
import { join } from "node:path"
import * as SqliteClient from "@effect/sql-sqlite-node/SqliteClient"
import { Cause, Context, Effect, Either, Layer, Option, Schema, type Scope } from "effect"
import * as Anchor from "../services/Anchor.ts"
import type { Writes } from "../services/Book.ts"
import { StorageError } from "../services/Errors.ts"
import type { Backend } from "../services/Journal.ts"

/** @since 0.1.0 */
export interface Guard extends Pick<Backend, "lock" | "anchor"> {
  /** Takes note of what was committed. A claim is anchored before it is used, all else a moment later. */
  readonly committed: (writes: Writes) => Effect.Effect<void, StorageError>
  /** Fails where the file that is open is no longer the one of this name, or an anchor could not be written. */
  readonly intact: Effect.Effect<void, StorageError>
}

/** How old an anchor may get, in milliseconds: commits younger than it may be lost unseen. */
const ANCHOR_MS = 250

/**
 * The guard of a database file that exists.
 *
 * @since 0.1.0
 */
export const make = (path: string): Effect.Effect<Guard, StorageError, Scope.Scope> =>
  Effect.gen(function* () {
    const directory = `${path}-runs`
    const file = (runId: string, kind: "lock" | "anchor") => join(directory, `${nameOf(runId)}.${kind}`)
    const prepare = () => void mkdirSync(directory, { recursive: true, mode: 0o700 })
    const anchors = yield* anchoring(path, prepare, (runId) => file(runId, "anchor"))
    const { anchor, committed, flush, healthy } = anchors
    return {
      anchor,
      committed,
      // What was committed is anchored before another process may have the lock: finalizers run backwards.
      lock: (runId) =>
        Effect.zipRight(attempt(path, prepare), lock(file(runId, "lock"))).pipe(
          Effect.tap((mine) => (mine ? Effect.addFinalizer(() => flush) : Effect.void))
        ),
      intact: Effect.zipRight(healthy, yield* sameFiles(path))
    }
  })

/** A run's id may hold anything; this does not. */
const nameOf = (runId: string): string => createHash("sha256").update(runId).digest("hex").slice(0, 24)

const attempt = <A>(path: string, run: () => A): Effect.Effect<A, StorageError> =>
  Effect.try({ try: run, catch: refused(path) })

const refused = (path: string) => (cause: unknown) => {
  const code = cause instanceof Error && "code" in cause ? cause.code : undefined
  const detail = cause instanceof Error ? cause.message : String(cause)
  if (code === "ENOSPC")
    return new StorageError({
      reason: "full",
      path,
      message: `no space left for ${path}: free some and resume`,
      cause
    })
  if (code === "EACCES" || code === "EROFS" || code === "EPERM")
    return new StorageError({
      reason: "read_only",
      path,
      message: `the directory of ${path} cannot be written: check its permissions`,
      cause
    })
  return new StorageError({ reason: "failed", path, message: `beside ${path}: ${detail}`, cause })
}

/** An exclusive transaction on a file of its own: the kernel ends it with the process, and a stopped process keeps it. */
const lock = (file: string): Effect.Effect<boolean, StorageError, Scope.Scope> =>
  Effect.gen(function* () {
    const context = yield* Layer.build(SqliteClient.layer({ filename: file, disableWAL: true }))
    const sql = Context.get(context, SqliteClient.SqliteClient)
    // Without this it would wait for five seconds, and the event loop with it.
    yield* sql`pragma busy_timeout = 0`
    const connection = yield* sql.reserve
    yield* connection.executeRaw("begin exclusive", [])
    return true
  }).pipe(
    Effect.catchAllCause((cause) => {
      const error = Cause.squash(cause)
      const code = sqliteCode(error)
      if (code.startsWith("SQLITE_BUSY")) return Effect.succeed(false)
      return Effect.fail(
        code === "SQLITE_CANTOPEN" || code.startsWith("SQLITE_READONLY") ? closed(file, error) : refused(file)(error)
      )
    })
  )

const closed = (file: string, cause: unknown) =>
  new StorageError({
    reason: "read_only",
    path: file,
    message: `${file} cannot be opened: check the permissions of its directory, which may be another user's`,
    cause
  })

const sqliteCode = (error: unknown): string => {
  const cause = typeof error === "object" && error !== null && "cause" in error ? error.cause : error
  return typeof cause === "object" && cause !== null && "code" in cause ? String(cause.code) : ""
}

const AnchorJson = Schema.parseJson(Anchor.Anchor)

const anchoring = (path: string, prepare: () => void, fileOf: (runId: string) => string) =>
  Effect.gen(function* () {
    const latest = new Map<string, Anchor.Anchor>()
    const reached = new Map<string, Anchor.Reach>()
    const dirty = new Set<string>()
    let failure: StorageError | undefined

    const anchor = (runId: string): Effect.Effect<Anchor.Anchor | undefined, StorageError> =>
      Effect.gen(function* () {
        const file = fileOf(runId)
        if (!existsSync(file)) return undefined
        const text = yield* Effect.tryPromise({ try: () => readFile(file, "utf8"), catch: refused(path) })
        return yield* Effect.mapError(Schema.decode(AnchorJson)(text), () => unreadable(file))
      })

    const writeDirty = async (): Promise<void> => {
      if (dirty.size > 0) prepare()
      for (const runId of [...dirty]) {
        dirty.delete(runId)
        const kept = latest.get(runId)
        if (kept === undefined) await rm(fileOf(runId), { force: true })
        else await replace(fileOf(runId), JSON.stringify(kept))
      }
    }
    // One after the other: two would write the same draft.
    let before = Promise.resolve()
    const write = Effect.tryPromise({
      try: () => {
        before = before.then(writeDirty, writeDirty)
        return before
      },
      catch: refused(path)
    })
    const writing = Effect.catchAll(write, (error) =>
      Effect.sync(() => {
        failure = error
      })
    )
    let timer: NodeJS.Timeout | undefined
    // A disk's time, whatever clock the run goes by.
    const soon = (): void => {
      timer ??= setTimeout(() => {
        timer = undefined
        Effect.runFork(writing)
      }, ANCHOR_MS)
    }
    yield* Effect.addFinalizer(() =>
      Effect.zipRight(
        Effect.sync(() => clearTimeout(timer)),
        writing
      )
    )

    const note = (writes: Writes): boolean => {
      for (const { live, runId, worker } of writes.workers) {
        if (live) reached.set(runId, { worker, calls: 0 })
      }
      for (const { n, runId, worker } of writes.calls) {
        const known = reached.get(runId)
        if (known?.worker === worker) reached.set(runId, { worker, calls: Math.max(known.calls, n) })
      }
      for (const [runId, book] of writes.books) {
        const known = reached.get(runId)
        // Only who has claimed a run says how far it is.
        if (known === undefined) continue
        latest.set(runId, Anchor.of(book, known.worker, known.calls))
        dirty.add(runId)
      }
      for (const { discard, runId } of writes.unloads) if (discard) latest.delete(runId)
      for (const { live, runId, worker } of writes.workers) {
        if (!live && reached.get(runId)?.worker === worker) reached.delete(runId)
      }
      return writes.workers.some(({ live }) => live) || writes.unloads.some(({ discard }) => discard)
    }
    const healthy = Effect.suspend(() => (failure === undefined ? Effect.void : Effect.fail(failure)))
    const committed = (writes: Writes): Effect.Effect<void, StorageError> =>
      Effect.suspend(() => {
        if (note(writes)) return write
        if (dirty.size > 0) soon()
        return Effect.void
      })
    return { anchor, committed, healthy, flush: writing }
  })

const unreadable = (file: string) =>
  new StorageError({
    reason: "corrupt",
    path: file,
    message: `${file} cannot be read: it says how far its run had come; put it back, or delete it to trust the database as it is`
  })

/** Never half a file, and none whose name is durable before its content. */
const replace = async (file: string, text: string): Promise<void> => {
  // Of a name of its own: another process may write one too, if it took the run over just now.
  const draft = `${file}.${process.pid}.tmp`
  const handle = await open(draft, "w", 0o600)
  try {
    await handle.writeFile(text)
    await handle.sync()
  } finally {
    await handle.close()
  }
  await rename(draft, file)
}

/** A database that was moved or deleted under a live connection still takes writes, which nobody will ever read. */
const sameFiles = (path: string): Effect.Effect<Effect.Effect<void, StorageError>, StorageError> =>
  Effect.map(
    attempt(path, () => statSync(path)),
    (opened) => {
      const first = new Map([[path, opened.ino]])
      const isSame = (file: string): boolean => {
        const now = Either.getOrUndefined(Either.try(() => statSync(file)))
        const before = first.get(file)
        if (before === undefined) {
          if (now !== undefined) first.set(file, now.ino)
          return true
        }
        return now?.ino === before
      }
      return Effect.suspend(() => {
        const lost = Option.fromNullable([path, `${path}-wal`].find((file) => !isSame(file)))
        return Option.match(lost, { onNone: () => Effect.void, onSome: (file) => Effect.fail(moved(file)) })
      })
    }
  )

const moved = (file: string) =>
  new StorageError({
    reason: "gone",
    path: file,
    message: `${file} was moved, deleted or replaced while it was in use: put it back, then resume`
  })
