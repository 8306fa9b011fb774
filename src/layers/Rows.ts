/**
 * Rows from files: CSV and JSON Lines. A file is opened when its stream runs, read in blocks of whole records (constant memory), and refused, by
 * line and with the fix, rather than guessed at: no cell is trimmed, padded, shifted, renamed or interpreted.
 *
 * @example
 * import { Rows } from "longhaul"
 * const vendors = Rows.csv("vendors.csv") // vendors.rows: Stream<{ line, value }, InputError>
 *
 * @since 0.1.0
 */
import { isUtf8 } from "node:buffer"
import { statSync } from "node:fs"
import * as fs from "node:fs/promises"
import { extname } from "node:path"
import { CsvError, parse } from "csv-parse/sync"
import { Chunk, Effect, Either, Option, Stream } from "effect"
import { InputError } from "../services/Errors.ts"
import type { RowSource, SourceRow } from "../services/RowSource.ts"

export { fromIterable, fromStream } from "../services/RowSource.ts"

/**
 * A CSV file (RFC 4180, UTF-8 with or without a byte-order mark, any line ends). The first record is the header; its names are unique. A row is a
 * record without a prototype from name to cell, so a column may be called `__proto__` or `toString`. Every row has as many cells as the header. Blank
 * lines are skipped. A file without any header is an error (`empty`); one with a header only has no rows.
 *
 * @since 0.1.0
 */
