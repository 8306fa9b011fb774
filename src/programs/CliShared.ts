/**
 * What the commands share: which run is meant, the database, the exit code. Internal to the command line.
 *
 * @since 0.1.0
 */
import { Args } from "@effect/cli"
import { Console, Effect, Logger, Option, Schema } from "effect"
import * as Sqlite from "../layers/Sqlite.ts"
import { RunRefused } from "../services/Errors.ts"
import * as ExitCode from "./ExitCode.ts"
import * as JobSettings from "./JobSettings.ts"
import * as Report from "./Report.ts"
import { takesCodes } from "./TerminalLine.ts"

/** The run that is meant. @since 0.1.0 */
export const runIdArg = Args.text({ name: "runId" }).pipe(
  Args.withDescription("Default: the only unfinished run"),
  Args.optional
)

/** The run that is meant: the one named, else the only one that is not done. @since 0.1.0 */
export const chosen = (runId: Option.Option<string>) =>
  Option.match(runId, {
    onSome: Effect.succeed,
    onNone: () =>
      Effect.flatMap(Report.runs, (runs) => {
        const open = runs.filter(({ status }) => status !== "done" && status !== "cancelled")
        const [only] = open.length === 1 ? open : runs.length === 1 ? runs : []
        if (only !== undefined) return Effect.succeed(only.runId)
        const names = (open.length === 0 ? runs : open).map((run) => run.runId).join(", ")
        const which = open.length === 0 ? "no run is unfinished; name one" : "several runs are unfinished; name one"
        const message = runs.length === 0 ? "there is no run in this database" : `${which}: ${names}`
        return new RunRefused({ reason: "not_found", message })
      })
  })

/** What a run's record keeps for the command. @since 0.1.0 */
export const settingsOf = (runId: string) =>
  Effect.flatMap(Report.bookOf(runId), (book) =>
    Effect.mapError(
      Schema.decode(JobSettings.SettingsJson)(book.settings),
      () =>
        new RunRefused({
          reason: "wrong_job",
          message: `run ${runId} was started by a program, not by this command: resume it there`
        })
    )
  )

/** Runs a command's work on the database and sets its exit code; an operator's error is one line, never a trace. @since 0.1.0 */
export const withDb = <E extends { readonly _tag: string; readonly message: string }, R>(
  filename: string,
  create: boolean,
  work: Effect.Effect<number, E, R>
) =>
  Effect.provide(work, Sqlite.layer({ filename, create })).pipe(
    Effect.catchAll((error) => Effect.as(sayError(error), ExitCode.ofError(error))),
    Effect.flatMap(setCode)
  )

// See no-color.org.
const colors = takesCodes(process.stderr) && (process.env.NO_COLOR ?? "") === ""

/** What is said beside a result goes to stderr. @since 0.1.0 */
export const operatorLogger = Logger.prettyLogger({ stderr: true, colors })

/** What an error is to an operator. @since 0.1.0 */
export interface Told {
  readonly _tag: string
  readonly message: string
  readonly reason?: string
  readonly fix?: string
}

/** An operator's error, and how to mend it, on stderr, and to programs. @since 0.1.0 */
export const sayError = (error: Told) => {
  const { fix, message } = error
  const text = visible(`error: ${message}${fix === undefined ? "" : `\nfix: ${fix}`}`)
  return Effect.zipRight(Console.error(text), sayJsonError(error))
}

/** The error as one JSON object on stdout where `--json` was asked for, so that who reads it gets JSON in any case. @since 0.1.0 */
export const sayJsonError = ({ _tag, fix, message, reason }: Told) =>
  Effect.suspend(() =>
    process.argv.includes("--json")
      ? Console.log(JSON.stringify({ _tag: "Error", kind: _tag, reason, message, fix }))
      : Effect.void
  )

/** An error names ids, columns and arguments, which may hold anything: nothing of them may move the cursor. */
const visible = (text: string): string =>
  text.replace(/[^\P{Cc}\n]/gu, (code) => `\\u${code.charCodeAt(0).toString(16).padStart(4, "0")}`)

/** @since 0.1.0 */
export const setCode = (code: number) =>
  Effect.sync(() => {
    process.exitCode = code
  })
