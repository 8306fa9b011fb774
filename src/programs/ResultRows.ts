/**
 * A run's rows as an export writes them: the source's own columns, the enriched ones beside them, and how the row ended.
 *
 * @since 0.1.0
 */
import { Either, Option, type Schema, SchemaAST } from "effect"
import type { ReportedRow } from "./Report.ts"

/** The columns that say how a row ended. */
const STATUS = "longhaul_status"
const ERROR = "longhaul_error"

/**
 * How to lay out a run's results, read as they are stored: the columns, given the source's, and each row. An enriched column whose name the source has already is called `result_<name>`.
 *
 * @since 0.1.0
 */
export const layout = <A, I>(output: Schema.Schema<A, I>, sourceColumns: ReadonlyArray<string>) => {
  const fields = SchemaAST.getPropertySignatures(SchemaAST.encodedAST(output.ast)).map((field) => String(field.name))
  const taken = new Set(sourceColumns)
  const named = fields.map((field) => [field, taken.has(field) ? `result_${field}` : field] as const)
  return {
    columns: [...sourceColumns, ...named.map(([, column]) => column), STATUS, ERROR],
    row: (reported: ReportedRow<unknown>): Readonly<Record<string, unknown>> => {
      const cells: Record<string, unknown> = { ...reported.record }
      const encoded = Option.flatMap(reported.outcome, (outcome) =>
        Option.flatMap(Either.getRight(outcome), ({ parsed }) => Option.fromNullable(parsed))
      )
      for (const [field, column] of named) cells[column] = Option.getOrUndefined(Option.map(encoded, fieldOf(field)))
      return { ...cells, ...endOf(reported) }
    }
  }
}

const fieldOf =
  (field: string) =>
  (value: unknown): unknown =>
    typeof value === "object" && value !== null && Object.hasOwn(value, field) ? Reflect.get(value, field) : undefined

const endOf = ({ outcome }: ReportedRow<unknown>): Record<string, string> => {
  if (Option.isNone(outcome)) return { [STATUS]: "pending", [ERROR]: "" }
  return Either.match(outcome.value, {
    onLeft: (failure) => ({ [STATUS]: "failed", [ERROR]: `${failure.reason}: ${failure.message}` }),
    onRight: (result) => ({
      [STATUS]: result.partial ? "partial" : "done",
      [ERROR]: result.partial ? "the answer could not be read" : ""
    })
  })
}
