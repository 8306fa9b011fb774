/**
 * Results to a table of a SQLite file, the operator's or a new one, in one transaction: a reader finds the old table or the new one. Loaded only when a table is asked for.
 *
 * @since 0.1.0
 */
import { accessSync, closeSync, constants, existsSync, openSync } from "node:fs"
import { resolve } from "node:path"
import { Reactivity } from "@effect/experimental"
import { SqliteClient } from "@effect/sql-sqlite-node"
import { Chunk, Effect, Stream } from "effect"
import * as Column from "../services/Column.ts"
import { InputError, StorageError } from "../services/Errors.ts"

/** Stands in the text of each table that an export made, which SQLite keeps as it was written. Only such a table is replaced. */
const MARK = "/* made by longhaul export */"
/** Bound values a statement: SQLite takes 32,766. */
const VALUES = 30_000
/** Rows a statement. */
const BATCH = 100

/**
 * Whether {@link write} may write this table: the file can be written, if it is there, and the name is free or an export's. A table, view or index of anybody else is refused, Longhaul's
 * own among them.
 *
 * @since 0.1.0
 */
export const check = (file: string, table: string): Effect.Effect<void, InputError | StorageError> =>
  Effect.gen(function* () {
    if (/^sqlite_/i.test(table)) return yield* reserved(file, table)
    if (!existsSync(file)) return
    yield* Effect.try({ try: () => accessSync(file, constants.W_OK), catch: (error) => unwritable(file, error) })
    // Not read-only: what a killed export left half done is first undone.
    const sql = yield* connect(file, file)
    yield* refuseForeign(sql, "main", file, table)
  }).pipe(Effect.scoped)

/**
 * Writes a table with these columns and gives the number of rows, which have the order of the table's rowids. A table of that name is replaced if an export made it, with its indexes and
 * triggers, and refused otherwise. Columns are `text`, `integer`, `real` or `boolean` (0 and 1), JSON is text; a name that differs from an earlier one in case only gets `_2`. The rows are
 * first gathered in a temporary database (see SQLite's SQLITE_TMPDIR), so that the file is locked only while they are copied: it may be one that others write to, the run's own too.
 *
 * @since 0.1.0
 */
export const write = <E, R>(
  file: string,
  table: string,
  columns: ReadonlyArray<Column.Column>,
  rows: Stream.Stream<Readonly<Record<string, unknown>>, E, R>
): Effect.Effect<number, InputError | StorageError | E, R> =>
  Effect.gen(function* () {
    yield* check(file, table)
    // A database without a name is SQLite's own temporary file, which is gone when the connection is.
    const sql = yield* connect(file, "")
    const count = yield* gather(sql, file, columns, rows)
    yield* Effect.uninterruptible(publish(sql, file, table, columns))
    return count
  }).pipe(Effect.scoped)

/** One statement on the one connection. */
type Sql = (
  text: string,
  params?: ReadonlyArray<unknown>
) => Effect.Effect<ReadonlyArray<Readonly<Record<string, unknown>>>, InputError | StorageError>

/** `file`: what an error is about. */
const connect = (file: string, filename: string) =>
  // Without WAL: how the operator's file keeps its journal is not changed.
  SqliteClient.make({ filename, disableWAL: true }).pipe(
    Effect.provide(Reactivity.layer),
    // The client throws what better-sqlite3 throws.
    Effect.catchAllDefect((error) => Effect.fail(unwritable(file, error))),
    Effect.map(
      (client): Sql =>
        (text, params = []) =>
          Effect.mapError(client.unsafe<Readonly<Record<string, unknown>>>(text, params), ({ cause }) =>
            unwritable(file, cause)
          )
    )
  )

const gather = <E, R>(
  sql: Sql,
  file: string,
  columns: ReadonlyArray<Column.Column>,
  rows: Stream.Stream<Readonly<Record<string, unknown>>, E, R>
) =>
  Effect.gen(function* () {
    const batch = Math.max(1, Math.min(BATCH, Math.floor(VALUES / columns.length)))
    const one = `(${columns.map(() => "?").join(", ")})`
    const insert = (rows: number) => `insert into gathered values ${Array.from({ length: rows }, () => one).join(", ")}`
    // Two texts in all, which stay prepared.
    const [single, full] = [insert(1), insert(batch)]
    let count = 0
    yield* sql("begin")
    yield* sql(`create table gathered (${columns.map(({ kind }, i) => `c${i} ${TYPES[kind]}`).join(", ")})`)
    yield* Stream.runForEachChunk(Stream.rechunk(rows, batch), (chunk) =>
      Effect.gen(function* () {
        const values = (yield* Column.cells(file, columns, chunk, count)).map((cells) => cells.map(bound))
        count += values.length
        if (Chunk.size(chunk) === batch) yield* sql(full, values.flat())
        else yield* Effect.forEach(values, (row) => sql(single, row), { discard: true })
      })
    )
    yield* sql("commit")
    return count
  })

