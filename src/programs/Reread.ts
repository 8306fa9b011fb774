/**
 * Reads answers that were paid for once more, with the job's present parser and schema: what fits now costs nothing.
 *
 * @since 0.1.0
 */
import { Effect, Either, Option, Schema, Stream } from "effect"
import type { CallRecord, Ended, OutcomeFacts } from "../services/Book.ts"
import type { StorageError } from "../services/Errors.ts"
import { deepFreeze } from "../services/Freeze.ts"
import type { RowResult } from "../services/Journal.ts"
import type { AgentResult } from "../services/Outcome.ts"
import * as Usage from "../services/Usage.ts"
import type { Live } from "./Execution.ts"
import { StoredAnswer } from "./Invoker.ts"
import type { Survey } from "./Reopen.ts"
import * as RowLoop from "./RowLoop.ts"
import * as RunRecord from "./RunRecord.ts"

/** Calls a page. */
const PAGE = 500

/**
 * Rows that are partial, or whose prompt, schema or model changed since, end as done where the last answer in the book can be read as the job's output now; they leave the survey. The
 * others stay as they are.
 *
 * @since 0.1.0
 */
export const reread = <Row, A, I>(
  live: Live<Row, A, I>,
  feed: RowLoop.StoreFeed,
  { again, drifted, partial }: Survey
): Effect.Effect<void, StorageError> =>
  Effect.gen(function* () {
    const candidates = new Map([...again, ...drifted, ...partial].filter(([, { kind }]) => kind !== "failed"))
    if (candidates.size === 0) return
    const paid = yield* answersOf(live, candidates)
    for (const [seq, calls] of paid) {
      const [found] = yield* live.journal.reads.results(live.fence.runId, seq - 1, 1)
      if (found === undefined || !(yield* readAgain(live, feed, found, calls))) continue
      for (const rows of [again, drifted, partial]) rows.delete(seq)
    }
    yield* live.journal.flush
  })

/** The calls of each candidate's last epoch. */
const answersOf = <Row, A, I>({ fence, journal }: Live<Row, A, I>, candidates: ReadonlyMap<number, Ended>) => {
  const pages = Stream.paginateEffect({ worker: 0, n: 0 }, (after) =>
    Effect.map(journal.reads.calls(fence.runId, after, PAGE), (page) => {
      const last = page.at(-1)
      return [page, page.length < PAGE || last === undefined ? Option.none() : Option.some(last)] as const
    })
  )
  return Stream.runFold(pages, new Map<number, Array<CallRecord>>(), (paid, page) => {
    for (const call of page) {
      if (candidates.get(call.seq)?.epoch !== call.epoch) continue
      paid.set(call.seq, [...(paid.get(call.seq) ?? []), call])
    }
    return paid
  })
}

const decodeAnswer = Schema.decodeEither(StoredAnswer)

/** True where the row's last answer fits now: it is the outcome of a new epoch. */
const readAgain = <Row, A, I>(
  live: Live<Row, A, I>,
  feed: RowLoop.StoreFeed,
  { outcome, row }: RowResult,
  calls: ReadonlyArray<CallRecord>
): Effect.Effect<boolean> =>
  Effect.gen(function* () {
    const { book, fence, job, journal } = live
    const prepared = yield* RowLoop.prepare(job, row, RunRecord.isText(book))
    const asked = Option.getOrUndefined(Either.getRight(prepared))
    const texts = calls.flatMap(({ answer }) => Option.toArray(Either.getRight(decodeAnswer(answer ?? ""))))
    const last = texts.filter(({ finish, refusal }) => finish === "stop" && refusal === undefined).at(-1)
    if (outcome === undefined || asked === undefined || last === undefined) return false
    const value = job.agent.read(last.text)
    if (Either.isLeft(value) || RowLoop.isAbout(job, row.id)?.(value.right) !== undefined) return false
    const result: AgentResult<A> = deepFreeze({
      output: last.text,
      parsed: value.right,
      usage: Usage.sum(calls.map((call) => (call.state === "settled" ? Usage.make(call) : Usage.zero))),
      partial: false,
      promptVersion: job.agent.promptVersion
    })
    const [end, json] = RowLoop.encoder(job.agent.output)(Either.right(result))
    if (Either.isLeft(end)) return false
    const { key, made } = asked
    const epoch = row.epoch + 1
    const place = { runId: fence.runId, seq: row.seq, epoch, key, made, fallback: outcome.fallback }
    journal.append({ _tag: "Reopen", fence, rows: [outcome] })
    journal.append({ _tag: "Outcome", fence, outcome: { ...place, kind: "done", category: "", value: json }, facts })
    if (!outcome.fallback) feed.add(key, json, true)
    return true
  })

/** A pass over the row that took no call. */
const facts: OutcomeFacts = {
  storeHit: false,
  memoHits: 0,
  replays: 1,
  freeRepairs: 0,
  unasked: false,
  fallback: false
}
