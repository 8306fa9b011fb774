/**
 * Where rows come from: a stream of records with their place in the source, read once, when a run's manifest is loaded.
 *
 * @since 0.1.0
 */
import { type Effect, type Schema, SchemaAST, Stream } from "effect"
import type { InputError } from "./Errors.ts"

/**
 * One record as read: `line` is its line (a file) or its ordinal (anything else), from 1, for error messages.
 *
 * @since 0.1.0
 */
export interface SourceRow {
  readonly line: number
  readonly value: unknown
}

/**
 * `location` names the source in messages and in the run's record (a path, a table). `text` is true where every cell is text (CSV): such cells
 * are read by the job's row schema, see {@link readCells}. `columns`, where known before reading, keeps the export's column order.
 *
 * @since 0.1.0
 */
export interface RowSource {
  readonly kind: "csv" | "jsonl" | "sqlite" | "stream"
  readonly location: string
  readonly text: boolean
  /** Changes when the source does, where that can be seen without reading it; `undefined`: it cannot. */
  readonly stamp?: Effect.Effect<string | undefined>
  readonly rows: Stream.Stream<SourceRow, InputError>
}

/**
 * A source from values in memory.
 *
 * @since 0.1.0
 */
export const fromIterable = (values: Iterable<unknown>): RowSource => fromStream(Stream.fromIterable(values))

/**
 * A source from any stream of records.
 *
 * @since 0.1.0
 */
export const fromStream = (values: Stream.Stream<unknown, InputError>, location = "stream"): RowSource => ({
  kind: "stream",
  location,
  text: false,
  rows: Stream.map(Stream.zipWithIndex(values), ([value, index]) => ({ line: index + 1, value }))
})

/**
 * Turns a record of text cells into what the row schema's encoded side expects, by the schema alone and never by what a cell looks like: `NA`, `TRUE`
 * or `007` under a `Schema.String` stay as they are, byte for byte. A cell under a number is read only if it is a plain decimal number without a
 * needless leading zero; under a boolean only `true` or `false`. An empty cell is left out where the field is optional, `null` where the field takes
 * null and no string. What does not fit stays text, so the schema's own error names it.
 *
 * @since 0.1.0
 */
export const readCells = (schema: Schema.Schema.All): ((cells: Readonly<Record<string, string>>) => unknown) => {
  const fields = new Map(
    SchemaAST.getPropertySignatures(SchemaAST.encodedAST(schema.ast)).map(
      (field) => [String(field.name), field] as const
    )
  )
  return (cells) => {
    const row: Record<string, unknown> = Object.create(null)
    for (const [name, cell] of Object.entries(cells)) {
      const field = fields.get(name)
      const value = field === undefined ? cell : readCell(kindsOf(field.type), cell)
      if (value !== undefined && !(cell === "" && field?.isOptional === true)) row[name] = value
    }
    return row
  }
}

interface Kinds {
  readonly string: boolean
  readonly number: boolean
  readonly boolean: boolean
  readonly null: boolean
}

const kindsOf = (ast: SchemaAST.AST): Kinds => {
  switch (ast._tag) {
    case "Union":
      return ast.types.map(kindsOf).reduce(
        (a, b) => ({
          string: a.string || b.string,
          number: a.number || b.number,
          boolean: a.boolean || b.boolean,
          null: a.null || b.null
        }),
        none
      )
    case "Refinement":
      return kindsOf(ast.from)
    case "NumberKeyword":
      return { ...none, number: true }
    case "BooleanKeyword":
      return { ...none, boolean: true }
    case "Literal":
      return ast.literal === null ? { ...none, null: true } : { ...none, [typeof ast.literal]: true }
    default:
      return { ...none, string: true }
  }
}

const none: Kinds = { string: false, number: false, boolean: false, null: false }
const decimal = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/

const readCell = (kinds: Kinds, cell: string): unknown => {
  if (kinds.string) return cell
  if (cell === "" && kinds.null) return null
  if (kinds.number && decimal.test(cell)) return Number(cell)
  if (kinds.boolean && (cell === "true" || cell === "false")) return cell === "true"
  return cell
}
