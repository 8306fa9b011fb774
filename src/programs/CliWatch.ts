/**
 * The command `watch`: a run's progress line from another terminal. Internal to the command line.
 *
 * @since 0.1.0
 */
import { Command, Options } from "@effect/cli"
import { Console, Effect, Option, Stream } from "effect"
import * as MonotonicTime from "../services/MonotonicTime.ts"
import { db } from "./CliFlags.ts"
import { chosen, runIdArg, withDb } from "./CliShared.ts"
import type { Snapshot } from "./Enrichment.ts"
import * as ExitCode from "./ExitCode.ts"
import * as ProgressLine from "./ProgressLine.ts"
import * as TerminalLine from "./TerminalLine.ts"
import * as Watch from "./Watch.ts"

/** A run from another terminal. @since 0.1.0 */
export const watchCommand = Command.make(
  "watch",
  { runId: runIdArg, db, json: Options.boolean("json").pipe(Options.withDescription("A JSON object for each look")) },
  ({ db, json, runId }) =>
    withDb(
      db,
      false,
      Effect.gen(function* () {
        const id = yield* chosen(runId)
        const line = TerminalLine.make(process.stdout)
        const rateAt = ProgressLine.recentRate()
        const show = (sight: Watch.Sight) =>
          Effect.flatMap(MonotonicTime.now, (at) => {
            if (json) {
              const [phase, worker] = [Option.getOrNull(sight.phase), Option.getOrNull(sight.worker)]
              return Console.log(JSON.stringify({ ...sight, phase, worker }))
            }
            const rate = rateAt(ProgressLine.markOf(at, sight))
            return line.draw((width) => `${ProgressLine.render(snapshotOf(sight), rate, width)}${absent(sight)}`)
          })
        const looks = Watch.watch(id, { everyMs: json || !line.isTerminal ? 2_000 : 500 })
        const last = yield* Stream.runFoldEffect(looks, Option.none<Watch.Sight>(), (_, sight) =>
          Effect.as(show(sight), Option.some(sight))
        )
        yield* line.end
        if (Option.isNone(last)) return ExitCode.DONE
        if (!json) yield* Console.log(endText(last.value, db))
        return ExitCode.ofResult({
          ...last.value,
          stopReason: last.value.status === "done" ? "complete" : "suspended"
        })
      })
    )
).pipe(Command.withDescription("A run's progress, from another terminal, until it ends"))

const snapshotOf = (sight: Watch.Sight): Snapshot => ({
  runId: sight.runId,
  phase: Option.getOrElse(sight.phase, () => (sight.paused === null ? "running" : "paused")),
  paused: sight.paused,
  rows: sight.rows,
  done: sight.done,
  partial: sight.partial,
  failed: sight.failed,
  spent: sight.spent,
  uncertain: sight.uncertain,
  working: sight.working,
  allowed: sight.allowed,
  concurrency: sight.maxConcurrency
})

const absent = ({ status, worker }: Watch.Sight): string =>
  status === "running" && Option.isNone(worker) ? " · nobody works on it" : ""

const endText = ({ pending, reason, runId, status }: Watch.Sight, db: string): string =>
  status === "suspended"
    ? `suspended: ${ProgressLine.oneLine(reason?.message ?? "stopped")}; ${ProgressLine.count(pending)} rows are pending\nresume with: longhaul resume ${runId} --db ${db}`
    : `${status}: see longhaul receipt ${runId} --db ${db}`
