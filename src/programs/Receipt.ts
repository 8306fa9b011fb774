/**
 * The bill of a run, from its calls: what was paid for, to whom, at which price, and what was saved. Every figure is a sum over the calls as they stand in the book, exact, and in constant memory.
 *
 * @example
 * import { Effect } from "effect"
 * import { Memory, Receipt } from "longhaul"
 * const bill = Receipt.receipt("vendors-2026-07-03-abc").pipe(
 *   Effect.map(({ digest, models, spent }) => ({ digest, models, spent })),
 *   Effect.provide(Memory.layer) // Sqlite.layer({ filename: "vendors.db" })
 * )
 *
 * @since 0.1.0
 */
import { Effect, Option, Schema, Stream } from "effect"
import type { CallRecord, OrderRecord } from "../services/Book.ts"
import * as Digest from "../services/Digest.ts"
import type { InputError, RunRefused, StorageError } from "../services/Errors.ts"
import { Journal } from "../services/Journal.ts"
import * as Pages from "../services/Pages.ts"
import * as Price from "../services/Price.ts"
import * as Usage from "../services/Usage.ts"
import { Usd } from "../services/Usd.ts"
import * as Report from "./Report.ts"

/** Calls and what they count at, in nano-dollars. @since 0.1.0 */
export interface Count {
  readonly calls: number
  readonly cost: Usd
}

/** What one model was paid. @since 0.1.0 */
export interface ModelBill {
  readonly model: string
  readonly calls: number
  readonly usage: Usage.Usage
  readonly uncertain: Usd
}

/** What was billed by one row of the price table, which is given whole, so that the bill can be checked. @since 0.1.0 */
export interface PriceBill extends Count {
  readonly price: string
}

/**
 * The bill. `settled`: calls whose end the provider told; `uncertain`: calls that may have been billed, at their holds; `released`: calls that surely were not. `retries` and `repairs` are parts of these:
 * what other tries of a turn, and turns that asked for a better answer, cost. `storeSaved` is estimated: rows taken from the store at what a row cost here. `cacheSaved` is exact: the provider's discount for cached
 * input. `digest` is one for any order in which the calls were settled, see `Digest`. `orders`: what operators did meanwhile.
 *
 * @since 0.1.0
 */
export interface Receipt extends Report.Totals {
  readonly settled: Count
  readonly unknown: Count
  readonly released: Count
  readonly retried: Count
  readonly repaired: Count
  readonly storeSaved: Usd
  readonly cacheSaved: Usd
  readonly models: ReadonlyArray<ModelBill>
  readonly prices: ReadonlyArray<PriceBill>
  readonly orders: ReadonlyArray<OrderRecord>
  readonly digest: string
}

/**
 * The bill of a run, as far as it is.
 *
 * @since 0.1.0
 */
export const receipt = (runId: string): Effect.Effect<Receipt, RunRefused | StorageError, Journal> =>
  Effect.gen(function* () {
    const { reads } = yield* Journal
    const totals = yield* Report.status(runId)
    const bill = yield* Stream.runFold(Pages.calls(reads, runId), start(), (bill, page) => page.reduce(withCall, bill))
    const orders = yield* reads.orders(runId, 0)
    const { done, failed, partial, spent, storeHits } = totals
    const paidRows = Math.max(1, done + partial + failed - storeHits)
    return {
      ...totals,
      settled: bill.settled,
      unknown: bill.unknown,
      released: bill.released,
      retried: bill.retried,
      repaired: bill.repaired,
      storeSaved: Usd.nano(Math.round((spent / paidRows) * storeHits)),
      cacheSaved: bill.cacheSaved,
      models: [...bill.models.values()].sort((a, b) => b.usage.cost - a.usage.cost),
      prices: [...bill.prices.values()].sort((a, b) => b.cost - a.cost),
      orders,
      digest: Digest.format(bill.digest)
    }
  })

/** One call of a row, for whoever asks what it cost. Times in milliseconds since 1970. @since 0.1.0 */
export interface RowCall {
  readonly epoch: number
  readonly turn: number
  readonly attempt: number
  readonly model: string
  readonly state: CallRecord["state"]
  readonly reason: string
  readonly usage: Usage.Usage
  readonly held: Usd
  readonly requestId: Option.Option<string>
  readonly at: number
  readonly closedAt: number
}

/**
 * Every call of one row, in the order in which they were sent.
 *
 * @since 0.1.0
 */
