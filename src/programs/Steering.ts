/**
 * How an operator steers a run from anywhere: each verb is an order in the run's database, in force as soon as the effect ends, whoever works on the run, and after a crash too. None waits for the worker
 * or locks it.
 *
 * @example
 * import { Effect } from "effect"
 * import { Memory, Steering } from "longhaul"
 * const program = Effect.zipRight(
 *   Steering.pause("vendors-2026-07-03-abc", { by: "ada", message: "the prompt looks wrong" }),
 *   Steering.set("vendors-2026-07-03-abc", { maxCostUsd: 80, maxConcurrency: 4 })
 * ).pipe(Effect.provide(Memory.layer)) // Sqlite.layer({ filename: "vendors.db" })
 *
 * @since 0.1.0
 */
import { Clock, Effect, Stream } from "effect"
import type { Ended, Order } from "../services/Book.ts"
import * as Budget from "../services/Budget.ts"
import { InputError, RunRefused, type StorageError } from "../services/Errors.ts"
import { Journal } from "../services/Journal.ts"
import { Usd } from "../services/Usd.ts"
import * as Report from "./Report.ts"
import { cancelled } from "./RunRecord.ts"

/** `by`: who orders it, for the record; default `program`. @since 0.1.0 */
export interface SteerOptions {
  readonly by?: string
}

/** Gives the run's totals after the order. @since 0.1.0 */
export type Steered = Effect.Effect<Report.Totals, RunRefused | StorageError, Journal>

/**
 * No call begins from now on; calls in flight end, and nothing is lost. A run that is killed and resumed is still paused.
 *
 * @since 0.1.0
 */
export const pause = (
  runId: string,
  { by = PROGRAM, message }: SteerOptions & { readonly message?: string } = {}
): Steered =>
  give(runId, by, {
    _tag: "Pause",
    by: "operator",
    message: `paused by ${by}${message === undefined ? "" : `: ${message}`}`
  })

/**
 * Calls begin again, whoever paused the run.
 *
 * @since 0.1.0
 */
export const unpause = (runId: string, { by = PROGRAM }: SteerOptions = {}): Steered =>
  give(runId, by, { _tag: "Unpause" })

/**
 * Who works on the run now lets its calls end, and stops; the run can be resumed.
 *
 * @since 0.1.0
 */
export const drain = (runId: string, { by = PROGRAM }: SteerOptions = {}): Steered => give(runId, by, { _tag: "Drain" })

/**
 * Gives the run up for good: calls in flight end, rows not done stay so. What is done can be exported, and another run takes it from the store for nothing.
 *
 * @since 0.1.0
 */
export const cancel = (runId: string, { by = PROGRAM }: SteerOptions = {}): Steered =>
  give(runId, by, { _tag: "Cancel" })

/**
 * Accepts what the run's canary or a detector found; the run goes on.
 *
 * @since 0.1.0
 */
export const approve = (runId: string, { by = PROGRAM }: SteerOptions = {}): Steered =>
  give(runId, by, { _tag: "Approve" })

/** What may be set while a run goes on; what is left out stays. @since 0.1.0 */
export type SetOptions = Omit<Budget.BudgetOptions, "adaptive">

/**
 * Other limits. A raise takes effect even while the run stops for want of room; a cap below what is counted already is refused.
 *
 * @since 0.1.0
 */
export const set = (runId: string, limits: SetOptions, { by = PROGRAM }: SteerOptions = {}): Steered =>
  Effect.flatMap(Budget.make(limits).limits, (parsed) => give(runId, by, { _tag: "Set", ...parsed }))

/** Which rows: by their ids, or all that failed, or all whose answer could not be read. @since 0.1.0 */
export type Which = { readonly rows: ReadonlyArray<string> } | "failed" | "partial"

/**
 * Rows that have ended run again, in a new epoch; gives their number. On a run that nobody works on they wait for a resume.
 *
 * @since 0.1.0
 */
export const requeue = (
  runId: string,
  which: Which,
  { by = PROGRAM }: SteerOptions = {}
): Effect.Effect<number, InputError | RunRefused | StorageError, Journal> =>
  Effect.gen(function* () {
    const rows = yield* endedOf(runId, which)
    if (rows.length === 0) return 0
    const n = yield* order(runId, by, { _tag: "Requeue", rows })
    const { reads } = yield* Journal
    const [given] = yield* reads.orders(runId, n - 1)
    // Without those that somebody else was faster with.
    return given?.order._tag === "Requeue" ? given.order.rows.length : 0
  })

const PROGRAM = "program"

const give = (runId: string, by: string, wanted: Order): Steered =>
  Effect.zipRight(order(runId, by, wanted), Report.status(runId))

/** Gives its number. */
const order = (runId: string, by: string, order: Order): Effect.Effect<number, RunRefused | StorageError, Journal> =>
  Effect.gen(function* () {
    const journal = yield* Journal
    const at = yield* Clock.currentTimeMillis
    const verdict = yield* journal.commit({ _tag: "Order", runId, by, order, at })
    if (verdict._tag === "Version") return verdict.version
    const book = yield* Report.bookOf(runId)
    if (book.status === "cancelled") return yield* cancelled(runId)
    if (verdict._tag === "Refused" && verdict.reason === "below_counted") {
      const counted = Usd.nano(book.spent + book.uncertain + book.held)
      return yield* new RunRefused({
        reason: "bad_limit",
        message: `${Usd.format(counted)} is spent, uncertain or held in run ${runId} already: a cap below that cannot be kept. To spend nothing more, pause or drain it`
      })
    }
    return yield* new RunRefused({ reason: "done", message: `run ${runId} is done` })
  })

const endedOf = (
  runId: string,
  which: Which
): Effect.Effect<ReadonlyArray<Ended>, InputError | RunRefused | StorageError, Journal> =>
  Effect.gen(function* () {
    const named = new Set(typeof which === "string" ? [] : which.rows)
    const found: Array<Ended> = []
    yield* Stream.runForEach(Report.ends(runId), ({ outcome, row }) =>
      Effect.gen(function* () {
        const isNamed = named.delete(row.id)
        const hasEnded = outcome !== undefined && outcome.epoch === row.epoch
        if (isNamed && !hasEnded) return yield* notEnded(runId, row.id)
        if (!hasEnded) return
        const { epoch, kind, seq } = outcome
        if (isNamed || kind === which) found.push({ seq, epoch, kind })
      })
    )
    const [unknown] = named
    return unknown === undefined ? found : yield* Report.noSuchRow(runId, unknown)
  })

const notEnded = (runId: string, id: string) =>
  new InputError({
    reason: "bad_option",
    message: `row ${JSON.stringify(id)} of run ${runId} is pending already`,
    fix: "name rows that have ended"
  })
