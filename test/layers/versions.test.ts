import { join } from "node:path"
import * as SqliteClient from "@effect/sql-sqlite-node/SqliteClient"
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import { tables } from "../../src/layers/SqlVersions.ts"
import { tempDir } from "../support/mortalProcess.ts"

const connected = <A, E>(filename: string, use: Effect.Effect<A, E, SqliteClient.SqliteClient>) =>
  Effect.provide(use, SqliteClient.layer({ filename }))

/** A database as the first version of the tables left it, with one run, one row and its result. */
const first = (filename: string) =>
  connected(
    filename,
    Effect.gen(function* () {
      const sql = yield* SqliteClient.SqliteClient
      for (const statement of tables("without rowid")) yield* sql.unsafe(statement)
      yield* sql`create table longhaul_migrations (migration_id integer primary key not null, created_at datetime not null default current_timestamp, name varchar(255) not null)`
      yield* sql`insert into longhaul_migrations (migration_id, name) values (1, 'init')`
      const zeros = Array.from({ length: 16 }, () => "0").join(", ")
      yield* sql.unsafe(
        `insert into run values ('r', 'j', 's', 'done', null, '{}', '{}', 1, 100, null, 8, 100, 1, 0, ${zeros}, 1, 0, 0, 1)`
      )
      yield* sql`insert into manifest values ('r', 0, 'a', 'v', 1, '{"id":"a"}', 0)`
      yield* sql`insert into outcome values ('r', 0, 0, 1, 'done', '', 'k', 0, '{}')`
    })
  )

describe("the version of a database", () => {
  it.scopedLive("one of the first version is brought up to date, and reads as it did", () =>
    Effect.gen(function* () {
      const filename = join(yield* tempDir, "old.db")
      yield* first(filename)
      const { reads } = yield* Sqlite.open({ filename, create: false })
      const book = yield* reads.book("r")
      assert.deepStrictEqual([book?.job, book?.rows, book?.kept], ["j", 1, 0])
      const [one] = yield* reads.results("r", -1, 10)
      assert.deepStrictEqual([one?.row.id, one?.outcome?.key, one?.outcome?.made], ["a", "k", ""])
    })
  )

  it.scopedLive("opened by several at once, it is brought up to date once", () =>
    Effect.gen(function* () {
      const filename = join(yield* tempDir, "old.db")
      yield* first(filename)
      const drivers = yield* Effect.forEach(Array(4), () => Sqlite.open({ filename }), { concurrency: "unbounded" })
      for (const { reads } of drivers) assert.strictEqual((yield* reads.book("r"))?.rows, 1)
    })
  )

  it.scopedLive("one of a later version is refused: it names both, and the fix", () =>
    Effect.gen(function* () {
      const filename = join(yield* tempDir, "new.db")
      yield* Effect.scoped(Sqlite.open({ filename }))
      yield* connected(
        filename,
        Effect.flatMap(
          SqliteClient.SqliteClient,
          (sql) => sql`insert into longhaul_migrations (migration_id, name) values (99, 'later')`
        )
      )
      const error = yield* Effect.flip(Sqlite.open({ filename }))
      assert.strictEqual(error.reason, "schema")
      assert.match(
        error.message,
        /was written by a newer Longhaul \(tables of version 99, this one knows \d+\): update/
      )
    })
  )

  it.scopedLive("a file that is no database of ours is not made into one by a resume", () =>
    Effect.gen(function* () {
      const filename = join(yield* tempDir, "other.db")
      yield* connected(
        filename,
        Effect.flatMap(SqliteClient.SqliteClient, (sql) => sql`create table theirs (x)`)
      )
      const error = yield* Effect.flip(Sqlite.open({ filename, create: false }))
      assert.include(error.message, "it is not a Longhaul database, or it was emptied")
      const names = yield* connected(
        filename,
        Effect.flatMap(SqliteClient.SqliteClient, (sql) => sql`select name from sqlite_master`)
      )
      assert.deepStrictEqual(names, [{ name: "theirs" }])
    })
  )
})
