import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { Reactivity } from "@effect/experimental"
import { SqliteClient } from "@effect/sql-sqlite-node"
import { assert, beforeEach, describe, it } from "@effect/vitest"
import { Deferred, Effect, FastCheck, Fiber, Stream } from "effect"
import { afterEach } from "vitest"
import * as ExportSql from "../../src/layers/ExportSql.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import type { Column } from "../../src/services/Column.ts"

let dir = ""
let path = ""
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "longhaul-table-"))
  path = join(dir, "crm.db")
})
afterEach(() => rmSync(dir, { recursive: true }))

/** One connection of another's: the operator's own. */
const operator = <A, E>(work: (sql: SqliteClient.SqliteClient) => Effect.Effect<A, E>, disableWAL = true) =>
  SqliteClient.make({ filename: path, disableWAL }).pipe(
    Effect.flatMap(work),
    Effect.scoped,
    Effect.provide(Reactivity.layer)
  )
const run = (...statements: ReadonlyArray<string>) =>
  operator((sql) => Effect.forEach(statements, (text) => sql.unsafe(text)))
/** Rows as arrays, in the order of the columns. */
const read = (select: string) => operator((sql) => sql.unsafe(select).values)

const columns: ReadonlyArray<Column> = [
  { name: "id", kind: "text" },
  { name: "n", kind: "integer" },
  { name: "x", kind: "number" },
  { name: "ok", kind: "boolean" },
  { name: "tags", kind: "json" }
]
const ids: ReadonlyArray<Column> = [{ name: "id", kind: "text" }]
const some = (...values: ReadonlyArray<string>) => Stream.fromIterable(values.map((id) => ({ id })))

