/**
 * A run: a job over a fixed set of rows under one budget, that may be killed at any instant and resumed by the same call.
 *
 * @example
 * import { Effect, Schema } from "effect"
 * import { Agent, Budget, Enrichment, LLMSimulated, Memory, Rows } from "longhaul"
 * const Vendor = Schema.Struct({ id: Schema.Int, name: Schema.String })
 * const agent = Agent.make({
 *   name: "assessor",
 *   model: "simulated",
 *   prompt: (vendor: typeof Vendor.Type) => vendor.name,
 *   output: Schema.Struct({ summary: Schema.String })
 * })
 * const source = Rows.fromIterable([{ id: 1, name: "Acme" }])
 * const job = Enrichment.make({ name: "vendors", agent, row: Vendor, id: (vendor) => vendor.id, source })
 * const program = Enrichment.run(job).pipe(
 *   Effect.provide(Budget.layer({ maxCostUsd: 1 })),
 *   Effect.provide([Memory.layer, LLMSimulated.layer()])
 * )
 *
 * @since 0.1.0
 */
import { Deferred, Effect, Exit, Fiber, Option, PubSub, type Scope, Stream } from "effect"
import type { OrderRecord, Pause, Phase } from "../services/Book.ts"
import type { Budget } from "../services/Budget.ts"
import type { Checkpointer } from "../services/Checkpointer.ts"
import type { CircuitOpen, InputError, RunRefused, StopReason, StorageError } from "../services/Errors.ts"
import type { Journal } from "../services/Journal.ts"
import type { LLM } from "../services/LLM.ts"
import type { Outcome } from "../services/Outcome.ts"
import type { Store } from "../services/Store.ts"
import type { Usd } from "../services/Usd.ts"
import type { CanaryReport } from "./Canary.ts"
import { begin, execute, type Live, snapshotOf } from "./Execution.ts"
import type { Job } from "./Job.ts"
import * as Report from "./Report.ts"
import type * as RowLoop from "./RowLoop.ts"
import type * as Workflow from "./Workflow.ts"

export type { CanaryReport } from "./Canary.ts"
export { type Job, type JobOptions, make, withOverrides } from "./Job.ts"
export {
  doneIds,
  lastCheckpoint,
  Progress,
  type ReportedRow,
  results,
  runs,
  status,
  type Totals
} from "./Report.ts"

/**
 * `runId`: default `<job>-<yyyy-mm-dd>-<3 characters>`; an id that exists is continued. `retry`: which ended rows are run again in a new epoch, besides those that a
 * transient error failed (`none`: not even those; `rows`: just these ids). `reread`: first read the paid answers of partial rows, and of those where only the schema changed, with the present
 * parser and schema, for nothing. `onDrift`: what becomes of rows that were done with another prompt, schema or model; without it the run is
 * refused. `acceptLoss`: go on although the database has lost commits. `graceMs`: how long an interruption waits for calls in flight, default 10,000. `collect`: keep all outcomes and give the workflow's result.
 * `canary`: of a new run so many rows, spread over the lengths of all, run first; if something looks wrong, or the run may cost more than its cap, it is paused until `Steering.approve`; later rows are compared with
 * them. `onDone: "reclaim"` deletes the run's checkpoints at the end. `spans`: one span a row and call. `settings`: kept in the run's record.
 *
 * @since 0.1.0
 */
export interface RunOptions {
  readonly runId?: string | undefined
  readonly mode?: "bestEffort" | "failFast"
  readonly retry?: "transient" | "none" | "failed" | "partial" | "all" | { readonly rows: ReadonlyArray<string> }
  readonly reread?: boolean
  readonly onDrift?: "keep" | "rerun" | undefined
  readonly acceptLoss?: boolean | undefined
  readonly canary?: number | undefined
  readonly graceMs?: number
  readonly collect?: boolean
  readonly onDone?: "keep" | "reclaim"
  readonly spans?: boolean
  readonly settings?: string
}

/** What a run needs around it. @since 0.1.0 */
export type Services = Budget | Journal | Store | Checkpointer | LLM
/** Why a run cannot begin or go on. Rows' failures are no errors. @since 0.1.0 */
export type RunError = InputError | RunRefused | StorageError | Workflow.WorkflowError

/** The outputs of the run as a workflow of two nodes. @since 0.1.0 */
export interface Outputs<A> {
  readonly load_rows: ReadonlyArray<unknown>
  readonly enrich_batch: Workflow.Complete<Batch<A>>
}
/** One output for each chunk of rows, in input order. @since 0.1.0 */
export type Batch<A> = { readonly [chunk: `chunk_${number}`]: ReadonlyArray<Outcome<A>> }

/**
 * How a run ended. `stopReason` is the workflow's: `complete`, or `suspended` with a `reason`. `thisProcess`: what this call added. `workflow`: with `collect` only.
 *
 * @since 0.1.0
 */
export interface RunResult<A> extends Report.Totals {
  readonly stopReason: "complete" | "suspended"
  readonly thisProcess: { readonly calls: number; readonly spent: Usd; readonly rows: number }
  readonly workflow: Option.Option<Workflow.WorkflowResult<Outputs<A>>>
}

/**
 * What happens in a run.
 *
 * @since 0.1.0
 */
