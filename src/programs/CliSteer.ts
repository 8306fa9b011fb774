/**
 * The commands that steer a run: `pause`, `unpause`, `approve`, `drain`, `cancel`, `set`, `requeue`. Each ends at once; its order is in the run's database. Internal to the command line.
 *
 * @since 0.1.0
 */
import { hostname, userInfo } from "node:os"
import { Args, Command, Options } from "@effect/cli"
import { Console, Effect, Either, Option } from "effect"
import { InputError } from "../services/Errors.ts"
import { budgetOf, db, forSet } from "./CliFlags.ts"
import { chosen, runIdArg, withDb } from "./CliShared.ts"
import * as ExitCode from "./ExitCode.ts"
import { count, money, oneLine } from "./ProgressLine.ts"
import type { Totals } from "./Report.ts"
import * as Steering from "./Steering.ts"
import * as Watch from "./Watch.ts"

/** Who types, for the record. A user without a name (in a container) has a number. */
const by = `${Either.getOrElse(
  Either.try(() => userInfo().username),
  () => `uid ${process.getuid?.() ?? "?"}`
)}@${hostname()}`

/** Whether somebody works on the run, and what to do if not. */
const workedOn = (runId: string, db: string) =>
  Effect.map(Watch.look(runId), ({ status, worker }) =>
    Option.match(worker, {
      onSome: ({ host, pid }) => `process ${pid} on ${oneLine(host)} works on it`,
      onNone: () =>
        status === "done" || status === "cancelled"
          ? `see longhaul receipt ${runId} --db ${db}`
          : `nobody works on it now; go on with: longhaul resume ${runId} --db ${db}`
    })
  )

const verb = (
  name: string,
  description: string,
  order: (runId: string, options: Steering.SteerOptions) => Steering.Steered,
  said: (totals: Totals, db: string) => string
) =>
  Command.make(name, { runId: runIdArg, db }, ({ db, runId }) =>
    withDb(
      db,
      false,
      Effect.gen(function* () {
        const id = yield* chosen(runId)
        const totals = yield* order(id, { by })
        yield* Console.log(`${said(totals, db)}\n${yield* workedOn(id, db)}`)
        return ExitCode.DONE
      })
    )
  ).pipe(Command.withDescription(description))

const left = ({ pending, rows }: Totals) => `${count(pending)} of ${count(rows)} rows are pending`

const pauseCommand = Command.make(
  "pause",
  {
    runId: runIdArg,
    db,
    message: Options.text("message").pipe(
      Options.withAlias("m"),
      Options.withDescription("Why, for whoever looks"),
      Options.optional
    )
  },
  ({ db, message, runId }) =>
    withDb(
      db,
      false,
      Effect.gen(function* () {
        const id = yield* chosen(runId)
        const why = Option.match(message, { onNone: () => ({}), onSome: (message) => ({ message }) })
        const totals = yield* Steering.pause(id, { by, ...why })
        yield* Console.log(
          `run ${id} is paused: no call begins; calls in flight end. ${left(totals)}\n${yield* workedOn(id, db)}\nunpause with: longhaul unpause ${id} --db ${db}`
        )
        return ExitCode.DONE
      })
    )
).pipe(Command.withDescription("Let no call begin, until unpause; also after a crash"))

const setCommand = Command.make("set", { runId: runIdArg, ...forSet }, (flags) =>
  withDb(
    flags.db,
    false,
    Effect.gen(function* () {
      const id = yield* chosen(flags.runId)
      const limits = budgetOf(flags)
      if (!limits.noCap && Object.values(limits).every((value) => value === undefined || value === false)) {
        return yield* new InputError({
          reason: "bad_option",
          message: "nothing to set",
          fix: "name at least one of --budget, --no-cap, --max-calls, --concurrency, --rpm, --tpm"
        })
      }
      const { cap, maxCalls, maxConcurrency, runId, spent, uncertain } = yield* Steering.set(id, limits, { by })
      const calls = maxCalls === null ? "" : `, at most ${count(maxCalls)} calls`
      yield* Console.log(
        `run ${runId}: ${cap === null ? "no cap" : `cap ${money(cap)}`}${calls}, ${count(maxConcurrency)} at once; ${money(spent)} spent, ${money(uncertain)} uncertain\n${yield* workedOn(id, flags.db)}`
      )
      return ExitCode.DONE
    })
  )
).pipe(Command.withDescription("Other limits, while the run goes on"))

const requeueCommand = Command.make(
  "requeue",
  {
    runId: Args.text({ name: "runId" }),
    rows: Args.text({ name: "row" }).pipe(Args.withDescription("The ids of rows that ended"), Args.repeated),
    db,
    failed: Options.boolean("failed").pipe(Options.withDescription("All rows that failed")),
    partial: Options.boolean("partial").pipe(Options.withDescription("All rows whose answer could not be read"))
  },
  ({ db, failed, partial, rows, runId }) =>
    withDb(
      db,
      false,
      Effect.gen(function* () {
        if ([failed, partial, rows.length > 0].filter(Boolean).length !== 1) {
          return yield* new InputError({
            reason: "bad_option",
            message: "requeue takes rows, or --failed, or --partial",
            fix: `longhaul requeue ${runId} <row…>`
          })
        }
        const queued = yield* Steering.requeue(runId, failed ? "failed" : partial ? "partial" : { rows }, { by })
        yield* Console.log(
          queued === 0
            ? "no such row: nothing was queued"
            : `${count(queued)} ${queued === 1 ? "row is" : "rows are"} queued again\n${yield* workedOn(runId, db)}`
        )
        return ExitCode.DONE
      })
    )
).pipe(Command.withDescription("Run rows that ended again"))

/** @since 0.1.0 */
export const commands = [
  pauseCommand,
  verb(
    "unpause",
    "Let calls begin again",
    Steering.unpause,
    (totals) => `run ${totals.runId} is not paused: ${left(totals)}`
  ),
  verb("approve", "Accept what the canary or a detector found, and go on", Steering.approve, ({ paused, runId }) =>
    paused === null
      ? `run ${runId} is approved`
      : `run ${runId} is approved, and still paused: ${oneLine(paused.message)}`
  ),
  verb(
    "drain",
    "Let calls in flight end, then stop; resume goes on",
    Steering.drain,
    (totals) => `run ${totals.runId} stops once its calls in flight have ended. ${left(totals)}`
  ),
  verb(
    "cancel",
    "Give a run up for good; what is done stays",
    Steering.cancel,
    (totals) => `run ${totals.runId} is cancelled: ${money(totals.spent)} spent, ${left(totals)} and stay so`
  ),
  setCommand,
  requeueCommand
] as const