const publish = (sql: Sql, file: string, table: string, columns: ReadonlyArray<Column.Column>) =>
  Effect.gen(function* () {
    // It holds rows and answers: nobody else's to read.
    if (!existsSync(file)) {
      yield* Effect.try({
        try: () => closeSync(openSync(file, "a", 0o600)),
        catch: (error) => unwritable(file, error)
      })
    }
    // To drop a table deletes its rows first, and what refers to them by a cascade.
    yield* sql("pragma foreign_keys = off")
    yield* sql("attach ? as target", [resolve(file)])
    yield* sql("pragma target.synchronous = full")
    yield* sql("begin immediate")
    yield* refuseForeign(sql, "target", file, table)
    const name = `target.${quote(table)}`
    yield* sql(`drop table if exists ${name}`)
    const typed = namesOf(columns).map((column, i) => `${quote(column)} ${TYPES[columns[i]?.kind ?? "text"]}`)
    yield* sql(`create table ${name} (${MARK} ${typed.join(", ")})`)
    yield* sql(`insert into ${name} select * from main.gathered order by rowid`)
    yield* sql("commit")
  })

const TYPES: Readonly<Record<Column.Kind, string>> = {
  text: "text",
  json: "text",
  integer: "integer",
  number: "real",
  boolean: "boolean"
}

const bound = (cell: Column.Cell): string | number | null => (typeof cell === "boolean" ? Number(cell) : cell)

/** SQLite takes `Name` and `name` for one. */
const namesOf = (columns: ReadonlyArray<Column.Column>): ReadonlyArray<string> => {
  const taken = new Set<string>()
  return columns.map(({ name }) => {
    let free = name
    for (let n = 2; taken.has(folded(free)); n++) free = `${name}_${n}`
    taken.add(folded(free))
    return free
  })
}

/** Lower case as SQLite has it: ASCII only. */
const folded = (name: string): string => name.replace(/[A-Z]/g, (letter) => letter.toLowerCase())

const refuseForeign = (sql: Sql, schema: "main" | "target", file: string, table: string) =>
  Effect.flatMap(
    sql(`select type, sql from ${schema}.sqlite_schema where name = ? collate nocase`, [table]),
    ([found]) =>
      found === undefined || (found.type === "table" && String(found.sql).includes(`(${MARK} `))
        ? Effect.void
        : Effect.fail(foreign(file, table, String(found.type)))
  )

const quote = (name: string) => `"${name.replaceAll('"', '""')}"`

const refused = (file: string, message: string, fix: string) =>
  new InputError({ reason: "bad_option", message: `${file}: ${message}`, file, fix })

const reserved = (file: string, table: string) =>
  refused(file, `the name ${JSON.stringify(table)} is SQLite's own`, "name a table that does not begin with sqlite_")

const foreign = (file: string, table: string, type: string) =>
  refused(
    file,
    `there is a ${type} ${JSON.stringify(table)} that no export made, and it is not replaced`,
    "name another table after the #"
  )

/** What better-sqlite3 or the file system says, by what an operator can do about it. */
const unwritable = (file: string, cause: unknown): InputError | StorageError => {
  const code = typeof cause === "object" && cause !== null && "code" in cause ? String(cause.code) : ""
  const detail = cause instanceof Error ? (cause.message.split("\n")[0] ?? "") : String(cause)
  if (code.startsWith("SQLITE_BUSY"))
    return new StorageError({
      reason: "busy",
      path: file,
      message: `${file} is locked by another process: export again`,
      cause
    })
  if (code === "SQLITE_FULL" || code === "SQLITE_IOERR_WRITE") {
    const message = `no space left for ${file}, or where SQLite keeps temporary files (SQLITE_TMPDIR): free some and export again`
    return new StorageError({ reason: "full", path: file, message, cause })
  }
  const fix = "name a SQLite file that can be written, or a new one in a directory that exists"
  return new InputError({ reason: "unreadable", message: `${file}: SQLite cannot write this: ${detail}`, file, fix })
}
