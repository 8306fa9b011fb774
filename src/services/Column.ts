/**
 * The typed columns of an export, for a Parquet file and a SQL table alike. A column of the job's output has the kind that its schema declares; a column of the source
 * has the kind of all its values, which are in the manifest before the first call, so it does not change while the run goes on. Null and absent count for no kind.
 *
 * @since 0.1.0
 */
import { type Chunk, Effect, Option, Schema, SchemaAST } from "effect"
import { InputError } from "./Errors.ts"

/**
 * What a column holds. `integer`: whole numbers up to 2^53; `number`: 64-bit floating point; `json`: each value as JSON text, strings too; `text`: strings as they are and
 * anything else as CSV writes it.
 *
 * @since 0.1.0
 */
export type Kind = "text" | "integer" | "number" | "boolean" | "json"

/** @since 0.1.0 */
export interface Column {
  readonly name: string
  readonly kind: Kind
}

/** What a typed column's cell is, `null` where there is no value. @since 0.1.0 */
export type Cell = string | number | boolean | null

/**
 * The kind of a column's values so far, and of one more: booleans alone are `boolean`, whole numbers alone `integer`, numbers alone `number`, all else is `text`.
 *
 * @since 0.1.0
 */
export const widen = (kind: Kind | undefined, value: unknown): Kind | undefined => {
  if (value === null || value === undefined) return kind
  const own = kindOf(value)
  if (kind === undefined || kind === own) return own
  return isNumeric(kind) && isNumeric(own) ? "number" : "text"
}

const kindOf = (value: unknown): Kind => {
  if (typeof value === "boolean") return "boolean"
  if (typeof value !== "number") return "text"
  return Number.isSafeInteger(value) ? "integer" : "number"
}

const isNumeric = (kind: Kind): boolean => kind === "integer" || kind === "number"

/**
 * The kind that a schema's encoded side declares: strings and their literals are `text`, `Schema.Int` and what narrows it `integer`, numbers `number`, booleans `boolean`, and
 * anything else `json`. A union with null or undefined is what is left without them.
 *
 * @since 0.1.0
 */
export const declared = (schema: SchemaAST.AST): Kind => {
  const [first = "json", ...others] = new Set(kindsOf(SchemaAST.encodedBoundAST(schema)))
  if (others.length === 0) return first
  return [first, ...others].every(isNumeric) ? "number" : "json"
}

const kindsOf = (ast: SchemaAST.AST): ReadonlyArray<Kind> => {
  switch (ast._tag) {
    case "StringKeyword":
    case "TemplateLiteral":
      return ["text"]
    case "NumberKeyword":
      return ["number"]
    case "BooleanKeyword":
      return ["boolean"]
    case "UndefinedKeyword":
      return []
    case "Literal":
      return ast.literal === null ? [] : [kindOf(ast.literal)]
    case "Enums":
      return ast.enums.map(([, value]) => kindOf(value))
    case "Union":
      return ast.types.flatMap(kindsOf)
    case "Refinement": {
      const isInt = Option.contains(SchemaAST.getSchemaIdAnnotation(ast), Schema.IntSchemaId)
      return isInt ? ["integer"] : kindsOf(ast.from)
    }
    default:
      return ["json"]
  }
}

/**
 * Whether a column of this kind can hold the value as it is. One of `text` or `json` holds anything.
 *
 * @since 0.1.0
 */
export const fits = (kind: Kind, value: unknown): boolean => {
  if (value === null || value === undefined || kind === "text" || kind === "json") return true
  const own = kindOf(value)
  return own === kind || (kind === "number" && own === "integer")
}

/**
 * A value as text, as every export writes it: empty for null, ISO for a date, JSON for an object.
 *
 * @since 0.1.0
 */
export const text = (value: unknown): string => {
  if (value === null || value === undefined) return ""
  if (value instanceof Date) return value.toISOString()
  return typeof value === "object" ? JSON.stringify(value) : String(value)
}

/**
 * The cells of some rows, in the order of the columns. `before`: how many rows came earlier, for the error that names the row and column whose value has no place.
 *
 * @since 0.1.0
 */
export const cells = (
  file: string,
  columns: ReadonlyArray<Column>,
  rows: Chunk.Chunk<Readonly<Record<string, unknown>>>,
  before: number
): Effect.Effect<ReadonlyArray<ReadonlyArray<Cell>>, InputError> =>
  Effect.suspend(() => {
    const all: Array<ReadonlyArray<Cell>> = []
    for (const row of rows) {
      // Own properties only: a column called `constructor` must not find the prototype's.
      const values = columns.map(({ name }) => (Object.hasOwn(row, name) ? row[name] : undefined))
      const misfit = columns.find(({ kind }, i) => !fits(kind, values[i]))
      if (misfit !== undefined) return unfit(file, before + all.length + 1, misfit)
      all.push(columns.map(({ kind }, i) => cellOf(kind, values[i])))
    }
    return Effect.succeed(all)
  })

const cellOf = (kind: Kind, value: unknown): Cell => {
  if (value === null || value === undefined) return null
  if (kind === "json") return JSON.stringify(value)
  return kind !== "text" && (typeof value === "number" || typeof value === "boolean") ? value : text(value)
}

const unfit = (file: string, row: number, { kind, name }: Column) =>
  new InputError({
    reason: "bad_row",
    message: `${file}: row ${row} cannot be written: its ${JSON.stringify(name)} is no ${kind}, as all were when the columns were decided`,
    file,
    field: name,
    fix: "the rows were changed meanwhile: export again"
  })
