/**
 * The command line: `run`, `resume`, `status`, `checkpoints`, `failures`, `export`. A value comes from its flag, else from the environment (`LONGHAUL_BUDGET`), else
 * from `longhaul.json` in the working directory (`{ "budget": 50 }`).
 *
 * @since 0.1.0
 */
import { readFileSync } from "node:fs"
import { resolve } from "node:path"
import { Args, CliConfig, Command, Options, ValidationError } from "@effect/cli"
import { Cause, Clock, Config, ConfigProvider, Console, Effect, Either, Option, Schema, Stream } from "effect"
import * as Sqlite from "../layers/Sqlite.ts"
import { Checkpointer } from "../services/Checkpointer.ts"
import { InputError, RunRefused } from "../services/Errors.ts"
import { budgetOf, configured, db, driftOf, forNewRun, forResume, paceOf } from "./CliFlags.ts"
import * as CliRun from "./CliRun.ts"
import * as Enrichment from "./Enrichment.ts"
import * as ExitCode from "./ExitCode.ts"
import * as JobFile from "./JobFile.ts"
import { count, money } from "./ProgressLine.ts"
import * as Report from "./Report.ts"

const runCommand = Command.make(
  "run",
  {
    job: Args.text({ name: "job" }).pipe(
      Args.withDescription("A module that default-exports Enrichment.make(…), .ts or .js")
    ),
    source: configured(
      Options.text("source").pipe(Options.withDescription("A .csv, .tsv or .jsonl file, or sqlite:<file>#<table>")),
      Config.string("source")
    ),
    query: Options.text("query").pipe(
      Options.withDescription("A select, with --source sqlite:<file>"),
      Options.optional
    ),
    chunkSize: configured(
      Options.integer("chunk-size").pipe(Options.withDescription("Rows a checkpoint (default the job's)")),
      Config.integer("chunkSize")
    ),
    runId: Options.text("run-id").pipe(
      Options.withDescription("The run's id; one that exists is continued"),
      Options.optional
    ),
    scope: configured(
      Options.text("scope").pipe(
        Options.withDescription("What stored results are shared over (default the job's name)")
      ),
      Config.string("scope")
    ),
    ...forNewRun
  },
  (flags) => {
    const settings: CliRun.Settings = {
      job: resolve(flags.job),
      llm: Option.getOrElse(flags.llm, () => "openai" as const),
      source: Option.getOrUndefined(Option.map(flags.source, absolute)),
      query: Option.getOrUndefined(flags.query),
      model: Option.getOrUndefined(flags.model),
      scope: Option.getOrUndefined(flags.scope),
      chunkSize: Option.getOrUndefined(flags.chunkSize),
      out: Option.getOrUndefined(Option.map(flags.out, (out) => resolve(out))),
      ...paceOf(flags)
    }
    return withDb(
      flags.db,
      true,
      Effect.flatMap(driftOf(flags), (onDrift) =>
        CliRun.execute({
          settings,
          db: flags.db,
          runId: Option.getOrUndefined(flags.runId),
          budget: budgetOf(flags),
          retry: undefined,
          onDrift,
          graceMs: flags.grace * 1000
        })
      )
    )
  }
).pipe(Command.withDescription("Run a job over its rows"))

const runIdArg = Args.text({ name: "runId" }).pipe(
  Args.withDescription("Default: the only unfinished run"),
  Args.optional
)

const resumeCommand = Command.make(
  "resume",
  {
    runId: runIdArg,
    retry: Options.choice("retry", ["transient", "none", "failed", "partial", "all"]).pipe(
      Options.withDescription("Which ended rows run again (default: failed by a passing error)"),
      Options.withDefault("transient" as const)
    ),
    ...forResume
  },
  (flags) =>
    withDb(
      flags.db,
      false,
      Effect.gen(function* () {
        const runId = yield* chosen(flags.runId)
        const kept = yield* settingsOf(runId)
        const settings: CliRun.Settings = {
          ...kept,
          llm: Option.getOrElse(flags.llm, () => kept.llm),
          model: Option.getOrElse(flags.model, () => kept.model),
          out: Option.match(flags.out, { onNone: () => kept.out, onSome: (out) => resolve(out) }),
          ...paceOf(flags, kept)
        }
        return yield* CliRun.execute({
          settings,
          db: flags.db,
          runId,
          budget: budgetOf(flags),
          retry: flags.retry,
          onDrift: yield* driftOf(flags),
          graceMs: flags.grace * 1000
        })
      })
    )
).pipe(Command.withDescription("Continue a run that was stopped or killed"))

