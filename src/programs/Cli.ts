/**
 * The command line: `run` and `resume`; the commands that read and repair stand in files of their own. A value comes from its flag, else from the environment (`LONGHAUL_BUDGET`), else
 * from `longhaul.json` in the working directory (`{ "budget": 50 }`).
 *
 * @since 0.1.0
 */
import { readFileSync } from "node:fs"
import { resolve } from "node:path"
import { Args, CliConfig, Command, Options, ValidationError } from "@effect/cli"
import { Cause, Config, ConfigProvider, Console, Effect, Either, Option, Schema } from "effect"
import { InputError } from "../services/Errors.ts"
import { failuresCommand, receiptCommand } from "./CliBill.ts"
import { budgetOf, configured, driftOf, forNewRun, forResume, wireOf } from "./CliFlags.ts"
import * as CliPlan from "./CliPlan.ts"
import { doctorCommand, reconcileCommand, refreshCommand } from "./CliRepairs.ts"
import { checkpointsCommand, exportCommand, statusCommand } from "./CliReports.ts"
import * as CliRun from "./CliRun.ts"
import { serveCommand } from "./CliServe.ts"
import { chosen, runIdArg, sayError, sayJsonError, setCode, settingsOf, withDb } from "./CliShared.ts"
import * as CliSteer from "./CliSteer.ts"
import * as CliVerify from "./CliVerify.ts"
import { watchCommand } from "./CliWatch.ts"
import type * as Enrichment from "./Enrichment.ts"
import * as ExitCode from "./ExitCode.ts"
import type * as JobSettings from "./JobSettings.ts"

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
    canary: configured(
      Options.integer("canary").pipe(
        Options.withDescription("Run so many rows first; go on if nothing looks wrong, else wait for approve")
      ),
      Config.integer("canary")
    ),
    ...forNewRun
  },
  (flags) => {
    const settings: JobSettings.Settings = {
      job: resolve(flags.job),
      llm: Option.getOrElse(flags.llm, () => "openai" as const),
      source: Option.getOrUndefined(Option.map(flags.source, absolute)),
      query: Option.getOrUndefined(flags.query),
      model: Option.getOrUndefined(flags.model),
      scope: Option.getOrUndefined(flags.scope),
      chunkSize: Option.getOrUndefined(flags.chunkSize),
      out: Option.getOrUndefined(Option.map(flags.out, absolute)),
      ...wireOf(flags)
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
          reread: false,
          acceptLoss: flags.acceptLoss,
          canary: Option.getOrUndefined(flags.canary),
          onDrift,
          graceMs: flags.grace * 1000,
          json: flags.json
        })
      )
    )
  }
).pipe(Command.withDescription("Run a job over its rows"))

const resumeCommand = Command.make(
  "resume",
  {
    runId: runIdArg,
    retry: Options.text("retry").pipe(
      Options.withDescription(
        "Which ended rows run again: failed, partial, all, none, or a row's id, once for each (default: failed by a passing error)"
      ),
      Options.repeated
    ),
    reread: Options.boolean("reread").pipe(
      Options.withDescription("First read paid answers again with the job's present schema and parser, for nothing")
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
        const settings: JobSettings.Settings = {
          ...kept,
          llm: Option.getOrElse(flags.llm, () => kept.llm),
          model: Option.getOrElse(flags.model, () => kept.model),
          out: Option.match(flags.out, { onNone: () => kept.out, onSome: absolute }),
          ...wireOf(flags, kept)
        }
        return yield* CliRun.execute({
          settings,
          db: flags.db,
          runId,
          budget: budgetOf(flags),
          retry: yield* retryOf(flags.retry),
          reread: flags.reread,
          acceptLoss: flags.acceptLoss,
          canary: undefined,
          onDrift: yield* driftOf(flags),
          graceMs: flags.grace * 1000,
          json: flags.json
        })
      })
    )
).pipe(Command.withDescription("Continue a run that was stopped or killed"))

const kinds = ["transient", "none", "failed", "partial", "all"] as const

/** One of the words, or the ids of rows; `row:failed` is the row of that id. */
const retryOf = (asked: ReadonlyArray<string>): Either.Either<Enrichment.RunOptions["retry"], InputError> => {
  const [first] = asked
  const kind = kinds.find((kind) => kind === first)
  if (first === undefined) return Either.right("transient")
  if (kind === undefined)
    return Either.right({ rows: asked.map((id) => (kinds.some((kind) => id === `row:${kind}`) ? id.slice(4) : id)) })
  if (asked.length === 1) return Either.right(kind)
  return Either.left(
    new InputError({ reason: "bad_option", message: `--retry ${kind} stands alone; name rows by their ids` })
  )
}

const absolute = (name: string): string =>
  name.startsWith("sqlite:") ? `sqlite:${resolve(name.slice("sqlite:".length))}` : resolve(name)

const command = Command.make("longhaul").pipe(
  Command.withDescription("Long, budgeted, crash-safe LLM batch runs"),
  Command.withSubcommands([
    CliPlan.command,
    runCommand,
    resumeCommand,
    statusCommand,
    checkpointsCommand,
    failuresCommand,
    receiptCommand,
    exportCommand,
    watchCommand,
    serveCommand,
    ...CliSteer.commands,
    refreshCommand,
    reconcileCommand,
    doctorCommand,
    CliVerify.command
  ])
)

const UNREAD = "the arguments were not understood: stderr says why"

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
      // The text was printed already; only the code is missing.
      ValidationError.isHelpRequested(error)
        ? setCode(ExitCode.DONE)
        : Effect.zipRight(
            sayJsonError({ _tag: "InputError", reason: "bad_option", message: UNREAD }),
            setCode(ExitCode.BAD_INPUT)
          )
    ),
    Effect.catchTag("InputError", (error) => Effect.zipRight(sayError(error), setCode(ExitCode.BAD_INPUT))),
    Effect.catchAllDefect((defect) =>
      Effect.zipRight(
        Console.error(`internal error, please report it: ${Cause.pretty(Cause.die(defect))}`),
        setCode(ExitCode.INTERNAL)
      )
    )
  )

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
