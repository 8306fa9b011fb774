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
import { randomBytes } from "node:crypto"
import * as fs from "node:fs/promises"
import { basename, dirname, extname, join } from "node:path"
import { type Chunk, Effect, Stream } from "effect"
import { InputError } from "../services/Errors.ts"

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

/**
 * Writes by the file's extension: `.csv`, `.tsv` (CSV with tabs), `.jsonl` or `.ndjson` (which take each row whole, whatever the columns).
 *
 * @since 0.1.0
 */
export const write = <E, R>(
  path: string,
  columns: ReadonlyArray<string>,
  rows: Stream.Stream<Row, E, R>,
  options: Pick<CsvOptions, "raw"> = {}
): Effect.Effect<number, InputError | E, R> => {
  switch (extname(path).toLowerCase()) {
    case ".csv":
      return writeCsv(path, columns, rows, options)
    case ".tsv":
      return writeCsv(path, columns, rows, { ...options, delimiter: "\t" })
    case ".jsonl":
    case ".ndjson":
      return writeJsonl(path, rows)
    default:
      return new InputError({
        reason: "bad_option",
        message: `${path}: the kind of file is not known by its extension`,
        file: path,
        fix: "write to a .csv, .tsv, .jsonl or .ndjson file"
      })
  }
}

// Spaces before the sign do not stop a spreadsheet.
const formula = /^(?:[\t\r\n]|\s*[=+\-@＝＋－＠])/
const negative = /^-\d+(?:\.\d+)?$/

const cellOf = (value: unknown, raw: boolean, delimiter: string): string => {
  const text = textOf(value)
  const unsafe = !raw && typeof value !== "number" && formula.test(text) && !negative.test(text)
  const quoted = unsafe || /["\r\n\ufeff]/.test(text) || text.includes(delimiter)
  return quoted ? `"${unsafe ? "'" : ""}${text.replaceAll('"', '""')}"` : text
}

const textOf = (value: unknown): string => {
  if (value === null || value === undefined) return ""
  if (value instanceof Date) return value.toISOString()
  return typeof value === "object" ? JSON.stringify(value) : String(value)
}

/** Rows a write: few, so that rows of megabytes stay below the longest string (512 MiB). */
const BATCH = 16

/** Writes `head` and each row's text to a file beside `path`, which takes the final name at the end. */
const writeFile = <E, R>(
  path: string,
  head: string,
  rows: Stream.Stream<Row, E, R>,
  encode: (row: Row) => string
): Effect.Effect<number, InputError | E, R> => {
  const temporary = join(dirname(path), `.${basename(path)}.${randomBytes(6).toString("hex")}.tmp`)
  const attempt = <A>(run: () => Promise<A>) =>
    Effect.tryPromise({ try: run, catch: (error) => unwritable(path, error) })

  const write = (file: fs.FileHandle) =>
    Effect.gen(function* () {
      let count = 0
      yield* attempt(() => file.appendFile(head))
      yield* Stream.runForEachChunk(Stream.rechunk(rows, BATCH), (chunk) =>
        Effect.flatMap(encodeAll(path, chunk, count, encode), (text) => {
          count += chunk.length
          return attempt(() => file.appendFile(text))
        })
      )
      return count
    })
  const publish = (file: fs.FileHandle) =>
    attempt(() => file.sync()).pipe(
      Effect.zipRight(attempt(() => fs.rename(temporary, path))),
      Effect.zipRight(attempt(() => syncDirectory(dirname(path)))),
      Effect.uninterruptible
    )

  return Effect.acquireUseRelease(
    Effect.zipRight(
      refuseSymlink(path),
      attempt(() => fs.open(temporary, "wx", 0o600))
    ),
    (file) => Effect.tap(write(file), () => publish(file)),
    // After the rename there is no temporary file any more.
    (file) =>
      Effect.promise(() =>
        file
          .close()
          .finally(() => fs.rm(temporary, { force: true }))
          .catch(() => undefined)
      )
  )
}

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

const refuseSymlink = (path: string): Effect.Effect<void, InputError> =>
  Effect.promise(() =>
    fs.lstat(path).then(
      (stat) => stat.isSymbolicLink(),
      () => false
    )
  ).pipe(Effect.flatMap((link) => (link ? unwritable(path, new Error("it is a symbolic link")) : Effect.void)))

/** A rename is durable once its directory is. Windows cannot open one. */
const syncDirectory = async (path: string): Promise<void> => {
  if (process.platform === "win32") return
  const directory = await fs.open(path)
  await directory.sync().finally(() => directory.close())
}

const unwritable = (path: string, error: unknown): InputError =>
  new InputError({
    reason: "unreadable",
    message: `${path} cannot be written: ${error instanceof Error ? error.message : String(error)}`,
    file: path,
    fix: "name a regular file, in a directory that exists, on a disk with space"
  })