const statusCommand = Command.make(
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

const checkpointsCommand = Command.make("checkpoints", { runId: runIdArg, db }, ({ db, runId }) =>
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

const failuresCommand = Command.make(
  "failures",
  {
    runId: runIdArg,
    db,
    partial: Options.boolean("partial").pipe(Options.withDescription("Rows whose answer could not be read, too"))
  },
  ({ db, partial, runId }) =>
    withDb(
      db,
      false,
      Effect.gen(function* () {
        const id = yield* chosen(runId)
        yield* Stream.runForEach(Enrichment.results(id, Schema.Unknown), (row) => {
          const line = Option.flatMap(row.outcome, (outcome) => failureLine(row.id, outcome, partial))
          return Option.match(line, { onNone: () => Effect.void, onSome: (text) => Console.log(text) })
        })
        return ExitCode.DONE
      })
    )
).pipe(Command.withDescription("The rows that failed, one a line"))

const failureLine = (
  id: string,
  outcome: Option.Option.Value<Report.ReportedRow<unknown>["outcome"]>,
  partial: boolean
): Option.Option<string> =>
  Either.match(outcome, {
    onLeft: ({ category, message, reason, source }) =>
      Option.some(`${id}\t${source}\t${reason}\t${category}\t${oneLine(message)}`),
    onRight: (result) =>
      partial && result.partial
        ? Option.some(`${id}\tagent\tpartial\tPERMANENT\t${oneLine(result.output)}`)
        : Option.none()
  })

/** Nothing that a model or a provider said may move the cursor or start a new line. */
const oneLine = (text: string): string => text.replace(/[\p{Cc}\p{Cf}\u2028\u2029]+/gu, " ").slice(0, 300)

const exportCommand = Command.make(
  "export",
  {
    runId: runIdArg,
    db,
    raw: Options.boolean("raw").pipe(
      Options.withDescription("Leave text that a spreadsheet would run as a formula as it is")
    ),
    out: Options.text("out").pipe(Options.withAlias("o"), Options.withDescription("The file: .csv, .tsv or .jsonl"))
  },
  ({ db, out, raw, runId }) =>
    withDb(
      db,
      false,
      Effect.gen(function* () {
        const id = yield* chosen(runId)
        const { job } = yield* JobFile.load((yield* settingsOf(id)).job)
        const rows = yield* CliRun.exportRun(job, id, out, raw)
        yield* Console.log(`${count(rows)} rows: ${out}`)
        return ExitCode.DONE
      })
    )
).pipe(Command.withDescription("Write a run's rows to a file, as far as it is"))

const absolute = (source: string): string =>
  source.startsWith("sqlite:") ? `sqlite:${resolve(source.slice("sqlite:".length))}` : resolve(source)

/** The run that is meant: the one named, else the only one that is not done. */
const chosen = (runId: Option.Option<string>) =>
  Option.match(runId, {
    onSome: Effect.succeed,
    onNone: () =>
      Effect.flatMap(Report.runs, (runs) => {
        const open = runs.filter((run) => run.status !== "done")
        const [only] = open.length === 1 ? open : runs.length === 1 ? runs : []
        if (only !== undefined) return Effect.succeed(only.runId)
        const names = (open.length === 0 ? runs : open).map((run) => run.runId).join(", ")
        const which = open.length === 0 ? "no run is unfinished; name one" : "several runs are unfinished; name one"
        const message = runs.length === 0 ? "there is no run in this database" : `${which}: ${names}`
        return new RunRefused({ reason: "not_found", message })
      })
  })

const settingsOf = (runId: string) =>
  Effect.flatMap(Report.bookOf(runId), (book) =>
    Effect.mapError(
      Schema.decode(CliRun.SettingsJson)(book.settings),
      () =>
        new RunRefused({
          reason: "wrong_job",
          message: `run ${runId} was started by a program, not by this command: resume it there`
        })
    )
  )

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
  const { cap, done, failed, held, partial, pending, reason, rows, runId, spent, status, uncertain } = totals
  const lines = [
    `run ${runId}: ${status}${reason === null ? "" : ` (${reason.message})`}`,
    `rows: ${count(rows)}: ${count(done)} done, ${count(partial)} partial, ${count(failed)} failed, ${count(pending)} pending`,
    `money: ${money(spent)} spent, ${money(uncertain)} uncertain, ${money(held)} held${cap === null ? ", no cap" : ` of ${money(cap)}`}`,
    `calls: ${count(totals.calls)}: ${count(totals.retries)} retries, ${count(totals.repairs)} repairs, ${count(totals.replays)} answers replayed, ${count(totals.storeHits)} results from the store`,
    Option.match(ageOf(last, now), {
      onNone: () => "last checkpoint: none",
      onSome: (one) =>
        `last checkpoint: version ${one.version} (${count(one.rows)} rows, ${money(one.spent)} spent, ${one.ageSeconds} s ago)`
    })
  ]
  return lines.join("\n")
}

/** Runs a command's work on the database and sets its exit code; an operator's error is one line, never a trace. */
const withDb = <E extends { readonly _tag: string; readonly message: string }, R>(
  filename: string,
  create: boolean,
  work: Effect.Effect<number, E, R>
) =>
  Effect.provide(work, Sqlite.layer({ filename, create })).pipe(
    Effect.catchAll((error) => Effect.as(Console.error(errorText(error)), ExitCode.ofError(error))),
    Effect.flatMap(setCode)
  )

const errorText = (error: { readonly message: string; readonly fix?: string }): string =>
  `error: ${error.message}${error.fix === undefined ? "" : `\nfix: ${error.fix}`}`

const command = Command.make("longhaul").pipe(
  Command.withDescription("Long, budgeted, crash-safe LLM batch runs"),
  Command.withSubcommands([
    runCommand,
    resumeCommand,
    statusCommand,
    checkpointsCommand,
    failuresCommand,
    exportCommand
  ])
)

/**
 * The command line as a program over `argv`.
 *
 * @since 0.1.0
 */
export const main = (argv: ReadonlyArray<string>, version: string) =>
  Effect.flatMap(fileConfig, (file) =>
    Command.run(command, { name: "longhaul", version })(argv).pipe(
      Effect.withConfigProvider(
        ConfigProvider.orElse(ConfigProvider.constantCase(ConfigProvider.fromEnv()), () =>
          ConfigProvider.fromJson({ longhaul: file })
        )
      )
    )
  ).pipe(
    Effect.provide(CliConfig.layer({ showBuiltIns: false })),
    Effect.catchIf(ValidationError.isValidationError, (error) =>
      Effect.sync(() => {
        // The text was printed already; only the code is missing.
        process.exitCode = ValidationError.isHelpRequested(error) ? ExitCode.DONE : ExitCode.BAD_INPUT
      })
    ),
    Effect.catchTag("InputError", (error) =>
      Effect.zipRight(Console.error(errorText(error)), setCode(ExitCode.BAD_INPUT))
    ),
    Effect.catchAllDefect((defect) =>
      Effect.zipRight(
        Console.error(`internal error, please report it: ${Cause.pretty(Cause.die(defect))}`),
        setCode(ExitCode.INTERNAL)
      )
    )
  )

const setCode = (code: number) =>
  Effect.sync(() => {
    process.exitCode = code
  })

/** `longhaul.json` of the working directory, if there is one. */
const fileConfig = Effect.suspend(() => {
  const text = Either.try(() => readFileSync("longhaul.json", "utf8"))
  if (Either.isLeft(text)) return Effect.succeed({})
  return Effect.mapError(
    Schema.decode(Schema.parseJson(Schema.Record({ key: Schema.String, value: Schema.Unknown })))(text.right),
    () =>
      new InputError({
        reason: "malformed",
        file: "longhaul.json",
        message: "longhaul.json is not a JSON object",
        fix: "mend it, or remove it"
      })
  )
})
