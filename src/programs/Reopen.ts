/**
 * Which rows of a run that exists are run again: those that failed by a passing error, those that the operator names, those that drifted.
 *
 * @since 0.1.0
 */
import { Effect, Either, Option, Stream } from "effect"
import type { OutcomeRecord, RowRecord } from "../services/Book.ts"
import { RunRefused } from "../services/Errors.ts"
import type { RunError, RunOptions } from "./Enrichment.ts"
import type { Live } from "./Execution.ts"
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
    if (book.commitSeq === 0) return new Map()
    const again: Array<OutcomeRecord> = []
    const drifted: Array<OutcomeRecord> = []
    // Rows of a re-run that was cut short: what made them drift then tells that their answers may still serve.
    const open: Array<OutcomeRecord> = []
    yield* Stream.runForEach(outcomePages(live), (page) =>
      Effect.gen(function* () {
        for (const { outcome, row } of page) {
          if (outcome === undefined) continue
          const ended = outcome.epoch === row.epoch
          if (ended && isAgain(outcome, options.retry ?? "transient")) {
            again.push(outcome)
            continue
          }
          // A process that was killed could not hand over what it had not yet given to the store.
          // Without a key it was never asked.
          if (outcome.key === "") continue
          const isStored = ended && outcome.kind === "done" && !outcome.fallback
          if (isStored && book.status === "running") feed.add(outcome.key, outcome.value, false)
          if (!(yield* hasDrifted(live, row, outcome.key))) continue
          if (ended) drifted.push(outcome)
          else open.push(outcome)
        }
      })
    )
    if (drifted.length > 0 && options.onDrift === undefined) return yield* driftRefused(book.runId, drifted.length)
    const rerun = options.onDrift === "rerun" ? drifted : []
    if (again.length + rerun.length > 0) {
      yield* journal.commit({ _tag: "Reopen", fence, rows: [...again, ...rerun] })
    }
    return new Map([...rerun, ...open].map((outcome) => [outcome.seq, outcome.epoch + 1]))
  })

const outcomePages = <Row, A, I>({ fence, job, journal }: Live<Row, A, I>) =>
  Stream.paginateEffect(-1, (after) =>
    Effect.map(journal.reads.results(fence.runId, after, job.chunkSize), (page) => {
      const last = page.at(-1)?.row.seq
      return [page, page.length < job.chunkSize ? Option.none() : Option.fromNullable(last)] as const
    })
  )

const isAgain = ({ category, kind }: OutcomeRecord, retry: NonNullable<RunOptions["retry"]>): boolean => {
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

const hasDrifted = <Row, A, I>({ book, job }: Live<Row, A, I>, row: RowRecord, key: string) =>
  Effect.map(RowLoop.prepare(job, row, RunRecord.isText(book)), (now) => Either.isRight(now) && now.right.key !== key)

const driftRefused = (runId: string, rows: number) =>
  new RunRefused({
    reason: "drift",
    message: `${rows} rows of run ${runId} were done with another prompt, schema, model or parameter: keep them (onDrift: "keep", --keep) or run them again (onDrift: "rerun", --rerun)`
  })
