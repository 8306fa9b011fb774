/**
 * What `longhaul run` and `resume` do: a job with its overrides, a progress line, a drain on a signal, a result file, an exit code.
 *
 * @since 0.1.0
 */
import { Prompt } from "@effect/cli"
import { Console, Effect, Either, Fiber, Schedule, Schema, Stream } from "effect"
import * as Budget from "../services/Budget.ts"
import { InputError, RunRefused } from "../services/Errors.ts"
import * as MonotonicTime from "../services/MonotonicTime.ts"
import * as CanaryText from "./CanaryText.ts"
import * as Enrichment from "./Enrichment.ts"
import * as EventLine from "./EventLine.ts"
import * as ExitCode from "./ExitCode.ts"
import type { Job } from "./Job.ts"
import * as JobFile from "./JobFile.ts"
import * as JobSettings from "./JobSettings.ts"
import * as ProgressLine from "./ProgressLine.ts"
import * as RunExport from "./RunExport.ts"
import * as TerminalLine from "./TerminalLine.ts"

/** @since 0.1.0 */
export interface CliRunOptions {
  readonly settings: JobSettings.Settings
  readonly db: string
  readonly runId: string | undefined
  readonly budget: Budget.BudgetOptions
  readonly retry: Enrichment.RunOptions["retry"]
  readonly onDrift: Enrichment.RunOptions["onDrift"]
  readonly reread: boolean
  readonly acceptLoss: boolean
  readonly canary: number | undefined
  readonly graceMs: number
  /** Events as JSON lines on stdout, in place of the progress line and the summary. */
  readonly json: boolean
}

/**
 * Runs or resumes, and gives the exit code. Progress and notes go to stderr, the summary to stdout.
 *
 * @since 0.1.0
 */
export const execute = (options: CliRunOptions) =>
  Effect.gen(function* () {
    const { settings } = options
    yield* RunExport.checkOut(settings.out)
    if (settings.timeout !== undefined && settings.timeout < 1) {
      const message = `--timeout must be a whole number of seconds from 1, not ${settings.timeout}`
      return yield* new InputError({ reason: "bad_option", message })
    }
    if (options.canary !== undefined && options.canary < 1) {
      const message = `--canary must be a whole number of rows from 1, not ${options.canary}`
      return yield* new InputError({ reason: "bad_option", message })
    }
    const loaded = yield* JobFile.load(settings.job)
    const job = yield* JobSettings.overridden(loaded.job, settings)
    if (settings.out !== undefined) yield* RunExport.apart(job.source.location, settings.out)
    return yield* Effect.provide(chosenDrift(job, options), [
      Budget.layer({
        ...options.budget,
        adaptive: settings.fixed !== true
      }),
      JobSettings.providerOf(settings, loaded.simulated)
    ])
  })

/** On a terminal the operator is asked; elsewhere a flag must say. */
const chosenDrift = (job: Job<unknown, unknown>, options: CliRunOptions) =>
  Effect.catchIf(run(job, options), isDrift, (refused) =>
    Effect.gen(function* () {
      const isAsked = !options.json && process.stdin.isTTY && process.stderr.isTTY && process.stdout.isTTY
      if (!isAsked) return yield* refused
      const choice = yield* Effect.catchTag(askDrift(refused.message), "QuitException", () => Effect.interrupt)
      return choice === "abort" ? yield* refused : yield* run(job, { ...options, onDrift: choice })
    })
  )

const isDrift = (error: { readonly _tag: string }): error is RunRefused =>
  error instanceof RunRefused && error.reason === "drift"

const askDrift = (message: string) =>
  Effect.zipRight(
    Console.error(message),
    Prompt.select({
      message: "What becomes of these rows?",
      choices: [
        { title: "abort: nothing is changed", value: "abort" as const },
        { title: "keep: their results stay, and the run mixes", value: "keep" as const },
        { title: "re-run: they are asked again", value: "rerun" as const }
      ]
    })
  )

const run = (job: Job<unknown, unknown>, options: CliRunOptions) =>
  Effect.gen(function* () {
    const { acceptLoss, canary, db, graceMs, onDrift, reread, retry, settings } = options
    const begun = yield* MonotonicTime.now
    let runId = options.runId
    const ran = Effect.scoped(
      Effect.gen(function* () {
        const handle = yield* Enrichment.start(job, {
          runId,
          onDrift,
          reread,
          acceptLoss,
          canary,
          graceMs,
          settings: yield* Effect.orDie(Schema.encode(JobSettings.SettingsJson)(settings)),
          ...(retry === undefined ? {} : { retry })
        })
        runId = handle.runId
        yield* Console.error(`run ${runId} · database ${db}`)
        const { paused } = yield* handle.progress
        if (paused !== null) {
          const why = ProgressLine.oneLine(paused.message)
          const verb = paused.by === "operator" ? "unpause" : "approve"
          yield* Console.error(`the run is ${why}; it waits. Go on with: longhaul ${verb} ${runId} --db ${db}`)
        }
        return yield* Effect.onInterrupt(showing(handle, options), () => draining(handle))
      })
    )
    const result = yield* Effect.onInterrupt(ran, () => (runId === undefined ? Effect.void : stopped(runId, db)))
    const out = settings.out ?? RunExport.defaultOut(result.runId, job.source.location)
    const exported = yield* Effect.either(RunExport.exportRun(job, result.runId, out))
    if (!options.json) yield* Console.log(summary(result, (yield* MonotonicTime.now) - begun, out, db))
    if (Either.isRight(exported)) return ExitCode.ofResult(result)
    // The rows are paid for and safe: this is not "bad input, nothing was sent".
    yield* Console.error(
      `error: the result file could not be written: ${exported.left.message}\nwrite it with: longhaul export ${result.runId} --db ${db} --out <file>`
    )
    return ExitCode.STORAGE
  })

