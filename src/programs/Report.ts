/**
 * What a run's book says: totals, rows with their outcomes, checkpoints. Every figure is over the run's whole life.
 *
 * @since 0.1.0
 */
import { Effect, Either, Option, Schema, Stream } from "effect"
import type { Book, Pause, RunStatus } from "../services/Book.ts"
import { type Checkpoint, type CheckpointError, Checkpointer } from "../services/Checkpointer.ts"
import { InputError, RunRefused, type StopReason, StorageError } from "../services/Errors.ts"
import * as Failure from "../services/Failure.ts"
import { deepFreeze } from "../services/Freeze.ts"
import { Journal, type RowResult } from "../services/Journal.ts"
import { type Outcome, Stored } from "../services/Outcome.ts"
import * as Pages from "../services/Pages.ts"
import * as Usage from "../services/Usage.ts"
import { Usd } from "../services/Usd.ts"

/**
 * Totals of a run. On a finished run `calls = rows + reruns - unasked - storeHits - memoHits - replays + retries + repairs`, and `usage.cost = spent`.
 * `cap` null: none. `reason`: why it is suspended. `filtered`: source rows that the job's `where` left out.
 *
 * @since 0.1.0
 */
export interface Totals {
  readonly runId: string
  readonly job: string
  readonly status: RunStatus
  readonly reason: StopReason | null
  /** Who keeps calls from beginning, and why. */
  readonly paused: Pause | null
  readonly rows: number
  readonly filtered: number
  readonly done: number
  readonly partial: number
  readonly failed: number
  readonly pending: number
  readonly usage: Usage.Usage
  readonly spent: Usd
  readonly uncertain: Usd
  readonly held: Usd
  readonly cap: Usd | null
  /** The pool whose cap it shares; null: none. */
  readonly pool: string | null
  readonly maxCalls: number | null
  readonly maxConcurrency: number
  /** The operator's own limits; null: what the provider says. */
  readonly requestsPerMinute: number | null
  readonly tokensPerMinute: number | null
  readonly calls: number
  readonly retries: number
  readonly repairs: number
  readonly replays: number
  readonly storeHits: number
  readonly memoHits: number
  readonly unasked: number
  readonly reruns: number
  /** Rows whose results were kept although they were made with another prompt, schema, model or parameter: the run mixes. */
  readonly kept: number
}

/**
 * The totals of a book. Frozen.
 *
 * @since 0.1.0
 */
export const totals = (book: Book): Totals =>
  Object.freeze({
    runId: book.runId,
    job: book.job,
    status: book.status,
    reason: book.reason,
    paused: book.paused,
    rows: book.rows,
    filtered: book.filtered,
    done: book.done,
    partial: book.partial,
    failed: book.failed,
    pending: book.rows - book.done - book.partial - book.failed,
    usage: Usage.make({ ...book, cost: book.spent }),
    spent: book.spent,
    uncertain: book.uncertain,
    held: book.held,
    cap: book.cap,
    pool: book.pool,
    maxCalls: book.maxCalls,
    maxConcurrency: book.maxConcurrency,
    requestsPerMinute: book.requestsPerMinute,
    tokensPerMinute: book.tokensPerMinute,
    calls: book.calls,
    retries: book.retries,
    repairs: book.repairs,
    replays: book.replays,
    storeHits: book.storeHits,
    memoHits: book.memoHits,
    unasked: book.unasked,
    reruns: book.reruns,
    kept: book.kept
  })

/**
 * A run's totals, with its record.
 *
 * @since 0.1.0
 */
export const status = (runId: string): Effect.Effect<Totals, RunRefused | StorageError, Journal> =>
  Effect.map(bookOf(runId), totals)

/**
 * The record of a run, or `not_found`.
 *
 * @since 0.1.0
 */
export const bookOf = (runId: string): Effect.Effect<Book, RunRefused | StorageError, Journal> =>
  Effect.flatMap(Journal, (journal) =>
    Effect.filterOrFail(
      journal.reads.book(runId),
      (book) => book !== undefined,
      () => new RunRefused({ reason: "not_found", message: `there is no run ${runId} in ${journal.location}` })
    )
  )

/**
 * Every run that the database holds, oldest first.
 *
 * @since 0.1.0
 */
export const runs: Effect.Effect<ReadonlyArray<Totals>, StorageError, Journal> = Effect.flatMap(Journal, (journal) =>
  Effect.map(journal.reads.books, (books) => books.map(totals))
)

/**
 * One row of a run: its source record as read, and its outcome: none while it is pending.
 *
 * @since 0.1.0
 */
export interface ReportedRow<A> {
  readonly seq: number
  readonly id: string
  readonly version: string
  readonly line: number
  readonly record: Readonly<Record<string, unknown>>
  readonly outcome: Option.Option<Outcome<A>>
}

/** Few, as each may have megabytes: a page is held several times over while it is read. */
const PAGE = 100
/** Taken as parsed: `Schema.Record` would drop a column called `__proto__`. */
const Record_ = Schema.declare(
  (value): value is Readonly<Record<string, unknown>> =>
    typeof value === "object" && value !== null && !Array.isArray(value)
)

