/**
 * Results to files: CSV and JSON Lines, streamed, and whole or not at all: a reader never finds a half-written file under the final name.
 *
 * @example
 * import { Export } from "longhaul"
 * import { Stream } from "effect"
 * const written = Export.writeCsv("out.csv", ["id", "risk"], Stream.make({ id: "007", risk: "low" })) // Effect<1>
 *
 * @since 0.1.0
 */
import { extname } from "node:path"
import { type Chunk, Effect, Either, Stream } from "effect"
import * as Column from "../services/Column.ts"
import { InputError } from "../services/Errors.ts"
import * as WholeFile from "./WholeFile.ts"

/** @since 0.1.0 */
export type Row = Readonly<Record<string, unknown>>

/**
 * `raw: true` writes text as it is, for programs. By default a text that a spreadsheet would run as a formula is made safe, see {@link writeCsv}.
 *
 * @since 0.1.0
 */
export interface CsvOptions {
  readonly raw?: boolean
  readonly delimiter?: string
}

/**
 * Writes a CSV file (RFC 4180, UTF-8, "\n") with these columns and gives the number of rows. The file replaces an older one in one step, has mode
 * 0600, and is on disk when the effect ends; after a failure or an interruption nothing is left. A symlink is refused. `null` and `undefined` are
 * empty cells, a Date is its ISO form, other objects are JSON. Text that begins like a formula (`=`, `+`, `-`, `@`, their full-width forms, a tab or
 * a line end) gets a leading `'`, header names too; a number stays a number. Any other text, such as `NA` or `007`, is written byte for byte.
 *
 * @since 0.1.0
 */
export const writeCsv = <E, R>(
  path: string,
  columns: ReadonlyArray<string>,
  rows: Stream.Stream<Row, E, R>,
  options: CsvOptions = {}
): Effect.Effect<number, InputError | E, R> => {
  const { raw = false, delimiter = "," } = options
  const line = (values: ReadonlyArray<unknown>) => {
    const text = values.map((value) => cellOf(value, raw, delimiter)).join(delimiter)
    // One empty cell alone would be a blank line, which readers skip.
    return text === "" ? '""\n' : `${text}\n`
  }
  // Own properties only: a column called `constructor` must not find the prototype's.
  return writeFile(path, line(columns), rows, (row) =>
    line(columns.map((column) => (Object.hasOwn(row, column) ? row[column] : undefined)))
  )
}

/**
 * Writes a JSON Lines file, with the same promises as {@link writeCsv}. Texts are exact; U+2028 and U+2029 are escaped, so that no reader takes them
 * for a line end.
 *
 * @since 0.1.0
 */
export const writeJsonl = <E, R>(
  path: string,
  rows: Stream.Stream<Row, E, R>
): Effect.Effect<number, InputError | E, R> =>
  writeFile(
    path,
    "",
    rows,
    (row) => `${JSON.stringify(row).replace(/[\u2028\u2029]/g, (c) => (c === "\u2028" ? "\\u2028" : "\\u2029"))}\n`
  )

/** A file that is exported to, by what its extension says. @since 0.1.0 */
export type FileKind = "csv" | "tsv" | "jsonl" | "parquet"

/**
 * Where rows can be exported to: a file, or a table of a SQLite file.
 *
 * @since 0.1.0
 */
export type Target =
  | { readonly kind: FileKind; readonly file: string }
  | { readonly kind: "sqlite"; readonly file: string; readonly table: string }

const EXTENSIONS: ReadonlyMap<string, FileKind> = new Map([
  [".csv", "csv"],
  [".tsv", "tsv"],
  [".jsonl", "jsonl"],
  [".ndjson", "jsonl"],
  [".parquet", "parquet"]
])

/** The targets that there are, for a message. @since 0.1.0 */
export const TARGETS = `${[...EXTENSIONS.keys()].join(", ")}, or sqlite:<file>#<table>`

/**
 * What an operator's name for a target means: a file by its extension, or `sqlite:<file>#<table>`.
 *
 * @since 0.1.0
 */
export const target = (out: string): Either.Either<Target, InputError> => {
  const [, database, table] = /^sqlite:(.+)#([^#]+)$/s.exec(out) ?? []
  if (database !== undefined && table !== undefined) return Either.right({ kind: "sqlite", file: database, table })
  const kind = out.startsWith("sqlite:") ? undefined : EXTENSIONS.get(extname(out).toLowerCase())
  if (kind !== undefined) return Either.right({ kind, file: out })
  const what = out.startsWith("sqlite:") ? "it names no table" : "the kind of file is not known by its extension"
  return Either.left(unknown(out, what, `the name must end in ${TARGETS}`))
}

const unknown = (file: string, what: string, fix: string) =>
  new InputError({ reason: "bad_option", message: `${file}: ${what}`, file, fix })

/**
 * Writes a text file by its extension: `.csv`, `.tsv` (CSV with tabs), `.jsonl` or `.ndjson` (which take each row whole, whatever the columns).
 *
 * @since 0.1.0
 */
export const write = <E, R>(
  path: string,
  columns: ReadonlyArray<string>,
  rows: Stream.Stream<Row, E, R>,
  options: Pick<CsvOptions, "raw"> = {}
): Effect.Effect<number, InputError | E, R> => {
  switch (EXTENSIONS.get(extname(path).toLowerCase())) {
    case "csv":
      return writeCsv(path, columns, rows, options)
    case "tsv":
      return writeCsv(path, columns, rows, { ...options, delimiter: "\t" })
    case "jsonl":
      return writeJsonl(path, rows)
    default:
      return unknown(path, "this is no text file, by its extension", "write to a .csv, .tsv, .jsonl or .ndjson file")
  }
}

// Spaces before the sign do not stop a spreadsheet.
const formula = /^(?:[\t\r\n]|\s*[=+\-@＝＋－＠])/
const negative = /^-\d+(?:\.\d+)?$/

const cellOf = (value: unknown, raw: boolean, delimiter: string): string => {
  const text = Column.text(value)
  const unsafe = !raw && typeof value !== "number" && formula.test(text) && !negative.test(text)
  const quoted = unsafe || /["\r\n\ufeff]/.test(text) || text.includes(delimiter)
  return quoted ? `"${unsafe ? "'" : ""}${text.replaceAll('"', '""')}"` : text
}

/** Rows a write: few, so that rows of megabytes stay below the longest string (512 MiB). */
const BATCH = 16

/** Writes `head` and each row's text. */
const writeFile = <E, R>(
  path: string,
  head: string,
  rows: Stream.Stream<Row, E, R>,
  encode: (row: Row) => string
): Effect.Effect<number, InputError | E, R> =>
  WholeFile.write(path, (append) =>
    Effect.gen(function* () {
      let count = 0
      yield* append(head)
      yield* Stream.runForEachChunk(Stream.rechunk(rows, BATCH), (chunk) =>
        Effect.flatMap(encodeAll(path, chunk, count, encode), (text) => {
          count += chunk.length
          return append(text)
        })
      )
      return count
    })
  )

const encodeAll = (path: string, rows: Chunk.Chunk<Row>, before: number, encode: (row: Row) => string) =>
  Effect.suspend(() => {
    let text = ""
    let row = before
    try {
      for (const value of rows) {
        row++
        text += encode(value)
      }
      return Effect.succeed(text)
    } catch (error) {
      const message = `${path}: row ${row} cannot be written: ${error instanceof Error ? error.message : String(error)}`
      return new InputError({ reason: "bad_row", message, file: path, fix: "rows hold JSON values and dates only" })
    }
  })