const draining = (handle: Enrichment.Handle<unknown>) =>
  Effect.flatMap(handle.progress, ({ working }) =>
    Console.error(
      `\nstopping: ${working} ${working === 1 ? "call" : "calls"} in flight may finish first; a second signal abandons them`
    )
  )

/** After the drain: where the run stands, and how to go on. */
const stopped = (runId: string, db: string) =>
  Effect.flatMap(Effect.either(Enrichment.status(runId)), (totals) => {
    const { count, money } = ProgressLine
    const where = Either.match(totals, {
      onLeft: () => "",
      onRight: ({ done, failed, partial, pending, spent }) =>
        `stopped: ${count(done + partial + failed)} done, ${count(pending)} pending, ${money(spent)} spent; everything is saved\n`
    })
    return Console.error(`${where}resume with: longhaul resume ${runId} --db ${db}`)
  })

/** Shows progress until the run ends: on a terminal one line, on a pipe a line every ten seconds; with `json` its events on stdout. */
const showing = (handle: Enrichment.Handle<unknown>, { db, json }: CliRunOptions) =>
  Effect.gen(function* () {
    const line = TerminalLine.make(process.stderr)
    const rateAt = ProgressLine.recentRate()
    rateAt(ProgressLine.markOf(yield* MonotonicTime.now, yield* handle.progress))
    const draw = Effect.gen(function* () {
      const snapshot = yield* handle.progress
      const rate = rateAt(ProgressLine.markOf(yield* MonotonicTime.now, snapshot))
      if (json) return yield* Console.log(EventLine.progress(snapshot, rate))
      yield* line.draw((width) => ProgressLine.render(snapshot, rate, width))
    })
    const ticking = Effect.repeat(Effect.delay(draw, json ? 1_000 : line.isTerminal ? 250 : 10_000), Schedule.forever)
    const tell = (event: Enrichment.RunEvent<unknown>) => {
      if (json) return Console.log(EventLine.event(event))
      return event._tag === "Canary" ? line.above(CanaryText.render(event.report, handle.runId, db)) : Effect.void
    }
    const telling = yield* Effect.fork(Stream.runForEach(handle.events, tell))
    const result = yield* Effect.raceFirst(handle.await, Effect.zipRight(ticking, Effect.never))
    yield* Fiber.await(telling)
    yield* draw
    yield* line.end
    return result
  })

const summary = (result: Enrichment.RunResult<unknown>, ms: number, out: string, db: string): string => {
  const { calls, cap, done, failed, kept, partial, pending, reason, rows, runId, spent, uncertain } = result
  const { count, money } = ProgressLine
  const lines = [
    result.stopReason === "complete"
      ? `done: ${count(rows)} rows${sessionOf(result.thisProcess.rows, rows, ms)}`
      : `${reason?.kind === "cancelled" ? "" : "suspended: "}${ProgressLine.oneLine(reason?.message ?? "stopped")}; ${count(pending)} of ${count(rows)} rows are pending`,
    `rows: ${count(done)} done, ${count(partial)} partial, ${count(failed)} failed, ${count(pending)} pending`,
    `spent ${money(spent)}${cap === null ? "" : ` of ${money(cap)}`}${uncertain > 0 ? ` · ${money(uncertain)} uncertain` : ""} · ${count(calls)} calls`,
    ...(kept > 0 ? [`mixed: ${count(kept)} rows were done with another prompt, schema, model or parameter`] : []),
    `results: ${out}`,
    `database: ${db}, run ${runId}`
  ]
  if (reason?.kind === "cancelled") lines.push("next: nothing, the run was given up; its results stay")
  else if (pending > 0)
    lines.push(`next: longhaul resume ${runId} --db ${db}${reason?.kind === "budget" ? " --budget <more>" : ""}`)
  else if (failed + partial > 0) lines.push(`next: longhaul failures ${runId} --db ${db}`)
  else lines.push(`next: longhaul status ${runId} --db ${db}`)
  return lines.join("\n")
}

/** What this call of the command did of it. */
const sessionOf = (now: number, rows: number, ms: number): string => {
  if (now === 0) return ", nothing was left to do"
  return now === rows ? ` in ${duration(ms)}` : `, ${ProgressLine.count(now)} of them now, in ${duration(ms)}`
}

const duration = (ms: number): string =>
  ms < 90_000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`
