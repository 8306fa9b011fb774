/**
 * Results to a Parquet file, row group by row group. The same rows give the same bytes. Loaded only when such a file is asked for.
 *
 * @since 0.1.0
 */
import { Effect, Stream } from "effect"
import { ByteWriter, ParquetWriter, type SchemaElement } from "hyparquet-writer"
import * as Column from "../services/Column.ts"
import { InputError } from "../services/Errors.ts"
import * as WholeFile from "./WholeFile.ts"

/** A row group ends with this row, */
const ROWS = 10_000
/** or with the row that brings its text to this many characters: rows of megabytes do not fill the memory. */
const CHARACTERS = 32 * 2 ** 20
/** Rows that are encoded at once. */
const BATCH = 64
/** In the form that readers parse. The number is that of the layout: it changes when the bytes do. */
const WRITER = "longhaul version 1"

/**
 * Writes a Parquet file with these columns, snappy-compressed, and gives the number of rows. Every column is optional: what is absent is null. `text` and `json` are UTF8, `integer`
 * is INT64, `number` DOUBLE, `boolean` BOOLEAN. The file replaces an older one in one step, as every export does; see Export.writeCsv.
 *
 * @since 0.1.0
 */
export const write = <E, R>(
  path: string,
  columns: ReadonlyArray<Column.Column>,
  rows: Stream.Stream<Readonly<Record<string, unknown>>, E, R>
): Effect.Effect<number, InputError | E, R> =>
  WholeFile.write(path, (append) =>
    Effect.gen(function* () {
      const bytes = new ByteWriter()
      const attempt = (run: () => unknown) => Effect.try({ try: run, catch: unwritable(path) })
      const flush = Effect.suspend(() =>
        Effect.map(append(bytes.getBytes()), () => {
          bytes.index = 0
        })
      )
      const parquet = new ParquetWriter({ writer: bytes, schema: schemaOf(columns), createdBy: WRITER })
      let group = emptyGroup(columns)
      let count = 0
      const endGroup = Effect.suspend(() => {
        const { data, size } = group
        group = emptyGroup(columns)
        const columnData = columns.map(({ name }, i) => ({ name, data: data[i] ?? [] }))
        return Effect.zipRight(
          attempt(() => parquet.write({ columnData, rowGroupSize: size })),
          flush
        )
      })
      yield* Stream.runForEachChunk(Stream.rechunk(rows, BATCH), (chunk) =>
        Effect.gen(function* () {
          for (const cells of yield* Column.cells(path, columns, chunk, count)) {
            count++
            add(group, columns, cells)
            if (group.size === ROWS || group.characters >= CHARACTERS) yield* endGroup
          }
        })
      )
      if (group.size > 0) yield* endGroup
      yield* attempt(() => parquet.finish())
      yield* flush
      return count
    })
  )

/** The rows of a group, by column. */
interface Group {
  readonly data: ReadonlyArray<Array<string | number | bigint | boolean | null>>
  size: number
  characters: number
}

const emptyGroup = (columns: ReadonlyArray<Column.Column>): Group => ({
  data: columns.map(() => []),
  size: 0,
  characters: 0
})

const add = (group: Group, columns: ReadonlyArray<Column.Column>, cells: ReadonlyArray<Column.Cell>): void => {
  group.size++
  for (const [i, column] of group.data.entries()) {
    const cell = cells[i] ?? null
    if (typeof cell === "string") group.characters += cell.length
    column.push(typeof cell === "number" && columns[i]?.kind === "integer" ? BigInt(cell) : cell)
  }
}

const utf8 = { type: "BYTE_ARRAY", converted_type: "UTF8" } as const
const TYPES = {
  text: utf8,
  json: utf8,
  integer: { type: "INT64" },
  number: { type: "DOUBLE" },
  boolean: { type: "BOOLEAN" }
} as const

const schemaOf = (columns: ReadonlyArray<Column.Column>): Array<SchemaElement> => [
  { name: "root", num_children: columns.length },
  ...columns.map(({ kind, name }): SchemaElement => ({ name, repetition_type: "OPTIONAL", ...TYPES[kind] }))
]

const unwritable = (path: string) => (error: unknown) =>
  new InputError({
    reason: "bad_row",
    message: `${path}: a row group cannot be written: ${error instanceof Error ? error.message : String(error)}`,
    file: path,
    fix: "export to a .jsonl file"
  })
