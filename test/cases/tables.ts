/** Another process's connection to a SQLite file, within the test: it has its own locks and its own view. */
import Database from "better-sqlite3"
import { Effect } from "effect"

/** For as long as the scope is open. */
export const connected = (path: string) =>
  Effect.acquireRelease(
    Effect.sync(() => new Database(path)),
    (db) => Effect.sync(() => db.close())
  )

export const execute = (db: Database, ...statements: ReadonlyArray<string>): void => {
  for (const statement of statements) db.prepare(statement).run()
}

/** Holds the write lock for so many milliseconds from now on; gives a function that says whether it still does. */
export const lockFor = (db: Database, ms: number): (() => boolean) => {
  let holds = true
  execute(db, "begin immediate")
  setTimeout(() => {
    execute(db, "rollback")
    holds = false
  }, ms)
  return () => holds
}
