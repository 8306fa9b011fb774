/**
 * Which rows of a run that exists are run again: those that failed by a passing error, those that the operator names, those that drifted.
 *
 * @since 0.1.0
 */
import { Effect, Either, Option, Stream } from "effect"
import type { Book, Ended, OutcomeRecord } from "../services/Book.ts"
import { type Part, RunRefused } from "../services/Errors.ts"
import * as Pages from "../services/Pages.ts"
import * as Price from "../services/Price.ts"
import * as Recipe from "../services/Recipe.ts"
import { Usd } from "../services/Usd.ts"
import type { RunError, RunOptions } from "./Enrichment.ts"
import type { Live } from "./Execution.ts"
import * as Report from "./Report.ts"
import * as Reread from "./Reread.ts"
import * as RowLoop from "./RowLoop.ts"
import * as RunRecord from "./RunRecord.ts"

/**
 * Rows that are to be run again go to a new epoch: those that the options name, and with `onDrift: "rerun"` those whose request or reading changed since. The
 * latter may use answers that stand in the book: the result is their new epoch by `seq`.
 *
 * @since 0.1.0
 */
export const reopen = <Row, A, I>(
  live: Live<Row, A, I>,
  feed: RowLoop.StoreFeed
): Effect.Effect<ReadonlyMap<number, number>, RunError> =>
  Effect.gen(function* () {
    const { book, fence, journal, options } = live
    const found = yield* survey(live, feed)
    if (book.commitSeq === 0) return new Map()
    const { again, drifted, open, readable } = found
    const read = options.reread === true ? yield* Reread.plan(live, readable) : []
    for (const { seq } of read) for (const rows of [again, drifted]) rows.delete(seq)
    if (drifted.size > 0 && options.onDrift === undefined) return yield* driftRefused(book, [...drifted.values()])
    // Only now: a run that was refused stays as it was.
    yield* Reread.record(live, feed, read)
    const kept = options.onDrift === "keep" ? drifted.size : 0
    if (kept !== book.kept) journal.append({ _tag: "Kept", fence, rows: kept })
    const rerun = options.onDrift === "rerun" ? [...drifted.values()] : []
    if (again.size + rerun.length > 0) {
      yield* journal.commit({ _tag: "Reopen", fence, rows: [...again.values(), ...rerun] })
    }
    return new Map([...rerun, ...open.values()].map(({ epoch, seq }) => [seq, epoch + 1]))
  })

/** A row that was done with something else than what the job has now: what changed, and the most that asking again costs, in nano-dollars. @since 0.1.0 */
export interface Drifted extends Ended {
  readonly parts: ReadonlyArray<Part>
  readonly hold: number
}

/** Rows of a run by `seq`: small values, as a run may have a million of them. @since 0.1.0 */
export interface Survey {
  /** To be run again. */
  readonly again: Map<number, Ended>
  /**
   * Those whose paid answers may be read again: partial ones, and those where the schema changed and nothing else. What was answered to another question is no answer
   * to this one, and a row that is done and fits was named to be asked anew.
   */
  readonly readable: Map<number, Ended>
  /** Done with something else than what the job has now. */
  readonly drifted: Map<number, Drifted>
  /** Rows of a re-run that was cut short: what made them drift then tells that their answers may still serve. */
  readonly open: Map<number, Ended>
}

