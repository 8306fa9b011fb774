import { copyFileSync, mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { Reactivity } from "@effect/experimental"
import { SqliteClient } from "@effect/sql-sqlite-node"
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import { Chunk, Effect, Stream } from "effect"
import * as RowsSqlite from "../../src/layers/RowsSqlite.ts"
import type { RowSource } from "../../src/services/RowSource.ts"

const dir = mkdtempSync(join(tmpdir(), "longhaul-sqlite-"))
const path = join(dir, "crm.db")
afterAll(() => rmSync(dir, { recursive: true }))

const setUp = [
  "create table vendors (id text primary key, n integer, score real, b blob, twice integer as (n * 2))",
  `with recursive i(n) as (select 1 union all select n + 1 from i where n < 2500)
   insert into vendors select printf('%05d', n), n, n / 4.0, null from i`,
  "delete from vendors where rowid = 1000",
  `create table odd ("rowid" text, "__proto__" text, "toString" text, "a""b" text)`,
  "insert into odd values ('x', 'p', 't', 'q')",
  "create table big (id integer)",
  "insert into big values (9007199254740991), (-9007199254740991), (9007199254740993)",
  "create table reals (x real)",
  "insert into reals values (1e20)",
  "create table keyed (k text primary key) without rowid",
  "create view recent as select * from vendors",
  `create table "x; drop table vendors" (id integer)`
]
beforeAll(() =>
  Effect.gen(function* () {
    const sql = yield* SqliteClient.make({ filename: path, disableWAL: true })
    for (const statement of setUp) yield* sql.unsafe(statement)
  }).pipe(Effect.scoped, Effect.provide(Reactivity.layer), Effect.runPromise)
)

const read = (source: RowSource) => Effect.map(Stream.runCollect(source.rows), Chunk.toReadonlyArray)
const failure = (source: RowSource) => Effect.flip(read(source))
const entries = (source: RowSource) =>
  Effect.map(read(source), (rows) => rows.map((row) => Object.entries(Object(row.value))))

describe("table", () => {
  it.effect("gives every row once, in order, over several pages", () =>
    Effect.gen(function* () {
      const rows = yield* read(RowsSqlite.table(path, "vendors"))
      assert.strictEqual(rows.length, 2499)
      assert.deepStrictEqual(
        rows.map((row) => row.line),
        Array.from(rows, (_, i) => i + 1)
      )
      assert.deepStrictEqual(
        { ...Object(rows[999]?.value) },
        { id: "01001", n: 1001, score: 250.25, b: null, twice: 2002 }
      )
      assert.strictEqual(new Set(rows.map((row) => Object(row.value).id)).size, 2499)
    })
  )

  it.effect("keeps columns with odd names", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(yield* entries(RowsSqlite.table(path, "odd")), [
        [
          ["rowid", "x"],
          ["__proto__", "p"],
          ["toString", "t"],
          ['a"b', "q"]
        ]
      ])
    })
  )

  it.effect("refuses an integer above 2^53, and takes a real", () =>
    Effect.gen(function* () {
      const error = yield* failure(RowsSqlite.table(path, "big"))
      assert.strictEqual(error.reason, "bad_row")
      assert.strictEqual(error.line, 3)
      assert.strictEqual(error.field, "id")
      assert.include(error.fix, 'cast("id" as text)')
      assert.deepStrictEqual(yield* entries(RowsSqlite.table(path, "reals")), [[["x", 1e20]]])
    })
  )

  it.effect("takes a name the file lists, and nothing else", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(yield* read(RowsSqlite.table(path, "x; drop table vendors")), [])
      for (const name of [
        "none",
        "sqlite_master",
        "sqlite_schema",
        "vendors; drop table vendors",
        "recent",
        "keyed",
        ""
      ]) {
        assert.strictEqual((yield* failure(RowsSqlite.table(path, name))).reason, "unreadable")
      }
    })
  )
})

describe("query", () => {
  it.effect("gives the rows of a select in its order, columns of one name apart", () =>
    Effect.gen(function* () {
      const select =
        "with a as (select id, n from vendors) select a.id, b.id, a.n from a join a b using (n) order by n desc limit 2 -- last;"
      assert.deepStrictEqual(yield* entries(RowsSqlite.query(path, select)), [
        [
          ["id", "02500"],
          ["id:1", "02500"],
          ["n", 2500]
        ],
        [
          ["id", "02499"],
          ["id:1", "02499"],
          ["n", 2499]
        ]
      ])
      assert.strictEqual((yield* read(RowsSqlite.query(path, "select * from recent"))).length, 2499)
      assert.deepStrictEqual(yield* entries(RowsSqlite.query(path, "select cast(max(id) as text) as id from big;")), [
        [["id", "9007199254740993"]]
      ])
    })
  )

  it.effect("refuses what is not one select", () =>
    Effect.gen(function* () {
      for (const sql of [
        "delete from vendors",
        "select 1; delete from vendors",
        "select nothing from vendors",
        "selec",
        ""
      ]) {
        assert.strictEqual((yield* failure(RowsSqlite.query(path, sql))).reason, "unreadable")
      }
      assert.strictEqual((yield* read(RowsSqlite.table(path, "vendors"))).length, 2499)
    })
  )
})

describe("a file", () => {
  it.effect("that is missing, a directory or no database is a typed error that names it", () =>
    Effect.gen(function* () {
      const missing = yield* failure(RowsSqlite.table(join(dir, "none.db"), "t"))
      assert.strictEqual(missing.reason, "not_found")
      assert.include(missing.message, "none.db")
      const text = join(dir, "text.db")
      writeFileSync(text, "id,name\n1,a\n".repeat(100))
      for (const filename of [dir, text]) {
        for (const source of [RowsSqlite.table(filename, "t"), RowsSqlite.query(filename, "select 1 from t")]) {
          const error = yield* failure(source)
          assert.strictEqual(error.reason, "unreadable")
          assert.include(error.message, filename)
        }
      }
    })
  )

  it.effect("is read while another connection has it open in WAL mode", () =>
    Effect.gen(function* () {
      const live = join(dir, "live.db")
      copyFileSync(path, live)
      const sql = yield* SqliteClient.make({ filename: live })
      yield* sql.unsafe("insert into vendors (id) values ('new')")
      assert.strictEqual((yield* read(RowsSqlite.table(live, "vendors"))).length, 2500)
    }).pipe(Effect.scoped, Effect.provide(Reactivity.layer))
  )
})
