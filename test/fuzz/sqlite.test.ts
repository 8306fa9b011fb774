/** Whatever a table is said to be called, and whatever a query says: rows, or an InputError; and the file stays as it was. */
import { mkdtempSync, readFileSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { Reactivity } from "@effect/experimental"
import { SqliteClient } from "@effect/sql-sqlite-node"
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import { Cause, Chunk, Effect, Exit, Option, Stream } from "effect"
import fc from "fast-check"
import * as RowsSqlite from "../../src/layers/RowsSqlite.ts"
import { InputError } from "../../src/services/Errors.ts"
import type { RowSource } from "../../src/services/RowSource.ts"
import { runs } from "./fuzz.ts"

const dir = mkdtempSync(join(tmpdir(), "longhaul-fuzz-"))
afterAll(() => rmSync(dir, { recursive: true }))
const file = join(dir, "crm.db")
const names = ["vendors", 'odd"name', "x; drop table vendors", "select", "", "a\u0000b"]
beforeAll(() =>
  Effect.gen(function* () {
    const sql = yield* SqliteClient.make({ filename: file, disableWAL: true })
    yield* sql`create table vendors (id text primary key, n integer)`
    yield* sql`insert into vendors values ('a', 1), ('b', 2)`
    yield* sql.unsafe(`create table "odd""name" (id text)`)
    yield* sql.unsafe(`create table "x; drop table vendors" (id text)`)
  }).pipe(Effect.scoped, Effect.provide(Reactivity.layer), Effect.runPromise)
)

const check = async (source: RowSource): Promise<void> => {
  const exit = await Effect.runPromiseExit(Effect.map(Stream.runCollect(source.rows), Chunk.toReadonlyArray))
  if (Exit.isSuccess(exit)) return
  const error = Option.getOrUndefined(Cause.failureOption(exit.cause))
  if (error === undefined) return assert.fail(Cause.pretty(exit.cause))
  assert.instanceOf(error, InputError)
  assert.isString(error.fix)
  assert.notMatch(error.message, /\n\s+at /)
}

const word = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.constantFrom(
      "select",
      "*",
      "from",
      "vendors",
      "where",
      "id",
      "n",
      "=",
      "1",
      "'a'",
      ",",
      "(",
      ")",
      "union",
      "values"
    )
  },
  {
    weight: 3,
    arbitrary: fc.constantFrom(
      "order by",
      "limit",
      "as",
      "join",
      "count(*)",
      "null",
      "?",
      ":a",
      "$1",
      "9007199254740993",
      "x'00'",
      "cast(n as text)",
      "temp.longhaul_query",
      "pragma_table_info('vendors')",
      "sqlite_master"
    )
  },
  {
    weight: 3,
    arbitrary: fc.constantFrom(
      ";",
      "--",
      "/*",
      "*/",
      "drop table vendors",
      "delete from vendors",
      "insert into vendors values (1, 2)",
      "attach 'x.db' as x",
      "pragma journal_mode = wal",
      "begin",
      "commit",
      "vacuum",
      "create table t (a)",
      "\u0000",
      '"',
      "'",
      "`",
      "[",
      "\\"
    )
  },
  { weight: 1, arbitrary: fc.string({ unit: "binary", maxLength: 6 }) }
)
const text = fc.oneof(
  fc.array(word, { maxLength: 8 }).map((words) => words.join(" ")),
  fc.array(word, { maxLength: 6 }).map((words) => `select * from vendors ${words.join(" ")}`)
)

describe("Rows of a SQLite file", () => {
  it("any name of a table is read as just that, or refused, and nothing is written", async () => {
    const before = readFileSync(file)
    await fc.assert(
      fc.asyncProperty(
        fc.oneof(text, fc.constantFrom(...names, "sqlite_master", "sqlite_schema", "pragma_user_version")),
        (name) => check(RowsSqlite.table(file, name))
      ),
      runs(800)
    )
    assert.isTrue(readFileSync(file).equals(before))
  })

  it("any text as a query is read as one select, or refused, and nothing is written", async () => {
    const before = readFileSync(file)
    await fc.assert(
      fc.asyncProperty(text, (select) => check(RowsSqlite.query(file, select))),
      runs(2_000)
    )
    assert.isTrue(readFileSync(file).equals(before))
  })
})
