/**
 * A run seen from outside: from another process, or another fiber, by what its database says.
 *
 * @example
 * import { Effect, Stream } from "effect"
 * import { Memory, Watch } from "longhaul"
 * const shown = Watch.watch("vendors-2026-07-03-abc", { everyMs: 1_000 }).pipe(
 *   Stream.runForEach(({ done, pending, spent }) => Effect.log(`${done} done, ${pending} to go, ${spent} nano-dollars`)),
 *   Effect.provide(Memory.layer) // Sqlite.layer({ filename: "vendors.db" })
 * )
 *
 * @since 0.1.0
 */
import { Clock, Duration, Effect, Option, Schedule, Stream } from "effect"
import type { Phase, Sign, WorkerRecord } from "../services/Book.ts"
import type { RunRefused, StorageError } from "../services/Errors.ts"
import { Journal } from "../services/Journal.ts"
import * as Report from "./Report.ts"

/** A worker says that it lives every ten seconds; one that is silent for longer than this is taken for dead, in milliseconds. */
const SILENT_MS = 35_000

/**
 * Where a run is. `working`: calls under way, of the `allowed` ones; below the run's concurrency where the provider takes fewer. `worker`: who works on it; none where nobody has said so for half a
 * minute. `phase`: what that worker is at, as it said within the last second; none without a worker.
 *
 * @since 0.1.0
 */
export interface Sight extends Report.Totals {
  readonly working: number
  readonly allowed: number
  readonly worker: Option.Option<WorkerRecord>
  readonly phase: Option.Option<Phase>
}

/**
 * One look at a run.
 *
 * @since 0.1.0
 */
export const look = (runId: string): Effect.Effect<Sight, RunRefused | StorageError, Journal> =>
  Effect.gen(function* () {
    const { reads } = yield* Journal
    const totals = yield* Report.status(runId)
    const now = yield* Clock.currentTimeMillis
    const workers = yield* reads.workers(runId)
    const worker = workers.findLast(({ beatAt, live }) => live && now - beatAt < SILENT_MS)
    return {
      ...totals,
      working: yield* reads.inFlight(runId),
      allowed: worker?.sign?.allowed ?? totals.maxConcurrency,
      worker: Option.fromNullable(worker),
      phase: Option.map(Option.fromNullable(worker), ({ sign }) => phaseOf(totals, sign))
    }
  })

/** The book knows of a pause before the worker does. */
const phaseOf = ({ paused, status }: Report.Totals, sign: Sign | null): Phase => {
  if (status === "loading") return "loading"
  if (sign?.phase === "stopping") return "stopping"
  if (paused !== null) return "paused"
  return sign === null || sign.phase === "paused" || sign.phase === "loading" ? "running" : sign.phase
}

/**
 * A look every `everyMs` milliseconds (default 500), as long as the run may go on: until it is done or cancelled, or suspended with nobody at work.
 *
 * @since 0.1.0
 */
export const watch = (
  runId: string,
  { everyMs = 500 }: { readonly everyMs?: number } = {}
): Stream.Stream<Sight, RunRefused | StorageError, Journal> =>
  Stream.repeatEffectWithSchedule(look(runId), Schedule.spaced(Duration.millis(everyMs))).pipe(
    Stream.takeUntil(({ status, worker }) => {
      if (status === "done" || status === "cancelled") return true
      return status === "suspended" && Option.isNone(worker)
    })
  )
