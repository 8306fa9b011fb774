/**
 * A run's rows as a file or a table. Internal to the doors.
 *
 * @since 0.1.0
 */
import { existsSync, realpathSync } from "node:fs"
import { dirname, resolve } from "node:path"
import { Effect, Schema, Stream } from "effect"
import * as Export from "../layers/Export.ts"
import { InputError } from "../services/Errors.ts"
import * as Enrichment from "./Enrichment.ts"
import type { Job } from "./Job.ts"
import * as Report from "./Report.ts"
import * as ResultRows from "./ResultRows.ts"
import * as RunRecord from "./RunRecord.ts"

/** A result that cannot be written is found before anything is paid for. @since 0.1.0 */
export const checkOut = (out: string | undefined) =>
  Effect.gen(function* () {
    if (out === undefined) return
    const target = yield* Export.target(out)
    if (!existsSync(dirname(target.file))) {
      const message = `--out ${out}: its directory does not exist`
      return yield* new InputError({ reason: "bad_option", file: target.file, message })
    }
    if (target.kind === "sqlite") yield* (yield* tables).check(target.file, target.table)
  })

/** A result never takes the place of the rows that it was made from. @since 0.1.0 */
export const apart = (source: string, out: string) =>
  Effect.suspend(() =>
    realOf(source) === realOf(out)
      ? new InputError({
          reason: "bad_option",
          file: out,
          message: `the results would be written over the source ${source}`,
          fix: "name another file with --out"
        })
      : Effect.void
  )

/** Where a run's results go if nobody names a file: its own name, unless that is the source's. @since 0.1.0 */
export const defaultOut = (runId: string, source: string): string =>
  realOf(source) === realOf(`${runId}.csv`) ? `${runId}-results.csv` : `${runId}.csv`

const realOf = (path: string): string => (existsSync(path) ? realpathSync(path) : resolve(path))

// What most runs do not need is not loaded.
const tables = Effect.promise(() => import("../layers/ExportSql.ts"))
const parquet = Effect.promise(() => import("../layers/Parquet.ts"))

/** `asOf`: a checkpoint's version. @since 0.1.0 */
export interface ExportRunOptions {
  readonly raw?: boolean
  readonly asOf?: number | undefined
}

/**
 * Writes a run's rows to a file or a table, in input order, and gives their number. In CSV, text that a spreadsheet would run as a formula is made safe unless `raw`.
 *
 * @since 0.1.0
 */
export const exportRun = (
  job: Job<unknown, unknown>,
  runId: string,
  out: string,
  { asOf, raw = false }: ExportRunOptions = {}
) =>
  Effect.gen(function* () {
    const target = yield* Export.target(out)
    yield* apart(RunRecord.sourceLocation(yield* Report.bookOf(runId)), out)
    // As they are stored: rows that were kept over a change of the schema are exported too.
    const rows = Enrichment.results(runId, Schema.Unknown, { asOf })
    const survey = ResultRows.survey(job.agent.output)
    yield* Stream.runForEach(rows, (row) => Effect.sync(() => survey.see(row)))
    const { columns, row, typed, typedRow } = survey.layout()
    switch (target.kind) {
      case "parquet":
        return yield* (yield* parquet).write(target.file, typed, Stream.map(rows, typedRow))
      case "sqlite":
        return yield* (yield* tables).write(target.file, target.table, typed, Stream.map(rows, typedRow))
      default:
        return yield* Export.write(target.file, columns, Stream.map(rows, row), { raw })
    }
  })