export const csv = (path: string, options: { readonly delimiter?: string } = {}): RowSource => {
  const delimiter = options.delimiter ?? ","
  const rows = /^[^"\r\n]$/.test(delimiter)
    ? records(path, true, () => csvReader(path, delimiter))
    : Stream.fail(
        new InputError({
          reason: "bad_option",
          message: `${JSON.stringify(delimiter)} cannot be a CSV delimiter`,
          field: "delimiter",
          fix: 'use one character, such as ";", that is neither a quote nor a line end'
        })
      )
  return { kind: "csv", location: path, text: true, stamp: stampOf(path), rows }
}

/**
 * A JSON Lines file (UTF-8): one object a line. A line ends at the byte 0x0A and nowhere else, so U+2028 inside a string is safe. Blank lines and CRLF
 * are tolerated. An integer above 2^53 is an error: JSON numbers would round it.
 *
 * @since 0.1.0
 */
export const jsonl = (path: string): RowSource => ({
  kind: "jsonl",
  location: path,
  text: false,
  stamp: stampOf(path),
  rows: records(path, false, () => jsonlReader(path))
})

const stampOf = (path: string): Effect.Effect<string | undefined> =>
  Effect.sync(() => {
    const found = statSync(path, { throwIfNoEntry: false })
    return found === undefined ? undefined : `${found.size} ${Math.round(found.mtimeMs)}`
  })

/**
 * The source by the file's extension: `.csv`, `.tsv` (CSV with tabs), `.jsonl` or `.ndjson`.
 *
 * @since 0.1.0
 */
export const fromPath = (path: string): Either.Either<RowSource, InputError> => {
  switch (extname(path).toLowerCase()) {
    case ".csv":
      return Either.right(csv(path))
    case ".tsv":
      return Either.right(csv(path, { delimiter: "\t" }))
    case ".jsonl":
    case ".ndjson":
      return Either.right(jsonl(path))
    default:
      return Either.left(
        new InputError({
          reason: "bad_option",
          message: `${path}: the kind of file is not known by its extension`,
          file: path,
          fix: "use a .csv, .tsv, .jsonl or .ndjson file"
        })
      )
  }
}

const CHUNK = 256 * 1024
const LIMIT = 16 * 1024 * 1024
const QUOTE = 0x22
const NEWLINE = 0x0a

/** A run of whole records. `line`: where it begins. `quotedAt`: where its last quoted cell opened. `last`: what follows the last line end, if anything. */
interface Block {
  readonly line: number
  readonly bytes: Buffer
  readonly quotedAt: number
  readonly last: boolean
}

type Reader = (block: Block) => ReadonlyArray<SourceRow>

/** Readers and cutters throw the InputError: they are plain loops, and csv-parse's callback has no other way out. */
const records = (path: string, quotes: boolean, reader: () => Reader): Stream.Stream<SourceRow, InputError> =>
  Stream.suspend(() => {
    const cut = cutter(path, quotes)
    const read = reader()
    return chunks(path).pipe(
      Stream.mapEffect((chunk) =>
        Effect.try({
          try: () => Chunk.unsafeFromArray(cut(chunk).flatMap(read)),
          catch: (error) => (error instanceof InputError ? error : unreadable(path, error))
        })
      ),
      Stream.flattenChunks
    )
  })

/** The file's bytes, and `undefined` at its end. */
const chunks = (path: string): Stream.Stream<Buffer | undefined, InputError> =>
  Stream.unwrapScoped(
    Effect.gen(function* () {
      const attempt = <A>(run: () => Promise<A>) =>
        Effect.tryPromise({ try: run, catch: (error) => unreadable(path, error) })
      // Asked before opening: to open a fifo waits for its writer.
      const stat = yield* attempt(() => fs.stat(path))
      if (!stat.isFile()) return yield* unreadable(path, new Error("not a regular file"))
      const file = yield* Effect.acquireRelease(
        attempt(() => fs.open(path)),
        (file) => Effect.promise(() => file.close())
      )
      return Stream.unfoldEffect(false, (done) =>
        done
          ? Effect.succeedNone
          : Effect.map(
              attempt(() => file.read(Buffer.allocUnsafe(CHUNK), 0, CHUNK)),
              ({ buffer, bytesRead }) =>
                Option.some([bytesRead === 0 ? undefined : buffer.subarray(0, bytesRead), bytesRead === 0] as const)
            )
      )
    })
  )

/** Cuts the chunks behind the last line end that ends a record (in CSV: outside quotes), and checks what it gives out: size, UTF-8, mark. */
const cutter = (path: string, quotes: boolean) => {
  let rest: Array<Buffer> = [] // parts, joined once: a record may span many chunks
  let size = 0
  let start = 1 // the line at which `rest` begins
  let line = 1
  let quoted = false
  let quotedAt = 1
  let afterQuote = false // a quote right after a closing one is an escaped quote: the cell goes on

  const scan = (bytes: Buffer) => {
    let end = -1
    let endLine = line
    for (let i = 0; i < bytes.length; i++) {
      const byte = bytes[i]
      if (quotes && byte === QUOTE) {
        if (!quoted && !afterQuote) quotedAt = line
        quoted = !quoted
        afterQuote = !quoted
        continue
      }
      afterQuote = false
      if (byte !== NEWLINE) continue
      line++
      if (quoted) continue
      end = i + 1
      endLine = line
    }
    return { end, endLine }
  }

  const block = (bytes: Buffer, last: boolean): Block => {
    const invalid = invalidUtf8(bytes)
    if (invalid !== undefined) {
      const fix = last ? "save the file as UTF-8, and see whether it was cut off" : "save the file as UTF-8"
      throw malformed(path, start + invalid.line, invalid.message, fix)
    }
    const marked = start === 1 && bytes.indexOf("\ufeff") === 0
    return { line: start, bytes: marked ? bytes.subarray(3) : bytes, quotedAt, last }
  }

  return (chunk: Buffer | undefined): ReadonlyArray<Block> => {
    if (chunk === undefined) {
      if (start === 1 && size === 0) throw empty(path, "the file has no bytes")
      return [block(Buffer.concat(rest), true)]
    }
    const { end, endLine } = scan(chunk)
    const whole = end === -1 ? [] : [block(Buffer.concat([...rest, chunk.subarray(0, end)]), false)]
    const tail = end === -1 ? chunk : chunk.subarray(end)
    rest = end === -1 ? [...rest, tail] : [tail]
    size = end === -1 ? size + tail.length : tail.length
    start = end === -1 ? start : endLine
    if (size <= LIMIT) return whole
    throw quoted
      ? malformed(path, quotedAt, "the quote opened here is not closed within 16 MiB", CLOSE_QUOTE)
      : malformed(path, start, "the line is longer than 16 MiB", "one record a line; keep long texts out of the file")
  }
}

const csvReader = (path: string, delimiter: string): Reader => {
  let header: ReadonlyArray<string> | undefined
  return (block) => {
    const rows: Array<SourceRow> = []
    let line = block.line // where the next record begins, blank lines aside
    const place = (blank: unknown) => line + Number(blank)
    // The callback and not the result: it has seen every record before the flawed one, so the flaw has a line. csv-parse's own count is of CRLF twice.
    const onRecord = (cells: Array<string>, info: { readonly empty_lines: number }) => {
      const at = place(info.empty_lines)
      line += linesOf(cells)
      if (header === undefined) header = headerOf(path, at, cells)
      else if (cells.length === header.length) rows.push({ line: at, value: recordOf(header, cells) })
      else if (cells.length > 1 || cells[0]?.trim() !== "") throw ragged(path, at, header.length, cells.length)
      return null
    }
    try {
      parse(block.bytes, {
        delimiter,
        record_delimiter: ["\r\n", "\n", "\r"],
        relax_column_count: true,
        skip_empty_lines: true,
        on_record: onRecord
      })
    } catch (error) {
      if (!(error instanceof CsvError)) throw error
      throw error.code === "CSV_QUOTE_NOT_CLOSED"
        ? malformed(path, block.quotedAt, "the quote opened here is never closed", CLOSE_QUOTE)
        : malformed(path, place(error.empty_lines), "a quote stands inside a cell, or is not closed", CLOSE_QUOTE)
    }
    if (block.last && header === undefined) throw empty(path, "the file has no header")
    return rows
  }
}

const CLOSE_QUOTE = 'close the quote; inside a quoted cell write a quote as ""'

const headerOf = (path: string, line: number, names: ReadonlyArray<string>): ReadonlyArray<string> => {
  const twice = names.findIndex((name, i) => names.indexOf(name) !== i)
  const name = names[twice]
  if (name === undefined) return names
  const columns = `columns ${names.indexOf(name) + 1} and ${twice + 1}`
  throw malformed(path, line, `${JSON.stringify(name)} heads two columns (${columns})`, "rename one of them", name)
}

const recordOf = (header: ReadonlyArray<string>, cells: ReadonlyArray<string>): Record<string, string> => {
  const record: Record<string, string> = Object.create(null)
  for (const [i, name] of header.entries()) record[name] = cells[i] ?? ""
  return record
}

const linesOf = (cells: ReadonlyArray<string>): number => {
  let lines = 1
  for (const cell of cells) for (let i = cell.indexOf("\n"); i !== -1; i = cell.indexOf("\n", i + 1)) lines++
  return lines
}

const jsonlReader =
  (path: string): Reader =>
  (block) => {
    const rows: Array<SourceRow> = []
    const lines = block.bytes.toString("utf8").split("\n")
    for (const [i, text] of lines.entries()) {
      if (text.trim() === "") continue
      const torn = block.last && i === lines.length - 1
      rows.push({ line: block.line + i, value: objectOf(path, block.line + i, text, torn) })
    }
    return rows
  }

const objectOf = (path: string, line: number, text: string, torn: boolean): unknown => {
  const value = parseJson(path, line, text, torn)
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw malformed(path, line, "the line is not a JSON object", 'write one object a line, such as {"id":"1"}')
  }
  return Object.assign(Object.create(null), value)
}

