/**
 * The commands that look after a run: `refresh` (its source changed), `reconcile` (what an uncertain call cost), `doctor` (is everything sound?). Internal to the command line.
 *
 * @since 0.1.0
 */
import { existsSync } from "node:fs"
import { resolve } from "node:path"
import { Command, Options } from "@effect/cli"
import { Chunk, Clock, Console, Effect, Option, Schema, Stream } from "effect"
import * as Rows from "../layers/Rows.ts"
import * as Sqlite from "../layers/Sqlite.ts"
import { InputError } from "../services/Errors.ts"
import { type Finding, failed, fine, warning } from "../services/Finding.ts"
import { readCells } from "../services/RowSource.ts"
import { Usd } from "../services/Usd.ts"
import { db } from "./CliFlags.ts"
import { chosen, runIdArg, setCode, settingsOf, withDb } from "./CliShared.ts"
import * as Doctor from "./Doctor.ts"
import * as ExitCode from "./ExitCode.ts"
import * as JobFile from "./JobFile.ts"
import * as JobSettings from "./JobSettings.ts"
import { count, money, oneLine } from "./ProgressLine.ts"
import * as Reconcile from "./Reconcile.ts"
import * as Refresh from "./Refresh.ts"

/** A run's rows against its source. @since 0.1.0 */
export const refreshCommand = Command.make(
  "refresh",
  {
    runId: runIdArg,
    db,
    apply: Options.boolean("apply").pipe(
      Options.withDescription("Add new rows to the run, and let changed ones run again at the next resume")
    )
  },
  ({ apply, db, runId }) =>
    withDb(
      db,
      false,
      Effect.gen(function* () {
        const id = yield* chosen(runId)
        const settings = yield* settingsOf(id)
        const job = yield* JobSettings.overridden((yield* JobFile.load(settings.job)).job, settings)
        const difference = yield* Refresh.refresh(job, { runId: id, apply })
        yield* Console.log(differenceText(difference, id, db, apply))
        return ExitCode.DONE
      })
    )
).pipe(Command.withDescription("What changed in a run's source since its rows were listed"))

const differenceText = (difference: Refresh.Difference, runId: string, db: string, applied: boolean): string => {
  const { added, changed, kept, moved, removed, same, unended, updated } = difference
  const line = (ids: ReadonlyArray<string>, what: string) =>
    ids.length === 0
      ? []
      : [`${count(ids.length)} ${what}: ${ids.slice(0, 10).map(oneLine).join(", ")}${ids.length > 10 ? ", …" : ""}`]
  const lines = [
    ...line(added, "new"),
    ...line(changed, "changed, to be run again"),
    ...line(updated, "changed, without effect on what is asked, or still pending"),
    ...line(removed, "gone and never asked, to be dropped"),
    ...line(kept, "gone, with a result that stays"),
    ...line(unended, "gone, but asked before and not ended: still to be asked"),
    ...(moved === 0 ? [] : [`${count(moved)} in another order; the run keeps its own`]),
    `${count(same)} as they were`
  ]
  const isWork = added.length + changed.length + updated.length + removed.length > 0
  if (applied) lines.push(`next: longhaul resume ${runId} --db ${db}`)
  else if (isWork) lines.push(`nothing was changed; next: longhaul refresh ${runId} --db ${db} --apply`)
  return lines.join("\n")
}

/** What uncertain calls cost in truth. @since 0.1.0 */
export const reconcileCommand = Command.make(
  "reconcile",
  {
    runId: runIdArg,
    db,
    usage: Options.text("usage").pipe(
      Options.withDescription(
        "A .csv with the provider's figures: call or request_id, and cost_usd, or input_tokens and output_tokens; perhaps cached_tokens, note"
      ),
      Options.optional
    )
  },
  ({ db, runId, usage }) =>
    withDb(
      db,
      false,
      Effect.gen(function* () {
        const id = yield* chosen(runId)
        if (Option.isNone(usage)) return yield* listUncertain(id)
        const { calls, released } = yield* Reconcile.reconcile(id, yield* findingsIn(usage.value))
        const change = released >= 0 ? `${money(Usd.nano(released))} less` : `${money(Usd.nano(-released))} more`
        yield* Console.log(`${count(calls)} calls are exact now; the run counts ${change}`)
        return ExitCode.DONE
      })
    )
).pipe(Command.withDescription("List a run's uncertain calls, or say what they cost in truth"))