export type RunEvent<A> =
  | { readonly _tag: "Started"; readonly runId: string; readonly rows: number; readonly ended: number }
  | ({ readonly _tag: "Row" } & RowLoop.Ended<A>)
  | { readonly _tag: "Checkpoint"; readonly rows: number }
  | { readonly _tag: "ProviderDown"; readonly error: CircuitOpen | undefined }
  | { readonly _tag: "ProviderUp" }
  /** No call can succeed there any more; the job's fallback takes over. */
  | { readonly _tag: "ProviderLeft"; readonly message: string }
  /** The event loop stood still for this many milliseconds. */
  | { readonly _tag: "Stalled"; readonly ms: number }
  /** The rows that ran first have ended. */
  | { readonly _tag: "Canary"; readonly report: CanaryReport }
  /** An order from another process was carried out. */
  | ({ readonly _tag: "Ordered" } & OrderRecord)
  | { readonly _tag: "Stopping"; readonly reason: StopReason }
  | { readonly _tag: "Finished"; readonly result: RunResult<A> }

/**
 * Where a run is, for a progress line. `working`: calls in flight, of the `allowed` ones; below `concurrency` where the provider takes fewer.
 *
 * @since 0.1.0
 */
export interface Snapshot {
  readonly runId: string
  readonly phase: Phase
  /** Who keeps calls from beginning, and why. */
  readonly paused: Pause | null
  readonly rows: number
  readonly done: number
  readonly partial: number
  readonly failed: number
  readonly spent: Usd
  readonly uncertain: Usd
  readonly working: number
  readonly allowed: number
  readonly concurrency: number
}

/** A run under way. @since 0.1.0 */
export interface Handle<A> {
  readonly runId: string
  readonly progress: Effect.Effect<Snapshot>
  /** From now on; a slow reader loses the oldest. Ends with `Finished`. */
  readonly events: Stream.Stream<RunEvent<A>>
  /** Lets calls in flight finish, leaves the other rows pending, and ends the run as suspended. */
  readonly stop: Effect.Effect<void>
  readonly await: Effect.Effect<RunResult<A>, RunError>
}

/**
 * Runs a job to its end or to a stop; continues the run if its id exists. Interruption drains: calls in flight finish, at most `graceMs`, and the run can be resumed.
 *
 * @since 0.1.0
 */
export const run = <Row, A, I>(
  job: Job<Row, A, I>,
  options: RunOptions = {}
): Effect.Effect<RunResult<A>, RunError, Services> =>
  Effect.scoped(Effect.flatMap(begin(job, options), (live) => execute(live, () => {})))

/**
 * Continues a run that exists.
 *
 * @since 0.1.0
 */
export const resume = <Row, A, I>(
  job: Job<Row, A, I>,
  options: RunOptions & { readonly runId: string }
): Effect.Effect<RunResult<A>, RunError, Services> => Effect.zipRight(Report.bookOf(options.runId), run(job, options))

/**
 * The run as a stream of events, from `Started` to `Finished`; running the stream runs the job.
 *
 * @since 0.1.0
 */
export const events = <Row, A, I>(
  job: Job<Row, A, I>,
  options: RunOptions = {}
): Stream.Stream<RunEvent<A>, RunError, Services> =>
  Stream.unwrapScoped(
    Effect.gen(function* () {
      const live = yield* begin(job, options)
      const bus = yield* PubSub.sliding<RunEvent<A>>(BUFFER)
      // Subscribed before the run begins, so that nothing is missed.
      const all = yield* Stream.fromPubSub(bus, { scoped: true })
      const { fiber, failed } = yield* launch(live, bus)
      return Stream.concat(untilEnd(all, failed), Stream.drain(Stream.fromEffect(Fiber.join(fiber))))
    })
  )

/**
 * Starts a run in the background, for as long as the scope is open; closing the scope drains it.
 *
 * @since 0.1.0
 */
export const start = <Row, A, I>(
  job: Job<Row, A, I>,
  options: RunOptions = {}
): Effect.Effect<Handle<A>, RunError, Services | Scope.Scope> =>
  Effect.gen(function* () {
    const live = yield* begin(job, options)
    const bus = yield* PubSub.sliding<RunEvent<A>>(BUFFER)
    const { failed, fiber } = yield* launch(live, bus)
    return {
      runId: live.fence.runId,
      progress: Effect.sync(() => snapshotOf(live)),
      events: Stream.unwrap(
        Effect.map(Fiber.poll(fiber), (end) => {
          if (Option.isNone(end)) return untilEnd(Stream.fromPubSub(bus), failed)
          // It is over: there is one event left to tell, if it ended well.
          return Exit.isSuccess(end.value)
            ? Stream.make({ _tag: "Finished" as const, result: end.value.value })
            : Stream.empty
        })
      ),
      stop: Effect.sync(() => live.meter.stop({ kind: "operator", message: "asked to stop" })),
      await: Fiber.join(fiber)
    }
  })

/** Events that a slow reader may be behind; without a reader none is kept. */
const BUFFER = 4_096

const launch = <Row, A, I>(live: Live<Row, A, I>, bus: PubSub.PubSub<RunEvent<A>>) =>
  Effect.gen(function* () {
    const failed = yield* Deferred.make<void>()
    const running = Effect.onError(
      execute(live, (event) => void bus.unsafeOffer(event)),
      () => Deferred.succeed(failed, undefined)
    )
    return { failed, fiber: yield* Effect.forkScoped(running) }
  })

const untilEnd = <A>(all: Stream.Stream<RunEvent<A>>, failed: Deferred.Deferred<void>) =>
  all.pipe(
    Stream.takeUntil((event) => event._tag === "Finished"),
    Stream.interruptWhenDeferred(failed)
  )
