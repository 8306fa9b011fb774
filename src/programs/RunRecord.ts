/**
 * A run's record in the book: made when the run is new, then claimed for this process, with the limits it was given.
 *
 * @since 0.1.0
 */
import { Effect, Schema, type Scope } from "effect"
import { type Book, type Fence, type Limits, withLimits } from "../services/Book.ts"
import { RunRefused, type StorageError } from "../services/Errors.ts"
import type { JournalShape } from "../services/Journal.ts"
import { Usd } from "../services/Usd.ts"
import * as Worker from "./Worker.ts"

/** What a new run begins with; everything else is zero. @since 0.1.0 */
export type Fresh = Pick<Book, "runId" | "job" | "scope" | "status" | "source" | "createdAt" | "chunkSize">

/**
 * Opens a run for as long as the scope is open. A new run needs a cap, or an explicit null for none. The book is given under the new limits; they are in force once
 * the caller commits them (`Limits`), so that a run which is then refused keeps its own.
 *
 * @since 0.1.0
 */
export const open = (
  journal: JournalShape,
  options: { readonly found: Book | undefined; readonly fresh: Fresh; readonly limits: Limits }
): Effect.Effect<{ readonly book: Book; readonly fence: Fence }, RunRefused | StorageError, Scope.Scope> =>
  Effect.gen(function* () {
    const { found, fresh, limits } = options
    const { cap } = limits
    if (found !== undefined && found.job !== fresh.job) {
      const message = `run ${found.runId} belongs to job ${found.job}, not to ${fresh.job}`
      return yield* new RunRefused({ reason: "wrong_job", message })
    }
    if (found === undefined) {
      if (cap === undefined) return yield* noCap
      yield* journal.commit({ _tag: "Create", book: bookOf(fresh, cap, limits) })
    }
    const fence = yield* Worker.claim(journal, fresh.runId)
    const book = yield* journal.reads.book(fresh.runId)
    return book === undefined ? yield* gone(fresh.runId) : { book: withLimits(book, limits), fence }
  })

const noCap = new RunRefused({
  reason: "no_cap",
  message: "say how much the run may cost: maxCostUsd (--budget), or noCap: true (--no-cap)"
})

const gone = (runId: string) => new RunRefused({ reason: "not_found", message: `run ${runId} was deleted just now` })

const bookOf = (fresh: Fresh, cap: Usd | null, limits: Limits): Book => ({
  ...fresh,
  cap,
  maxCalls: limits.maxCalls ?? null,
  maxConcurrency: limits.maxConcurrency ?? 8,
  settings: limits.settings ?? "{}",
  reason: null,
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
  commitSeq: 0
})

/**
 * Whether the cells of the source that the manifest was read from are text.
 *
 * @since 0.1.0
 */
export const isText = (book: Book): boolean => Schema.decodeSync(SourceRecord)(book.source).text
const SourceRecord = Schema.parseJson(
  Schema.Struct({ kind: Schema.String, location: Schema.String, text: Schema.Boolean })
)
