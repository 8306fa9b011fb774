/**
 * Which rows of a run that exists are run again: those that failed by a passing error, those that the operator names, those that drifted.
 *
 * @since 0.1.0
 */
import { Effect, Either, Option, Stream } from "effect"
import type { OutcomeRecord, RowRecord } from "../services/Book.ts"
import { InputError, type Part, RunRefused } from "../services/Errors.ts"
import * as Price from "../services/Price.ts"
import * as Recipe from "../services/Recipe.ts"
import { Usd } from "../services/Usd.ts"
import type { RunError, RunOptions } from "./Enrichment.ts"
import type { Live } from "./Execution.ts"
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
    if (options.reread === true) yield* Reread.reread(live, feed, found)
    if (book.commitSeq === 0) return new Map()
    const { again, drifted, open } = found
    const kept = options.onDrift === "keep" ? drifted.size : 0
    if (drifted.size > 0 && options.onDrift === undefined) return yield* driftRefused(live, [...drifted.values()])
    if (kept !== book.kept) journal.append({ _tag: "Kept", fence, rows: kept })
    const rerun = options.onDrift === "rerun" ? outcomesOf(drifted) : []
    if (again.size + rerun.length > 0) {
      yield* journal.commit({ _tag: "Reopen", fence, rows: [...outcomesOf(again), ...rerun] })
    }
    return new Map([...rerun, ...outcomesOf(open)].map((outcome) => [outcome.seq, outcome.epoch + 1]))
  })

/** A row that has an outcome, and how it would be asked now. @since 0.1.0 */
export interface Candidate {
  readonly row: RowRecord
  readonly outcome: OutcomeRecord
  readonly asked: Option.Option<RowLoop.Asked>
}

/** By `seq`. @since 0.1.0 */
export type Candidates = Map<number, Candidate>

/** @since 0.1.0 */
export interface Survey {
  /** To be run again. */
  readonly again: Candidates
  /** Partial, and not to be run again. */
  readonly partial: Candidates
  /** Done with something else than what the job has now. */
  readonly drifted: Candidates
  /** Rows of a re-run that was cut short: what made them drift then tells that their answers may still serve. */
  readonly open: Candidates
}

const outcomesOf = (candidates: Candidates): ReadonlyArray<OutcomeRecord> =>
  [...candidates.values()].map(({ outcome }) => outcome)

const survey = <Row, A, I>(live: Live<Row, A, I>, feed: RowLoop.StoreFeed): Effect.Effect<Survey, RunError> =>
  Effect.gen(function* () {
    const { book, job, options } = live
    const { retry = "transient" } = options
    const found: Survey = { again: new Map(), partial: new Map(), drifted: new Map(), open: new Map() }
    const named = new Set(typeof retry === "string" ? [] : retry.rows)
    const missing = new Set(named)
    const text = RunRecord.isText(book)
    yield* Stream.runForEach(outcomePages(live), (page) =>
      Effect.gen(function* () {
        for (const { outcome, row } of page) {
          missing.delete(row.id)
          if (outcome === undefined) continue
          const ended = outcome.epoch === row.epoch
          const isNamed = typeof retry === "string" ? isAgain(outcome, retry) : named.has(row.id)
          const asked = Either.getRight(yield* RowLoop.prepare(job, row, text))
          const candidate = { row, outcome, asked }
          if (ended && isNamed) {
            found.again.set(row.seq, candidate)
            continue
          }
          // Without a key it was never asked.
          if (outcome.key === "") continue
          // A process that was killed could not hand over what it had not yet given to the store.
          const isStored = ended && outcome.kind === "done" && !outcome.fallback
          if (isStored && book.status === "running") feed.add(outcome.key, outcome.value, false)
          if (Option.exists(asked, ({ key }) => key !== outcome.key)) {
            if (ended) found.drifted.set(row.seq, candidate)
            else found.open.set(row.seq, candidate)
          } else if (ended && outcome.kind === "partial") found.partial.set(row.seq, candidate)
        }
      })
    )
    const [unknown] = missing
    return unknown === undefined ? found : yield* noSuchRow(book.runId, unknown)
  })

const outcomePages = <Row, A, I>({ book, fence, job, journal }: Live<Row, A, I>) =>
  book.status === "loading"
    ? Stream.empty
    : Stream.paginateEffect(-1, (after) =>
        Effect.map(journal.reads.results(fence.runId, after, job.chunkSize), (page) => {
          const last = page.at(-1)?.row.seq
          return [page, page.length < job.chunkSize ? Option.none() : Option.fromNullable(last)] as const
        })
      )

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

const noSuchRow = (runId: string, id: string) =>
  new InputError({
    reason: "bad_option",
    message: `run ${runId} has no row with the id ${JSON.stringify(id)}`,
    fix: "name rows by their ids as in the source; the words failed, partial, all, transient and none choose by kind"
  })

/** How many rows changed in which part; a row may have changed in several. */
const driftRefused = <Row, A, I>(live: Live<Row, A, I>, drifted: ReadonlyArray<Candidate>) => {
  const { book } = live
  const counts: Partial<Record<Part, number>> = {}
  let atMost = 0
  for (const { asked, outcome } of drifted) {
    if (Option.isNone(asked)) continue
    for (const part of Recipe.changes(outcome.made, asked.value.made)) counts[part] = (counts[part] ?? 0) + 1
    atMost += holdOf(live, asked.value)
  }
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