const listUncertain = (runId: string) =>
  Effect.gen(function* () {
    const calls = yield* Reconcile.uncertain(runId)
    const total = calls.reduce((sum, { counted }) => Usd.add(sum, counted), Usd.zero)
    yield* Console.error(`${count(calls.length)} uncertain calls, counted at ${money(total)}`)
    yield* Console.log("call,request_id,row,model,sent_at,counted_usd,reason,cost_usd")
    for (const { at, call, counted, model, reason, requestId, seq } of calls) {
      const row = seq < 0 ? "" : String(seq + 1)
      const id = oneLine(Option.getOrElse(requestId, () => ""))
      const cells = [
        call,
        id,
        row,
        oneLine(model),
        new Date(at).toISOString(),
        Usd.toDollars(counted).toFixed(9),
        reason,
        ""
      ]
      yield* Console.log(cells.map(cellOf).join(","))
    }
    return ExitCode.DONE
  })

const cellOf = (text: string): string => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text)

const optionalNumber = Schema.optionalWith(Schema.NonNegative, { exact: true })
const optionalText = Schema.optionalWith(Schema.String, { exact: true })
const Figures = Schema.Struct({
  call: optionalText,
  request_id: optionalText,
  cost_usd: optionalNumber,
  input_tokens: optionalNumber,
  output_tokens: optionalNumber,
  cached_tokens: optionalNumber,
  note: optionalText
})

const isCells = Schema.is(Schema.Record({ key: Schema.String, value: Schema.String }))

const findingsIn = (file: string) =>
  Effect.gen(function* () {
    const decode = Schema.decodeUnknown(Figures)
    const cells = readCells(Figures)
    const findings = Stream.mapEffect(Rows.csv(resolve(file)).rows, ({ line, value }) =>
      decode(isCells(value) ? cells(value) : value).pipe(
        Effect.flatMap((figures) => findingOf(file, line, figures)),
        Effect.catchTag("ParseError", (error) => misfit(file, line, error.message))
      )
    )
    const found = yield* Stream.runCollect(findings)
    // A line of the list that nobody filled in says nothing; a file of such lines has another column.
    const filled = Chunk.toReadonlyArray(Chunk.compact(found))
    if (filled.length > 0 || Chunk.isEmpty(found)) return filled
    return yield* misfit(file, 1, "no line has a cost_usd, or input_tokens and output_tokens")
  })

const findingOf = (file: string, line: number, figures: typeof Figures.Type) => {
  const { cached_tokens, call, cost_usd, input_tokens, note, output_tokens, request_id } = figures
  if (cost_usd === undefined && input_tokens === undefined && output_tokens === undefined) return Effect.succeedNone
  if (call === undefined && request_id === undefined)
    return misfit(file, line, "neither call nor request_id says which call is meant")
  const usage =
    input_tokens === undefined || output_tokens === undefined
      ? undefined
      : {
          inputTokens: input_tokens,
          outputTokens: output_tokens,
          cachedTokens: cached_tokens ?? 0,
          cacheWriteTokens: 0,
          reasoningTokens: 0
        }
  const cost = cost_usd === undefined ? undefined : Usd.fromDollars(cost_usd)
  if (cost_usd !== undefined && cost === undefined) return misfit(file, line, `${cost_usd} is no amount of dollars`)
  return Effect.succeedSome<Reconcile.Finding>({ call, requestId: request_id, cost, usage, note })
}

const misfit = (file: string, line: number, problem: string) =>
  new InputError({ reason: "bad_row", file, line, message: `${file}, line ${line}: ${problem}` })

/** Whether all that the promises rest on is so. @since 0.1.0 */
export const doctorCommand = Command.make("doctor", { db }, ({ db }) =>
  Effect.gen(function* () {
    const findings: ReadonlyArray<Finding> = [...(yield* machine(db)), ...(yield* inDatabase(db))]
    for (const { detail, name, state } of findings) yield* Console.log(`${marks[state]} ${name}: ${detail}`)
    const bad = findings.filter(({ state }) => state === "failed").length
    yield* Console.log(bad === 0 ? "everything that was looked at is sound" : `${bad} of ${findings.length} failed`)
    yield* setCode(bad === 0 ? ExitCode.DONE : ExitCode.STORAGE)
  })
).pipe(Command.withDescription("Check the database, its runs, the machine and the provider's adapter; changes nothing"))

const marks = { ok: "ok     ", warning: "warning", failed: "FAILED " }

const machine = (db: string) =>
  Effect.gen(function* () {
    const checks = yield* Effect.promise(() => import("../layers/SelfCheck.ts"))
    const now = yield* Clock.currentTimeMillis
    return [Doctor.prices(now), ...checks.files(resolve(db)), yield* checks.oneRequest]
  })

const inDatabase = (db: string) => {
  if (!existsSync(db)) return Effect.succeed([warning("database", `there is no ${db} yet`)])
  return Effect.provide(Doctor.database, Sqlite.layer({ filename: db, create: false })).pipe(
    Effect.map((findings) => [fine("commits", "journal_mode wal, synchronous full"), ...findings]),
    Effect.catchAll((error) => Effect.succeed([failed("database", error.message)]))
  )
}