describe("a table of a SQLite file", () => {
  it.effect("is made in a new file of mode 0600, with typed columns and every cell", () =>
    Effect.gen(function* () {
      const rows = [
        { id: "007", n: 2 ** 53 - 1, x: 5, ok: true, tags: ["a", { b: null }], extra: "left out" },
        { id: "1e5", n: -1, x: -0.1, ok: false, tags: "text" },
        { id: "", tags: null }
      ]
      assert.strictEqual(yield* ExportSql.write(path, "rows", columns, Stream.fromIterable(rows)), 3)
      assert.strictEqual(statSync(path).mode & 0o777, 0o600)
      assert.deepStrictEqual(readdirSync(dir), ["crm.db"])
      assert.deepStrictEqual(yield* read("select name, lower(type) from pragma_table_info('rows') order by cid"), [
        ["id", "text"],
        ["n", "integer"],
        ["x", "real"],
        ["ok", "boolean"],
        ["tags", "text"]
      ])
      assert.deepStrictEqual(yield* read("select * from rows"), [
        ["007", 9007199254740991, 5, 1, '["a",{"b":null}]'],
        ["1e5", -1, -0.1, 0, '"text"'],
        ["", null, null, null, null]
      ])
      assert.deepStrictEqual(yield* read("select distinct typeof(id), typeof(n), typeof(x), typeof(ok) from rows"), [
        ["text", "integer", "real", "integer"],
        ["text", "null", "null", "null"]
      ])
    })
  )

  it.effect.prop(
    "holds what was written, in order, whatever the names, values and numbers of rows",
    [
      FastCheck.uniqueArray(FastCheck.fullUnicodeString({ minLength: 1 }), {
        minLength: 1,
        maxLength: 3,
        selector: (name) => name.toLowerCase()
      }),
      // SQL ends at a NUL, so it cannot be in a name; it can be in a text.
      FastCheck.integer({ min: 0, max: 250 }),
      FastCheck.array(FastCheck.fullUnicodeString(), { minLength: 1, maxLength: 5 })
    ],
    ([names, count, texts]) =>
      Effect.gen(function* () {
        const typed = names.map((name): Column => ({ name: name.replaceAll("\0", "0"), kind: "text" }))
        const rows = Array.from({ length: count }, (_, n) =>
          typed.map((_, i) => (n % 7 === 3 ? null : `${n} ${texts[(n + i) % texts.length]}`))
        )
        const stream = Stream.map(Stream.fromIterable(rows), (row) =>
          Object.fromEntries(row.map((cell, i) => [typed[i]?.name ?? "", cell]))
        )
        assert.strictEqual(yield* ExportSql.write(path, "rows", typed, stream), count)
        assert.deepStrictEqual(yield* read("select * from rows"), rows)
        assert.deepStrictEqual(
          yield* read("select name from pragma_table_info('rows') order by cid"),
          typed.map(({ name }) => [name])
        )
      }),
    { timeout: 60_000, fastCheck: { numRuns: 25 } }
  )

  it.effect("keeps apart columns that SQLite would take for one", () =>
    Effect.gen(function* () {
      const names = ["id", "ID", "id_2", "Id", "é", "É"]
      const typed = names.map((name): Column => ({ name, kind: "text" }))
      const row = Object.fromEntries(names.map((name) => [name, `the ${name}`]))
      yield* ExportSql.write(path, "rows", typed, Stream.make(row))
      assert.deepStrictEqual(yield* read("select name from pragma_table_info('rows') order by cid"), [
        ["id"],
        ["ID_2"],
        ["id_2_2"],
        ["Id_3"],
        ["é"],
        ["É"]
      ])
      assert.deepStrictEqual(yield* read("select * from rows"), [names.map((name) => `the ${name}`)])
    })
  )

  it.effect("replaces what an earlier export made, and leaves the operator's other tables as they are", () =>
    Effect.gen(function* () {
      yield* ExportSql.write(path, "rows", columns, Stream.empty)
      yield* run(
        "create table vendors (id text references rows(id) on delete cascade, note text)",
        "create index by_n on rows (n)",
        "pragma foreign_keys = off",
        "insert into vendors values ('a', 'mine')"
      )
      yield* ExportSql.write(path, "ROWS", ids, some("a", "b"))
      assert.deepStrictEqual(yield* read("select * from rows"), [["a"], ["b"]])
      yield* ExportSql.write(path, "rows", ids, some("c"))
      assert.deepStrictEqual(yield* read("select * from rows"), [["c"]])
      assert.deepStrictEqual(yield* read("select * from vendors"), [["a", "mine"]])
      assert.deepStrictEqual(yield* read("select name from sqlite_schema order by name"), [["rows"], ["vendors"]])
      assert.deepStrictEqual(yield* read("pragma integrity_check"), [["ok"]])
    })
  )

  it.effect("refuses a table, view or index that no export made, whatever its case, and says what to do", () =>
    Effect.gen(function* () {
      yield* run(
        "create table vendors (id text)",
        "insert into vendors values ('mine')",
        "create view recent as select * from vendors",
        "create index by_id on vendors (id)"
      )
      const before = readFileSync(path)
      for (const name of ["vendors", "VENDORS", "recent", "by_id"]) {
        const error = yield* Effect.flip(ExportSql.write(path, name, ids, some("a")))
        assert.deepInclude(error, { _tag: "InputError", reason: "bad_option", file: path }, name)
        assert.match(error.message, /there is a (table|view|index) .* that no export made/)
        assert.deepInclude(yield* Effect.flip(ExportSql.check(path, name)), { fix: "name another table after the #" })
      }
      assert.strictEqual((yield* Effect.flip(ExportSql.write(path, "sqlite_x", ids, some("a"))))._tag, "InputError")
      assert.isTrue(before.equals(readFileSync(path)))
    })
  )

  it.effect("refuses the run's own tables in the run's own database, and writes another beside them", () =>
    Effect.gen(function* () {
      yield* Effect.scoped(Sqlite.open({ filename: path }))
      const own = yield* read("select name from sqlite_schema where type = 'table'")
      assert.isAbove(own.length, 8)
      for (const [name] of own) {
        assert.strictEqual((yield* Effect.flip(ExportSql.check(path, String(name))))._tag, "InputError", String(name))
      }
      yield* ExportSql.write(path, "results", ids, some("a"))
      assert.deepStrictEqual(yield* read("select * from results"), [["a"]])
      // It is still a database for runs, and still in WAL.
      yield* Effect.scoped(Sqlite.open({ filename: path, create: false }))
      assert.deepStrictEqual(yield* read("pragma journal_mode"), [["wal"]])
    })
  )

  it.effect("is locked only while the rows are copied: another writes meanwhile", () =>
    Effect.gen(function* () {
      yield* run("create table vendors (id text)")
      const rows = Stream.tap(some("a", "b"), ({ id }) => run(`insert into vendors values ('${id}')`))
      yield* ExportSql.write(path, "rows", ids, rows)
      assert.deepStrictEqual(yield* read("select * from vendors"), [["a"], ["b"]])
      assert.deepStrictEqual(yield* read("select * from rows"), [["a"], ["b"]])
    })
  )

  it.effect("is the old one after a failure or an interruption; a new file is not made", () =>
    Effect.gen(function* () {
      assert.strictEqual(
        yield* Effect.flip(ExportSql.write(path, "rows", ids, Stream.concat(some("a"), Stream.fail("boom")))),
        "boom"
      )
      assert.isFalse(existsSync(path))
      yield* ExportSql.write(path, "rows", ids, some("old"))
      const started = yield* Deferred.make<void>()
      const never = Stream.fromEffect(Effect.zipRight(Deferred.succeed(started, undefined), Effect.never))
      const fiber = yield* Effect.fork(ExportSql.write(path, "rows", ids, Stream.concat(some("new"), never)))
      yield* Deferred.await(started)
      yield* Fiber.interrupt(fiber)
      const rows = Stream.map(Stream.range(1, 300), (n) => ({ n: n === 200 ? 0.5 : n }))
      const misfit = yield* Effect.flip(ExportSql.write(path, "rows", [{ name: "n", kind: "integer" }], rows))
      assert.include(misfit.message, "row 200")
      assert.deepStrictEqual(yield* read("select * from rows"), [["old"]])
      assert.deepStrictEqual(readdirSync(dir), ["crm.db"])
    })
  )

  it.effect("is refused where the file is locked, is no database, or its directory is missing", () =>
    Effect.gen(function* () {
      yield* ExportSql.write(path, "rows", ids, some("old"))
      const locked = yield* operator((sql) =>
        Effect.zipRight(sql.unsafe("begin immediate"), Effect.flip(ExportSql.write(path, "rows", ids, some("a"))))
      )
      assert.deepInclude(locked, { _tag: "StorageError", reason: "busy", path })
      assert.deepStrictEqual(yield* read("select * from rows"), [["old"]])
      writeFileSync(join(dir, "notes.txt"), "not a database, ".repeat(100))
      for (const file of [join(dir, "notes.txt"), dir, join(dir, "no", "x.db")]) {
        const error = yield* Effect.flip(ExportSql.write(file, "rows", ids, some("a")))
        assert.deepInclude(error, { _tag: "InputError", reason: "unreadable", file })
      }
    })
  )
})
