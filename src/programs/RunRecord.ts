/**
 * A run's record in the book: made when the run is new, then claimed for this process, with the limits it was given.
 *
 * @since 0.1.0
 */
import { Effect, Schema, type Scope } from "effect"
import { type Book, type Limits, type Pool, withLimits } from "../services/Book.ts"
import { RunRefused, type StorageError } from "../services/Errors.ts"
import type { JournalShape } from "../services/Journal.ts"
import type { RowSource } from "../services/RowSource.ts"
import { Usd } from "../services/Usd.ts"
import * as Soundness from "./Soundness.ts"
import * as Worker from "./Worker.ts"

/** What a new run begins with; everything else is zero. @since 0.1.0 */
export type Fresh = Pick<Book, "runId" | "job" | "scope" | "status" | "source" | "createdAt" | "chunkSize"> &
  Partial<Pick<Book, "canary">>

/** @since 0.1.0 */
export interface Opening {
  readonly fresh: Fresh
  readonly limits: Limits
  /** The cap that it shares with other runs: a new run joins it, and one that exists must be in it. */
  readonly pool?: Pick<Pool, "id" | "cap"> | undefined
  /** Go on although the database has lost commits; the money of which it has no record any more counts as uncertain. */
  readonly acceptLoss?: boolean | undefined
}

/** @since 0.1.0 */
export interface Opened extends Worker.Claim {
  readonly book: Book
}

/**
 * Opens a run for as long as the scope is open. A new run needs a cap, or an explicit null for none. A run that exists must be sound: the database undamaged, the book
 * equal to its records, and no commit lost. The book is given under the new limits; they are in force once the caller commits them (`Limits`), so that a run which is
 * then refused keeps its own.
 *
 * @since 0.1.0
 */
export const open = (
  journal: JournalShape,
  { acceptLoss = false, fresh, limits, pool }: Opening
): Effect.Effect<Opened, RunRefused | StorageError, Scope.Scope> =>
  Effect.gen(function* () {
    const { runId } = fresh
    const ready = Effect.gen(function* () {
      const found = yield* journal.reads.book(runId)
      if (found !== undefined && found.job !== fresh.job) return yield* wrongJob(found, fresh.job)
      if (found === undefined && limits.cap === undefined) return yield* noCap
      if (found !== undefined && pool !== undefined && found.pool !== pool.id) return yield* otherPool(found, pool.id)
      const missing = yield* Soundness.verify(journal, runId, found, acceptLoss)
      if (pool !== undefined) yield* journal.commit({ _tag: "Pool", ...pool })
      if (found === undefined) {
        yield* journal.commit({ _tag: "Create", book: bookOf(fresh, limits.cap ?? null, limits, pool?.id ?? null) })
      }
      return missing
    })
    const claimed = yield* Worker.claim(journal, runId, ready)
    const book = yield* journal.reads.book(runId)
    // Only now: what a killed worker had under way is closed by the claim.
    if (book?.status === "cancelled") return yield* cancelled(runId)
    return book === undefined ? yield* gone(runId) : { book: withLimits(book, limits), ...claimed }
  })

const wrongJob = (found: Book, job: string) =>
  new RunRefused({ reason: "wrong_job", message: `run ${found.runId} belongs to job ${found.job}, not to ${job}` })

const otherPool = ({ pool, runId }: Book, asked: string) =>
  new RunRefused({
    reason: "bad_limit",
    message: `run ${runId} was begun ${pool === null ? "without a pool" : `in pool ${pool}`} and cannot be counted in pool ${asked}`
  })

/**
 * What a run answers that was given up.
 *
 * @since 0.1.0
 */
export const cancelled = (runId: string) =>
  new RunRefused({
    reason: "cancelled",
    message: `run ${runId} was cancelled: begin a new one, which takes its results from the store for nothing`
  })

const noCap = new RunRefused({
  reason: "no_cap",
  message: "say how much the run may cost: maxCostUsd (--budget), or noCap: true (--no-cap)"
})

const gone = (runId: string) => new RunRefused({ reason: "not_found", message: `run ${runId} was deleted just now` })

const bookOf = (fresh: Fresh, cap: Usd | null, limits: Limits, pool: string | null): Book => ({
  canary: null,
  ...fresh,
  cap,
  pool,
  maxCalls: limits.maxCalls ?? null,
  maxConcurrency: limits.maxConcurrency ?? 8,
  requestsPerMinute: limits.requestsPerMinute ?? null,
  tokensPerMinute: limits.tokensPerMinute ?? null,
  settings: limits.settings ?? "{}",
  reason: null,
  paused: null,
  orders: 0,
  rows: 0,
  filtered: 0,
  spent: Usd.zero,
  uncertain: Usd.zero,
  held: Usd.zero,
  calls: 0,
  retries: 0,
  repairs: 0,
  replays: 0,
  storeHits: 0,
  memoHits: 0,
  unasked: 0,
  reruns: 0,
  inputTokens: 0,
  cachedTokens: 0,
  cacheWriteTokens: 0,
  outputTokens: 0,
  reasoningTokens: 0,
  done: 0,
  partial: 0,
  failed: 0,
  kept: 0,
  commitSeq: 0
})

/**
 * A source as a run's record keeps it.
 *
 * @since 0.1.0
 */
export const sourceText = ({
  kind,
  location,
  stamp = Effect.succeed(undefined),
  text
}: RowSource): Effect.Effect<string> => Effect.map(stamp, (stamp) => JSON.stringify({ kind, location, text, stamp }))

/**
 * Says that a source is not what it was when a run listed its rows, which stay as they were. `undefined`: it is, as far as can be seen.
 *
 * @since 0.1.0
 */
export const sourceChange = (book: Book, source: RowSource): Effect.Effect<string | undefined> =>
  Effect.map(sourceText(source), (now) => {
    const before = Schema.decodeSync(SourceRecord)(book.source)
    const { location, stamp } = Schema.decodeSync(SourceRecord)(now)
    if (location === before.location && (stamp === before.stamp || before.stamp === undefined)) return undefined
    if (location === before.location && stamp === undefined) {
      return `${location} cannot be found from here; run ${book.runId} goes on with the rows as it listed them`
    }
    const what =
      location === before.location
        ? `${location} changed`
        : `the source is ${location}, not ${before.location} any more,`
    return `${what} since run ${book.runId} listed its rows, which stay as they were; longhaul refresh ${book.runId} shows the difference`
  })

/**
 * Where the rows of a run came from: a path, a table.
 *
 * @since 0.1.0
 */
export const sourceLocation = (book: Book): string => Schema.decodeSync(SourceRecord)(book.source).location

/**
 * Whether the cells of the source that the manifest was read from are text.
 *
 * @since 0.1.0
 */
export const isText = (book: Book): boolean => Schema.decodeSync(SourceRecord)(book.source).text
const SourceRecord = Schema.parseJson(
  Schema.Struct({
    kind: Schema.String,
    location: Schema.String,
    text: Schema.Boolean,
    stamp: Schema.optional(Schema.String)
  })
)
