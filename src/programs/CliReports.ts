/**
 * The commands that read: `status`, `checkpoints`, `export`. Internal to the command line.
 *
 * @since 0.1.0
 */
import { Command, Options } from "@effect/cli"
import { Clock, Console, Effect, Option } from "effect"
import { TARGETS } from "../layers/Export.ts"
import { Checkpointer } from "../services/Checkpointer.ts"
import { asOf, db } from "./CliFlags.ts"
import { chosen, runIdArg, settingsOf, withDb } from "./CliShared.ts"
import * as ExitCode from "./ExitCode.ts"
import * as JobFile from "./JobFile.ts"
import { count, money, oneLine } from "./ProgressLine.ts"
import * as Report from "./Report.ts"
import * as RunExport from "./RunExport.ts"

/** Where a run stands. @since 0.1.0 */
export const statusCommand = Command.make(
  "status",
  { runId: runIdArg, db, json: Options.boolean("json").pipe(Options.withDescription("One JSON object")) },
  ({ db, json, runId }) =>
    withDb(
      db,
      false,
      Effect.gen(function* () {
        const totals = yield* Report.status(yield* chosen(runId))
        const last = yield* Report.lastCheckpoint(totals.runId)
        const now = yield* Clock.currentTimeMillis
        yield* Console.log(json ? statusJson(totals, last, now) : statusText(totals, last, now))
        return ExitCode.DONE
      })
    )
).pipe(Command.withDescription("Where a run stands"))

/** A run's checkpoints. @since 0.1.0 */
export const checkpointsCommand = Command.make("checkpoints", { runId: runIdArg, db }, ({ db, runId }) =>
  withDb(
    db,
    false,
    Effect.gen(function* () {
      const id = yield* chosen(runId)
      const checkpointer = yield* Checkpointer
      for (const version of yield* checkpointer.listVersions(id)) {
        const found = yield* checkpointer.get(id, version, Report.Progress)
        if (Option.isNone(found)) continue
        const { at, state, status } = found.value
        const rows = state.done + state.partial + state.failed
        yield* Console.log(
          `${String(version).padStart(5)}  ${status.padEnd(9)}  ${count(rows)} rows  ${money(state.spent)} spent  ${new Date(at).toISOString()}`
        )
      }
      return ExitCode.DONE
    })
  )
).pipe(Command.withDescription("The checkpoints of a run"))

/** A run's rows as a file or a table. @since 0.1.0 */
export const exportCommand = Command.make(
  "export",
  {
    runId: runIdArg,
    db,
    asOf,
    raw: Options.boolean("raw").pipe(
      Options.withDescription("Leave text that a spreadsheet would run as a formula as it is")
    ),
    out: Options.text("out").pipe(Options.withAlias("o"), Options.withDescription(`Where to: ${TARGETS}`))
  },
  ({ asOf, db, out, raw, runId }) =>
    withDb(
      db,
      false,
      Effect.gen(function* () {
        const id = yield* chosen(runId)
        const { job } = yield* JobFile.load((yield* settingsOf(id)).job)
        const rows = yield* RunExport.exportRun(job, id, out, { raw, asOf: Option.getOrUndefined(asOf) })
        yield* Console.log(`${count(rows)} rows: ${out}`)
        return ExitCode.DONE
      })
    )
).pipe(Command.withDescription("Write a run's rows to a file or a SQL table, as far as it is"))

type Last = Effect.Effect.Success<ReturnType<typeof Report.lastCheckpoint>>

const ageOf = (last: Last, now: number) =>
  Option.map(last, ({ at, state, status, version }) => ({
    version,
    status,
    rows: state.done + state.partial + state.failed,
    spent: state.spent,
    ageSeconds: Math.max(0, Math.round((now - at) / 1000))
  }))

const statusJson = (totals: Report.Totals, last: Last, now: number): string =>
  JSON.stringify({ ...totals, checkpoint: Option.getOrNull(ageOf(last, now)) }, null, 2)

const statusText = (totals: Report.Totals, last: Last, now: number): string => {
  const { cap, done, failed, held, kept, partial, paused, pending, reason, rows, runId, spent, status, uncertain } =
    totals
  const lines = [
    `run ${runId}: ${status}${reason === null ? "" : ` (${oneLine(reason.message)})`}${paused === null ? "" : `, ${oneLine(paused.message)}`}`,
    `rows: ${count(rows)}: ${count(done)} done, ${count(partial)} partial, ${count(failed)} failed, ${count(pending)} pending`,
    `money: ${money(spent)} spent, ${money(uncertain)} uncertain, ${money(held)} held${cap === null ? ", no cap" : ` of ${money(cap)}`}`,
    `calls: ${count(totals.calls)}: ${count(totals.retries)} retries, ${count(totals.repairs)} repairs, ${count(totals.replays)} answers replayed, ${count(totals.storeHits)} results from the store`,
    ...(kept === 0 ? [] : [`mixed: ${count(kept)} rows were done with another prompt, schema, model or parameter`]),
    Option.match(ageOf(last, now), {
      onNone: () => "last checkpoint: none",
      onSome: (one) =>
        `last checkpoint: version ${one.version} (${count(one.rows)} rows, ${money(one.spent)} spent, ${one.ageSeconds} s ago)`
    })
  ]
  return lines.join("\n")
}
