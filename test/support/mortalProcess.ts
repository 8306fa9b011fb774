/**
 * Processes over one database, within a test: each has a journal of its own over the shared driver, and may die at an operation. What was appended before it is
 * durable, that operation and all later ones are lost, and its worker and its open holds stay behind, as after a SIGKILL.
 */
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { Deferred, Effect, FiberId, Layer, type Scope } from "effect"
import * as JournalMemory from "../../src/layers/JournalMemory.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import type { Op } from "../../src/services/Book.ts"
import * as Checkpointer from "../../src/services/Checkpointer.ts"
import { StorageError } from "../../src/services/Errors.ts"
import { type Driver, Journal, type JournalShape, make } from "../../src/services/Journal.ts"
import * as Store from "../../src/services/Store.ts"

/** Opens the database anew, as each process does. */
export type Database = Effect.Effect<Driver, StorageError, Scope.Scope>

export const tempDir: Effect.Effect<string, never, Scope.Scope> = Effect.acquireRelease(
  Effect.sync(() => mkdtempSync(join(tmpdir(), "longhaul-"))),
  (dir) => Effect.sync(() => rmSync(dir, { recursive: true, force: true }))
)

/** A fresh database of each kind. */
export const backends = {
  memory: Effect.sync((): Database => Effect.succeed(JournalMemory.makeDriver())),
  SQLite: Effect.map(tempDir, (dir): Database => Sqlite.open({ filename: join(dir, "test.db") }))
} satisfies Record<string, Effect.Effect<Database, StorageError, Scope.Scope>>

/** The layers of one process; it dies at the first operation for which `dies` is true. */
export const processOn = (
  database: Database,
  dies: (op: Op) => boolean = () => false
): Layer.Layer<Journal | Store.Store | Checkpointer.Checkpointer, StorageError> =>
  Layer.merge(Store.layer, Checkpointer.layer).pipe(
    Layer.provideMerge(
      Layer.scoped(
        Journal,
        Effect.map(Effect.flatMap(database, make), (journal) => mortal(journal, dies))
      )
    )
  )

/** True at the `n`th operation (from 1) that the predicate picks. */
export const nth = (n: number, picks: (op: Op) => boolean): ((op: Op) => boolean) => {
  let seen = 0
  return (op) => picks(op) && ++seen === n
}

const killed = new StorageError({ reason: "broken", message: "the process was killed" })

const mortal = (journal: JournalShape, dies: (op: Op) => boolean): JournalShape => {
  const death = Deferred.unsafeMake<never, StorageError>(FiberId.none)
  let dead = false
  const lives = (op: Op): boolean => {
    if (!dead && dies(op)) {
      dead = true
      Deferred.unsafeDone(death, Effect.fail(killed))
    }
    return !dead
  }
  return {
    ...journal,
    append: (op, heard) => {
      if (lives(op)) journal.append(op, heard)
    },
    commit: (op) => Effect.suspend(() => (lives(op) ? journal.commit(op) : Effect.fail(killed))),
    flush: Effect.suspend(() => (dead ? Effect.fail(killed) : journal.flush)),
    broken: Effect.raceFirst(journal.broken, Deferred.await(death))
  }
}