export const rowCalls = (
  runId: string,
  rowId: string
): Effect.Effect<ReadonlyArray<RowCall>, InputError | RunRefused | StorageError, Journal> =>
  Effect.gen(function* () {
    const { reads } = yield* Journal
    const rows = Stream.filter(Report.ends(runId), ({ row }) => row.id === rowId)
    const found = yield* Stream.runHead(rows)
    if (Option.isNone(found)) return yield* Report.noSuchRow(runId, rowId)
    const { seq } = found.value.row
    const calls = yield* Stream.runFold(Pages.calls(reads, runId), [], (kept: ReadonlyArray<CallRecord>, page) => [
      ...kept,
      ...page.filter((call) => call.seq === seq)
    ])
    return calls.map(rowCallOf).sort((a, b) => a.at - b.at)
  })

const rowCallOf = (call: CallRecord): RowCall => {
  const { amount, at, attempt, closedAt, epoch, model, reason, requestId, state, turn } = call
  const cost = state === "released" ? Usd.zero : call.cost
  const usage = Usage.make({ ...call, cost })
  return {
    epoch,
    turn,
    attempt,
    model,
    state,
    reason,
    usage,
    held: amount,
    requestId: Option.fromNullable(requestId),
    at,
    closedAt
  }
}

interface Bill {
  readonly settled: Count
  readonly unknown: Count
  readonly released: Count
  readonly retried: Count
  readonly repaired: Count
  readonly cacheSaved: Usd
  readonly models: Map<string, ModelBill>
  readonly prices: Map<string, PriceBill>
  readonly digest: bigint
}

const none: Count = { calls: 0, cost: Usd.zero }
const start = (): Bill => ({
  settled: none,
  unknown: none,
  released: none,
  retried: none,
  repaired: none,
  cacheSaved: Usd.zero,
  models: new Map(),
  prices: new Map(),
  digest: Digest.empty
})

const plus = ({ calls, cost }: Count, more: Usd): Count => ({ calls: calls + 1, cost: Usd.add(cost, more) })

/** Money that a damaged database lost is a call of no model: it counts, and nobody was paid for it. */
const withCall = (bill: Bill, call: CallRecord): Bill => {
  const { cost, model, price, state } = call
  const known = bill.models.get(model) ?? { model, calls: 0, usage: Usage.zero, uncertain: Usd.zero }
  const isSettled = state === "settled"
  bill.models.set(model, {
    model,
    calls: known.calls + 1,
    usage: isSettled ? Usage.add(known.usage, Usage.make(call)) : known.usage,
    uncertain: state === "uncertain" ? Usd.add(known.uncertain, cost) : known.uncertain
  })
  if (isSettled) bill.prices.set(price, { price, ...plus(bill.prices.get(price) ?? none, cost) })
  return {
    ...bill,
    settled: isSettled ? plus(bill.settled, cost) : bill.settled,
    unknown: state === "uncertain" ? plus(bill.unknown, cost) : bill.unknown,
    released: state === "released" ? plus(bill.released, cost) : bill.released,
    retried: call.attempt > 0 ? plus(bill.retried, cost) : bill.retried,
    repaired: call.turn > 0 && call.attempt === 0 ? plus(bill.repaired, cost) : bill.repaired,
    cacheSaved: Usd.add(bill.cacheSaved, isSettled ? savedByCache(call) : Usd.zero),
    digest: Digest.add(bill.digest, textOf(call))
  }
}

/** What the call is, whoever made it and whenever. */
const textOf = (call: CallRecord): string =>
  JSON.stringify([
    call.seq,
    call.epoch,
    call.turn,
    call.attempt,
    call.request,
    call.model,
    call.price,
    call.state,
    call.cost,
    call.inputTokens,
    call.cachedTokens,
    call.cacheWriteTokens,
    call.outputTokens,
    call.reasoningTokens,
    call.requestId
  ])

const priceOf = Schema.decodeOption(Price.PriceRowJson)

/** What the cached tokens would have cost besides, at the plain price of the row; its long-context rule aside. */
const savedByCache = (call: CallRecord): Usd => {
  if (call.cachedTokens === 0) return Usd.zero
  return Option.match(priceOf(call.price), {
    onNone: () => Usd.zero,
    onSome: ({ longContext: _, ...row }) =>
      Usd.nano(Math.max(0, Price.cost(row, { ...call, cachedTokens: 0 }) - Price.cost(row, call)))
  })
}