/** `asOf`: the version of a checkpoint: what each row's outcome was then. `after`: only rows after this `seq`. @since 0.1.0 */
export interface ResultsOptions {
  readonly asOf?: number | undefined
  readonly after?: number | undefined
}

/**
 * All rows of a run with their latest outcomes, in input order, read page by page. Readable while the run goes on. A row's record is the present one.
 *
 * @since 0.1.0
 */
export const results = <A, I>(
  runId: string,
  output: Schema.Schema<A, I>,
  { after, asOf }: ResultsOptions = {}
): Stream.Stream<ReportedRow<A>, RunRefused | StorageError, Journal> => {
  const stored = Schema.decodeUnknown(Schema.parseJson(Stored(output)))
  const record = Schema.decodeUnknown(Schema.parseJson(Record_))
  const readRow = (row: { readonly value: string }) => Effect.mapError(record(row.value), unreadable(runId))
  const readOutcome = (value: string | undefined) =>
    value === undefined
      ? Effect.succeedNone
      : stored(value).pipe(
          Effect.mapBoth({ onFailure: unreadable(runId), onSuccess: (end) => Option.some(toOutcome(end)) })
        )
  const rowOf = ({ outcome, row }: RowResult) =>
    Effect.map(Effect.all([readRow(row), readOutcome(outcome?.value)]), ([record, outcome]): ReportedRow<A> => {
      const { id, line, seq, version } = row
      return { seq, id, version, line, record, outcome }
    })
  return Stream.mapEffect(ends(runId, { after, asOf }), rowOf)
}

/**
 * All rows of a run with their latest outcomes as they are stored, in input order.
 *
 * @since 0.1.0
 */
export const ends = (
  runId: string,
  { after, asOf }: ResultsOptions = {}
): Stream.Stream<RowResult, RunRefused | StorageError, Journal> => {
  const pages = Effect.map(Effect.all([Journal, reachOf(runId, asOf)]), ([{ reads }, upto]) =>
    Pages.results(reads, runId, { size: PAGE, upto, after })
  )
  return Stream.unwrap(Effect.zipRight(bookOf(runId), pages)).pipe(Stream.flattenIterables)
}

/** Which outcomes a checkpoint covers; `undefined`: all. */
const reachOf = (
  runId: string,
  version: number | undefined
): Effect.Effect<number | undefined, RunRefused | StorageError, Journal> =>
  Effect.gen(function* () {
    if (version === undefined) return undefined
    const journal = yield* Journal
    const checkpoint = yield* journal.reads.checkpoint(runId, version)
    if (checkpoint !== undefined) return checkpoint.uptoCommitSeq
    return yield* new RunRefused({ reason: "not_found", message: `run ${runId} has no checkpoint ${version}` })
  })

/**
 * The end of a row, as it is stored, as an outcome; frozen.
 *
 * @since 0.1.0
 */
export const toOutcome = <A>(end: Failure.Failure | Extract<Outcome<A>, { _tag: "Right" }>["right"]): Outcome<A> =>
  Failure.is(end) ? Either.left(deepFreeze(end)) : Either.right(deepFreeze(end))

const unreadable = (runId: string) => (error: unknown) =>
  new StorageError({
    reason: "corrupt",
    message: `a stored row of run ${runId} does not fit: was its schema changed?`,
    cause: error
  })

/**
 * The progress that a run's checkpoint holds; money in nano-dollars.
 *
 * @since 0.1.0
 */
export const Progress = Schema.Struct({
  nextChunk: Schema.Int,
  rows: Schema.Int,
  done: Schema.Int,
  partial: Schema.Int,
  failed: Schema.Int,
  spent: Usd,
  uncertain: Usd,
  calls: Schema.Int
})
/** @since 0.1.0 */
export type Progress = typeof Progress.Type

/**
 * The latest checkpoint of a run.
 *
 * @since 0.1.0
 */
export const lastCheckpoint = (
  runId: string
): Effect.Effect<Option.Option<Checkpoint<Progress>>, CheckpointError | StorageError, Checkpointer> =>
  Effect.flatMap(Checkpointer, (checkpointer) => checkpointer.resume(runId, Progress))

/**
 * The ids of the rows that a run's checkpoint covers (default the latest), in input order.
 *
 * @since 0.1.0
 */
export const doneIds = (runId: string, version?: number): Effect.Effect<ReadonlyArray<string>, StorageError, Journal> =>
  Effect.gen(function* () {
    const journal = yield* Journal
    const checkpoint = yield* journal.reads.checkpoint(runId, version)
    return checkpoint === undefined ? [] : yield* journal.reads.idsUpto(runId, checkpoint.uptoCommitSeq)
  })

/**
 * What names a row that is not there.
 *
 * @since 0.1.0
 */
export const noSuchRow = (runId: string, id: string) =>
  new InputError({
    reason: "bad_option",
    message: `run ${runId} has no row with the id ${JSON.stringify(id)}`,
    fix: "name rows by their ids as in the source; the words failed, partial, all, transient and none choose by kind"
  })
