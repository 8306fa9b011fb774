/**
 * How money moves in the book: a hold and the three ways to close it, the takeover of a dead worker's holds, and what becomes known later. Internal to Book.
 *
 * @since 0.1.0
 */
import { callId, fenced, type Group, gone, ok, type Refused, refused } from "./Group.ts"
import { noTokens, type TokenUsage } from "./LLM.ts"
import type { Book, CallRecord, CorrectionRecord, HoldRecord, Op, Settled, Verdict, WorkerRecord } from "./Records.ts"
import { Usd } from "./Usd.ts"

/** A worker takes a run over: the dead ones are fenced and their open holds become uncertain, in the same commit. @since 0.1.0 */
export const claim = (op: Extract<Op, { _tag: "Claim" }>, group: Group): Verdict => {
  const { worker, dead } = op
  const book = group.book(worker.runId)
  if (book === undefined || group.latestWorker(worker.runId) !== worker.worker - 1) return refused("claimed")
  // Also those of a worker that is not live for another reason: nobody else would ever close them.
  const isDead = (record: HoldRecord) => dead.includes(record.worker) || group.live(record) === undefined
  const open = group.open(worker.runId).filter(isDead)
  for (const record of open) {
    group.close(record)
    group.writes.calls.push(closed(record, "uncertain", record.amount, noTokens, "crash", worker.beatAt))
  }
  const moved = open.reduce((sum, record) => sum + record.amount, 0)
  if (op.lost > 0) group.writes.calls.push(missing(worker, op.lost))
  group.change(book, { held: Usd.nano(book.held - moved), uncertain: Usd.nano(book.uncertain + moved + op.lost) })
  for (const other of dead) group.writes.workers.push(gone({ runId: worker.runId, worker: other }))
  group.writes.workers.push(worker)
  group.claim(worker, dead)
  return ok
}

/** The cap is held here, before the call: spent + uncertain + held + this must not pass it. @since 0.1.0 */
export const hold = (op: Extract<Op, { _tag: "Hold" }>, group: Group): Verdict => {
  const book = group.live(op.hold)
  if (book === undefined) return fenced
  if (book.status === "cancelled") return refused("cancelled")
  if (book.paused !== null) return refused("paused")
  const { amount, attempt, turn } = op.hold
  if (book.cap !== null && book.spent + book.uncertain + book.held + amount > book.cap) return refused("cap")
  if (book.maxCalls !== null && book.calls >= book.maxCalls) return refused("max_calls")
  const full = poolFor(amount, book, group)
  if (full !== undefined) return full
  group.writes.holds.set(callId(op.hold), op.hold)
  group.change(book, {
    held: Usd.add(book.held, amount),
    calls: book.calls + 1,
    retries: book.retries + (attempt > 0 ? 1 : 0),
    repairs: book.repairs + (turn > 0 && attempt === 0 ? 1 : 0)
  })
  return ok
}

/** Whether the pool has room: never again (`pool`), or perhaps when calls of its other runs have ended (`pool_busy`). */
const poolFor = (amount: Usd, book: Book, group: Group): Refused | undefined => {
  if (book.pool === null) return undefined
  const pool = group.pool(book.pool)
  if (pool === undefined) return refused("pool")
  const counted = pool.spent + pool.uncertain + amount
  if (pool.cap === null || counted + pool.held <= pool.cap) return undefined
  return refused(counted > pool.cap ? "pool" : "pool_busy")
}

/** A hold is closed by what the provider may have billed: what was reported, all of it, or nothing. @since 0.1.0 */
export const close = (op: Extract<Op, { _tag: "Settle" | "Uncertain" | "Release" }>, group: Group): Verdict => {
  const { hold: record } = op
  const book = group.live(record)
  if (book === undefined) return fenced
  const held = Usd.nano(book.held - record.amount)
  group.close(record)
  switch (op._tag) {
    case "Settle": {
      const { usage, cost } = op.close
      group.writes.calls.push({
        ...closed(record, "settled", cost, usage, op.close.reason, op.close.at),
        ...pick(op.close)
      })
      group.change(book, { held, spent: Usd.add(book.spent, cost), ...addTokens(book, usage) })
      return ok
    }
    case "Uncertain":
      group.writes.calls.push({
        ...closed(record, "uncertain", record.amount, noTokens, op.reason, op.at),
        answer: op.answer,
        requestId: op.requestId
      })
      group.change(book, { held, uncertain: Usd.add(book.uncertain, record.amount) })
      return ok
    case "Release":
      if (!op.sent) {
        group.change(book, {
          held,
          calls: book.calls - 1,
          retries: book.retries - (record.attempt > 0 ? 1 : 0),
          repairs: book.repairs - (record.turn > 0 && record.attempt === 0 ? 1 : 0)
        })
        return ok
      }
      group.writes.calls.push(closed(record, "released", Usd.zero, noTokens, op.reason, op.at))
      group.change(book, { held })
      return ok
  }
}

const addTokens = (book: Book, usage: TokenUsage): TokenUsage => ({
  inputTokens: book.inputTokens + usage.inputTokens,
  cachedTokens: book.cachedTokens + usage.cachedTokens,
  cacheWriteTokens: book.cacheWriteTokens + usage.cacheWriteTokens,
  outputTokens: book.outputTokens + usage.outputTokens,
  reasoningTokens: book.reasoningTokens + usage.reasoningTokens
})

const pick = (close: Settled) => ({ answer: close.answer, finish: close.finish, requestId: close.requestId })

const closed = (
  record: HoldRecord,
  state: CallRecord["state"],
  cost: Usd,
  usage: TokenUsage,
  reason: string,
  closedAt: number
): CallRecord => ({
  state,
  cost,
  inputTokens: usage.inputTokens,
  cachedTokens: usage.cachedTokens,
  cacheWriteTokens: usage.cacheWriteTokens,
  outputTokens: usage.outputTokens,
  reasoningTokens: usage.reasoningTokens,
  reason,
  answer: null,
  finish: null,
  requestId: null,
  closedAt,
  // Last: V8 makes a new hidden class for each name that follows a spread, 1 µs a name.
  ...record
})

/**
 * An uncertain call became exact: it counts as spent at its true cost. What a stale worker says may only lower its own call's charge; what the operator or the provider
 * says is the truth.
 *
 * @since 0.1.0
 */
export const correct = (correction: CorrectionRecord, group: Group): Verdict => {
  const book = group.book(correction.runId)
  const counted = group.uncertain(correction)
  if (book === undefined || counted === undefined) return refused("not_uncertain")
  if (correction.source === "late" && correction.cost > counted) return refused("above_hold")
  group.exact(correction)
  group.writes.corrections.push(correction)
  group.change(book, {
    uncertain: Usd.nano(book.uncertain - counted),
    spent: Usd.add(book.spent, correction.cost),
    ...addTokens(book, correction)
  })
  return ok
}

/** The money of which a damaged database has no record, as a call: number 0, as a worker numbers its own from 1. */
const missing = ({ beatAt, runId, worker }: WorkerRecord, amount: Usd): CallRecord =>
  closed(
    {
      runId,
      worker,
      n: 0,
      seq: -1,
      epoch: 0,
      turn: 0,
      attempt: 0,
      request: "",
      model: "",
      amount,
      price: "{}",
      at: beatAt
    },
    "uncertain",
    amount,
    noTokens,
    "lost",
    beatAt
  )