const survey = <Row, A, I>(live: Live<Row, A, I>, feed: RowLoop.StoreFeed): Effect.Effect<Survey, RunError> =>
  Effect.gen(function* () {
    const { book, job, options } = live
    const { retry = "transient" } = options
    const found: Survey = { again: new Map(), readable: new Map(), drifted: new Map(), open: new Map() }
    const named = new Set(typeof retry === "string" ? [] : retry.rows)
    // While the rows are being listed none has ended, and none can be missed.
    const missing = new Set(book.status === "loading" ? [] : named)
    const text = RunRecord.isText(book)
    yield* Stream.runForEach(outcomePages(live), (page) =>
      Effect.gen(function* () {
        for (const { outcome, row } of page) {
          missing.delete(row.id)
          if (outcome === undefined) continue
          const { epoch, kind, seq } = outcome
          const end: Ended = { seq, epoch, kind }
          const ended = epoch === row.epoch
          const isNamed = typeof retry === "string" ? isAgain(outcome, retry) : named.has(row.id)
          const asked = Option.getOrUndefined(Either.getRight(yield* RowLoop.prepare(job, row, text)))
          const parts = asked === undefined || asked.key === outcome.key ? [] : changedParts(outcome, asked)
          const isSameQuestion = asked !== undefined && parts.every((part) => part === "schema")
          if (ended && isSameQuestion && kind !== "failed" && (kind === "partial" || parts.length > 0)) {
            found.readable.set(seq, end)
          }
          if (ended && isNamed) {
            found.again.set(seq, end)
            continue
          }
          // Without a key it was never asked.
          if (outcome.key === "") continue
          // A process that was killed could not hand over what it had not yet given to the store.
          const isStored = ended && kind === "done" && !outcome.fallback
          if (isStored && book.status === "running") feed.add(outcome.key, outcome.value, epoch > 0)
          if (asked !== undefined && parts.length > 0) {
            if (ended) found.drifted.set(seq, { ...end, parts, hold: holdOf(live, asked) })
            else found.open.set(seq, end)
          }
        }
      })
    )
    const [unknown] = missing
    return unknown === undefined ? found : yield* Report.noSuchRow(book.runId, unknown)
  })

/** A scope that changed is in no recipe. */
const changedParts = (outcome: OutcomeRecord, asked: RowLoop.Asked): ReadonlyArray<Part> => {
  const parts = Recipe.changes(outcome.made, asked.made)
  return parts.length === 0 ? ["other"] : parts
}

const outcomePages = <Row, A, I>({ book, fence, job, journal }: Live<Row, A, I>) =>
  book.status === "loading" ? Stream.empty : Pages.results(journal.reads, fence.runId, { size: job.chunkSize })

const isAgain = (
  { category, kind }: OutcomeRecord,
  retry: Extract<NonNullable<RunOptions["retry"]>, string>
): boolean => {
  switch (retry) {
    case "none":
      return false
    case "all":
      return true
    case "partial":
      return kind === "partial"
    case "failed":
      return kind === "failed"
    case "transient":
      return kind === "failed" && category !== "PERMANENT"
  }
}

/** How many rows changed in which part; a row may have changed in several. */
const driftRefused = (book: Book, drifted: ReadonlyArray<Drifted>) => {
  const counts: Partial<Record<Part, number>> = {}
  for (const { parts } of drifted) for (const part of parts) counts[part] = (counts[part] ?? 0) + 1
  const atMost = drifted.reduce((sum, { hold }) => sum + hold, 0)
  const ended = Math.max(1, book.done + book.partial + book.failed)
  const drift = {
    rows: drifted.length,
    parts: counts,
    expectedCost: Usd.nano(Math.ceil((book.spent / ended) * drifted.length)),
    atMost: Usd.nano(atMost)
  }
  const what = Object.entries(counts).map(([part, rows]) => `${part} ${rows}`)
  const price = `to run them again costs about ${Usd.format(drift.expectedCost)}, at most ${Usd.format(drift.atMost)}, repairs and retries aside`
  return new RunRefused({
    reason: "drift",
    drift,
    message: `${drift.rows} rows of run ${book.runId} were done with something else than the job has now (changed: ${what.join(", ")}); ${price}. Keep them (onDrift: "keep", --keep) or run them again (onDrift: "rerun", --rerun)`
  })
}

/** The most that the row's first question can cost; nothing where it has no price. */
const holdOf = <Row, A, I>({ now, prices }: Live<Row, A, I>, { request }: RowLoop.Asked): number =>
  Option.match(Price.find(prices, request.model, now), { onNone: () => 0, onSome: (row) => Price.hold(row, request) })
