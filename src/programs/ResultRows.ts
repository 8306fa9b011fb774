/**
 * A run's rows as an export writes them: the source's own columns, the enriched ones beside them, and how the row ended.
 *
 * @since 0.1.0
 */
import { Either, Option, type Schema, SchemaAST } from "effect"
import * as Column from "../services/Column.ts"
import type { ReportedRow } from "./Report.ts"

/** The columns that say how a row ended. */
const STATUS = "longhaul_status"
const ERROR = "longhaul_error"

type Row = Readonly<Record<string, unknown>>

/**
 * How to lay out a run's results, read as they are stored: the columns, given the source's, and each row. An enriched column whose name the source has already is called
 * `result_<name>`. Where the source is itself an export, how its rows had ended is left out.
 *
 * @since 0.1.0
 */
export const layout = <A, I>(output: Schema.Schema<A, I>, sourceColumns: ReadonlyArray<string>) => {
  const own = sourceColumns.filter((column) => column !== STATUS && column !== ERROR)
  const taken = new Set([...own, STATUS, ERROR])
  const named = fieldsOf(output).map(({ kind, name: field }) => {
    let name = field
    while (taken.has(name)) name = `result_${name}`
    taken.add(name)
    return { field, name, kind }
  })
  const row = (reported: ReportedRow<unknown>): Row => {
    const cells: Record<string, unknown> = { ...reported.record }
    const encoded = encodedOf(reported)
    for (const { field, name } of named) cells[name] = Option.getOrUndefined(Option.map(encoded, fieldOf(field)))
    return { ...cells, ...endOf(reported) }
  }
  return { columns: [...own, ...named.map(({ name }) => name), STATUS, ERROR], named, own, row }
}

/**
 * The typed columns of a run's results: every row is seen once before the first is written. An enriched column is what the output schema declares, unless a row that was kept from
 * another schema does not fit: then it is text. In a typed row `longhaul_error` is absent where there is none.
 *
 * @since 0.1.0
 */
export const survey = <A, I>(output: Schema.Schema<A, I>) => {
  const fields = fieldsOf(output)
  // In order of appearance: a refresh may have brought a column, and JSON rows need not have the same.
  const sources = new Map<string, Column.Kind | undefined>()
  const unfit = new Set<string>()
  return {
    see: (reported: ReportedRow<unknown>): void => {
      for (const [name, value] of Object.entries(reported.record)) {
        sources.set(name, Column.widen(sources.get(name), value))
      }
      const encoded = encodedOf(reported)
      if (Option.isNone(encoded)) return
      for (const { kind, name } of fields) if (!Column.fits(kind, fieldOf(name)(encoded.value))) unfit.add(name)
    },
    layout: () => {
      const { columns, named, own, row } = layout(output, [...sources.keys()])
      const typed: ReadonlyArray<Column.Column> = [
        ...own.map((name) => ({ name, kind: sources.get(name) ?? ("text" as const) })),
        ...named.map(({ field, kind, name }) => ({ name, kind: unfit.has(field) ? ("text" as const) : kind })),
        { name: STATUS, kind: "text" },
        { name: ERROR, kind: "text" }
      ]
      const typedRow = (reported: ReportedRow<unknown>): Row => {
        const cells = row(reported)
        return cells[ERROR] === "" ? { ...cells, [ERROR]: null } : cells
      }
      return { columns, row, typed, typedRow }
    }
  }
}

/** The fields of the output, with the kind that each declares. */
const fieldsOf = <A, I>(output: Schema.Schema<A, I>) =>
  SchemaAST.getPropertySignatures(SchemaAST.encodedBoundAST(output.ast)).map(
    ({ name, type }): Column.Column => ({ name: String(name), kind: Column.declared(type) })
  )

/** What the answer was parsed to, as it is stored. */
const encodedOf = ({ outcome }: ReportedRow<unknown>): Option.Option<unknown> =>
  Option.flatMap(outcome, (end) => Option.flatMap(Either.getRight(end), ({ parsed }) => Option.fromNullable(parsed)))

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