const parseJson = (path: string, line: number, text: string, torn: boolean): unknown => {
  // By the text, as 1e300 is no rounded integer; and a reviver only where needed, as it is slow. Only from a number's first digit: else a long one is tried from each.
  const rounded = new Set(
    (text.match(/(?<!\d)-?\d{16,}(?![\d.eE])/g) ?? []).map(Number).filter((n) => !Number.isSafeInteger(n))
  )
  try {
    return rounded.size === 0 ? JSON.parse(text) : JSON.parse(text, refuseRounded(path, line, rounded))
  } catch (error) {
    if (error instanceof InputError) throw error
    throw torn
      ? malformed(path, line, "the last line is cut off", "write the file again, or remove its last line")
      : malformed(path, line, "the line is not valid JSON", "one JSON object a line, nothing else")
  }
}

const refuseRounded = (path: string, line: number, rounded: ReadonlySet<unknown>) => (key: string, value: unknown) => {
  if (!rounded.has(value)) return value
  const name = JSON.stringify(key)
  throw malformed(path, line, `the integer at ${name} is above 2^53 and would be rounded`, "write it as a string", key)
}

/** Where bytes stop being UTF-8: the line (from 0 in these bytes), and what to say of it. */
const invalidUtf8 = (bytes: Buffer): { readonly line: number; readonly message: string } | undefined => {
  if (isUtf8(bytes)) return undefined
  // Decoding puts three bytes in the place of a bad one, so the first difference is the bad byte.
  const decoded = Buffer.from(bytes.toString("utf8"))
  const at = bytes.findIndex((byte, i) => byte !== decoded[i])
  const before = bytes.subarray(0, at).toString("utf8").split("\n")
  const column = (before.at(-1) ?? "").length + 1
  const hex = (bytes[at] ?? 0).toString(16).toUpperCase().padStart(2, "0")
  return { line: before.length - 1, message: `column ${column}: the byte 0x${hex} is not UTF-8` }
}

const malformed = (path: string, line: number, what: string, fix: string, field?: string): InputError =>
  new InputError({
    reason: "malformed",
    message: `${path}, line ${line}: ${what}`,
    file: path,
    line,
    fix,
    ...(field === undefined ? {} : { field })
  })

const ragged = (path: string, line: number, expected: number, found: number): InputError =>
  malformed(
    path,
    line,
    `the header has ${expected} columns, this row has ${found}`,
    "put cells that hold a delimiter in quotes, and write empty cells as such"
  )

const empty = (path: string, what: string): InputError =>
  new InputError({ reason: "empty", message: `${path}: ${what}`, file: path, fix: "write the file again" })

const unreadable = (path: string, error: unknown): InputError => {
  const code = error instanceof Error && "code" in error ? error.code : undefined
  const why = error instanceof Error ? error.message : String(error)
  return code === "ENOENT"
    ? new InputError({ reason: "not_found", message: `${path}: no such file`, file: path, fix: "check the path" })
    : new InputError({
        reason: "unreadable",
        message: `${path} cannot be read: ${why}`,
        file: path,
        fix: "name a regular file that this user may read"
      })
}
