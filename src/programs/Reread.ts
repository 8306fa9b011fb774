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
import * as Pages from "../services/Pages.ts"
import * as Usage from "../services/Usage.ts"
import type { Live } from "./Execution.ts"
import { StoredAnswer } from "./Invoker.ts"
import * as RowLoop from "./RowLoop.ts"
import * as RunRecord from "./RunRecord.ts"

/** A row whose paid answer can be read now: its end, and what its new outcome is to be. @since 0.1.0 */
export interface Read extends Ended {
  readonly key: string
  readonly made: string
  readonly fallback: boolean
  readonly json: string
}

/**
 * Which of these rows have an answer in the book that can be read as the job's output now. Nothing is written.
 *
 * @since 0.1.0
 */
export const plan = <Row, A, I>(
  live: Live<Row, A, I>,
  readable: ReadonlyMap<number, Ended>
): Effect.Effect<ReadonlyArray<Read>, StorageError> =>
  Effect.gen(function* () {
    const read: Array<Read> = []
    if (readable.size === 0) return read
    for (const [seq, calls] of yield* answersOf(live, readable)) {
      const [found] = yield* live.journal.reads.results(live.fence.runId, seq - 1, 1)
      const one = found === undefined ? undefined : yield* readAgain(live, found, calls)
      if (one !== undefined) read.push(one)
    }
    return read
  })

/**
 * Ends these rows as done, each in a new epoch.
 *
 * @since 0.1.0
 */
export const record = <Row, A, I>(
  { fence, journal }: Live<Row, A, I>,
  feed: RowLoop.StoreFeed,
  read: ReadonlyArray<Read>
): Effect.Effect<void, StorageError> =>
  Effect.suspend(() => {
    for (const { epoch, fallback, json, key, kind, made, seq } of read) {
      const outcome = {
        runId: fence.runId,
        seq,
        epoch: epoch + 1,
        key,
        made,
        fallback,
        kind: "done" as const,
        category: ""
      }
      journal.append({ _tag: "Reopen", fence, rows: [{ seq, epoch, kind }] })
      journal.append({ _tag: "Outcome", fence, outcome: { ...outcome, value: json }, facts })
      if (!fallback) feed.add(key, json, true)
    }
    return read.length === 0 ? Effect.void : journal.flush
  })

/** The calls of each candidate's last epoch. */
const answersOf = <Row, A, I>({ fence, journal }: Live<Row, A, I>, candidates: ReadonlyMap<number, Ended>) => {
  return Stream.runFold(Pages.calls(journal.reads, fence.runId), new Map<number, Array<CallRecord>>(), (paid, page) => {
    for (const call of page) {
      if (candidates.get(call.seq)?.epoch !== call.epoch) continue
      paid.set(call.seq, [...(paid.get(call.seq) ?? []), call])
    }
    return paid
  })
}

const decodeAnswer = Schema.decodeEither(StoredAnswer)

/** The row's new outcome, where its last answer fits now. */
const readAgain = <Row, A, I>(
  { book, job }: Live<Row, A, I>,
  { outcome, row }: RowResult,
  calls: ReadonlyArray<CallRecord>
): Effect.Effect<Read | undefined> =>
  Effect.gen(function* () {
    const asked = Option.getOrUndefined(Either.getRight(yield* RowLoop.prepare(job, row, RunRecord.isText(book))))
    const texts = calls.flatMap(({ answer }) => Option.toArray(Either.getRight(decodeAnswer(answer ?? ""))))
    const last = texts.filter(({ finish, refusal }) => finish === "stop" && refusal === undefined).at(-1)
    if (outcome === undefined || asked === undefined || last === undefined) return undefined
    const value = job.agent.read(last.text)
    if (Either.isLeft(value) || RowLoop.isAbout(job, row.id)?.(value.right) !== undefined) return undefined
    const result: AgentResult<A> = deepFreeze({
      output: last.text,
      parsed: value.right,
      usage: Usage.sum(calls.map((call) => (call.state === "settled" ? Usage.make(call) : Usage.zero))),
      partial: false,
      promptVersion: job.agent.promptVersion
    })
    const [end, json] = RowLoop.encoder(job.agent.output)(Either.right(result))
    if (Either.isLeft(end)) return undefined
    const { epoch, fallback, kind, seq } = outcome
    return { seq, epoch, kind, fallback, json, key: asked.key, made: asked.made }
  })

/** A pass over the row that took no call. */
const facts: OutcomeFacts = { ...RowLoop.noFacts, replays: 1 }
