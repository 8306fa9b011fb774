/**
 * Rows from a SQLite file, over a read-only connection of its own that lives as long as the stream runs.
 *
 * @example
 * import { Rows } from "longhaul/sqlite"
 * const vendors = Rows.table("crm.db", "vendors")
 *
 * @since 0.1.0
 */
import { existsSync } from "node:fs"
import { Reactivity } from "@effect/experimental"
import { SqlClient, type SqlError } from "@effect/sql"
import { SqliteClient } from "@effect/sql-sqlite-node"
import { Chunk, Effect, Option, Stream } from "effect"
import { InputError } from "../services/Errors.ts"
import type { RowSource } from "../services/RowSource.ts"

/**
 * A table, page by page in the order of its rowid: constant memory, and no lock between pages, so a row written meanwhile may or may not be seen.
 * A view or a `WITHOUT ROWID` table has no such order: read it with {@link query}. An integer above 2^53 is an error, never rounded.
 *
 * @since 0.1.0
 */
export const table = (filename: string, name: string): RowSource =>
  source(filename, `${filename}#${name}`, (all) =>
    Effect.gen(function* () {
      // The name is looked up, not trusted: only a table that the file lists, and none of SQLite's own.
      const found = yield* all(
        "select 1 from pragma_table_list where schema = 'main' and name = ? and type = 'table' and wr = 0 and name not like 'sqlite~_%' escape '~'",
        [name]
      )
      const columns = yield* columnsOf(all, name)
      // A column may take one of the rowid's three names.
      const rowid = ["rowid", "_rowid_", "oid"].find((id) => !columns.some((column) => column.toLowerCase() === id))
      if (found.length === 0 || rowid === undefined) {
        return yield* refused(filename, `there is no table ${JSON.stringify(name)} with a rowid`, FIX_TABLE)
      }
      const page = `select ${rowid} as r, ${aliased(columns)} from ${quote(name)} where ${rowid} >= ? order by ${rowid} limit ${PAGE}`
      const pages = Stream.paginateChunkEffect(FIRST, (from) =>
        Effect.map(all(page, [from]), (cells) => {
          const last = cells[PAGE - 1]?.r
          return [
            Chunk.unsafeFromArray(cells),
            typeof last === "bigint" ? Option.some(last + 1n) : Option.none()
          ] as const
        })
      )
      return { columns, cells: pages }
    })
  )

/**
 * The rows of one `select`. The whole result is held in memory while it is read: for millions of rows use {@link table}. Two columns of one name are
 * told apart as SQLite does in a view (`id`, `id:1`). An integer above 2^53 is an error, never rounded.
 *
 * @since 0.1.0
 */
export const query = (filename: string, select: string): RowSource =>
  source(filename, `${filename}#query`, (all) =>
    Effect.gen(function* () {
      // As a view the text can only be one select, and has columns that can be listed. It is the connection's own: the file is not written.
      yield* all(`create temp view longhaul_query as ${select}`, [])
      const columns = yield* columnsOf(all, "longhaul_query")
      const cells = yield* all(`select ${aliased(columns)} from temp.longhaul_query`, [])
      return { columns, cells: Stream.fromIterable(cells) }
    })
  )

const PAGE = 1000
const FIRST = -(2n ** 63n)
const FIX_TABLE = "check the name; a view or a WITHOUT ROWID table is read by a query"

/** Cells by position (`c0`, `c1`, ...): by name, two columns could collide, and better-sqlite3 drops one called `__proto__`. */
type Cells = Readonly<Record<string, unknown>>
type All = (sql: string, params: ReadonlyArray<unknown>) => Effect.Effect<ReadonlyArray<Cells>, SqlError.SqlError>

interface Result {
  readonly columns: ReadonlyArray<string>
  readonly cells: Stream.Stream<Cells, SqlError.SqlError>
}

const source = (
  filename: string,
  location: string,
  read: (all: All) => Effect.Effect<Result, InputError | SqlError.SqlError>
): RowSource => ({
  kind: "sqlite",
  location,
  text: false,
  rows: Stream.unwrapScoped(
    Effect.map(Effect.flatMap(open(filename), read), ({ columns, cells }) =>
      Stream.mapEffect(Stream.zipWithIndex(cells), ([row, index]) => rowOf(location, index + 1, columns, row))
    )
  ).pipe(Stream.mapError((error) => (error instanceof InputError ? error : failed(filename, error.cause))))
})

const open = (filename: string) =>
  Effect.suspend(() => {
    if (!existsSync(filename)) {
      const message = `${filename}: no such file`
      return new InputError({ reason: "not_found", message, file: filename, fix: "check the path" })
    }
    // Without WAL: to switch a file to it would be a write.
    return SqliteClient.make({ filename, readonly: true, disableWAL: true }).pipe(
      Effect.provide(Reactivity.layer),
      // The client throws what better-sqlite3 throws: a bad file, a directory, a missing native binding.
      Effect.catchAllDefect((error) => failed(filename, error)),
      Effect.map(
        (sql): All =>
          (text, params) =>
            Effect.provideService(sql.unsafe<Cells>(text, params), SqlClient.SafeIntegers, true)
      )
    )
  })

const columnsOf = (all: All, name: string) =>
  // Hidden is 1 for a virtual table's own columns; generated columns are 2 and 3, and are data.
  Effect.map(all("select name from pragma_table_xinfo(?) where hidden <> 1 order by cid", [name]), (rows) =>
    rows.map((row) => String(row.name))
  )

const rowOf = (location: string, line: number, columns: ReadonlyArray<string>, cells: Cells) => {
  const value: Record<string, unknown> = Object.create(null)
  for (const [i, column] of columns.entries()) {
    const cell = cells[`c${i}`]
    const exact = typeof cell === "bigint" ? Number(cell) : cell
    if (typeof cell === "bigint" && !Number.isSafeInteger(exact)) return tooLarge(location, line, column)
    value[column] = exact
  }
  return Effect.succeed({ line, value })
}

const aliased = (columns: ReadonlyArray<string>) => columns.map((column, i) => `${quote(column)} as c${i}`).join(", ")

const quote = (name: string) => `"${name.replaceAll('"', '""')}"`

const tooLarge = (location: string, line: number, field: string) =>
  new InputError({
    reason: "bad_row",
    message: `${location}, row ${line}: the integer in ${JSON.stringify(field)} is above 2^53 and would be rounded`,
    file: location,
    line,
    field,
    fix: `read it as text, by a query: cast(${quote(field)} as text)`
  })

const refused = (filename: string, what: string, fix: string) =>
  new InputError({ reason: "unreadable", message: `${filename}: ${what}`, file: filename, fix })

const failed = (filename: string, cause: unknown) => {
  const why = cause instanceof Error ? (cause.message.split("\n")[0] ?? "") : String(cause)
  return /bindings|NODE_MODULE_VERSION/.test(why)
    ? refused(filename, "the native binding of better-sqlite3 is missing", "run: npm rebuild better-sqlite3")
    : refused(filename, `SQLite cannot read this: ${why}`, "name a SQLite database and a query that reads it")
}
