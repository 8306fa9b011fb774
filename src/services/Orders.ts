/**
 * What an operator orders a run to do, from whatever process, and what each order does to the book. An order is in force once it is committed, whoever works on the run: a hold that comes after it
 * obeys it.
 *
 * @since 0.1.0
 */
import { Schema } from "effect"
import { type Group, type Refused, refused } from "./Group.ts"
import type { Book, Ended, Limits, Op, Order as OrderOf, OutcomeRecord, Verdict } from "./Records.ts"
import { Usd } from "./Usd.ts"

/** Who keeps calls from beginning, and why. `canary` and `detector` wait for an approval. @since 0.1.0 */
export const Pause = Schema.Struct({
  by: Schema.Literal("operator", "canary", "detector"),
  message: Schema.String
})

const optionalOrNone = <A, I>(schema: Schema.Schema<A, I>) => Schema.optional(Schema.NullOr(schema))

/**
 * `Pause`: no call begins; calls in flight end. `Unpause`: calls begin again. `Drain`: who works on the run now lets its calls end, and stops. `Cancel`: the run is given up for good. `Set`: other limits;
 * what is left out stays, null is none. `Requeue`: these ended rows run again, in a new epoch. `Approve`: what the canary or a detector found is accepted.
 *
 * @since 0.1.0
 */
export const Order = Schema.Union(
  Schema.TaggedStruct("Pause", Pause.fields),
  Schema.TaggedStruct("Unpause", {}),
  Schema.TaggedStruct("Drain", {}),
  Schema.TaggedStruct("Cancel", {}),
  Schema.TaggedStruct("Approve", {}),
  Schema.TaggedStruct("Set", {
    cap: optionalOrNone(Usd),
    maxCalls: optionalOrNone(Schema.Int),
    maxConcurrency: Schema.optional(Schema.Int),
    requestsPerMinute: optionalOrNone(Schema.Int),
    tokensPerMinute: optionalOrNone(Schema.Int)
  }),
  Schema.TaggedStruct("Requeue", {
    rows: Schema.Array(
      Schema.Struct({
        seq: Schema.Int,
        epoch: Schema.Int,
        kind: Schema.Literal("done", "partial", "failed")
      })
    )
  })
)

/** Rows that a canary runs first; `over`: it was passed or approved. @since 0.1.0 */
export const Canary = Schema.Struct({ rows: Schema.Int, over: Schema.Boolean })

/** An order is written down and carried out, in one commit. @since 0.1.0 */
export const give = (op: Extract<Op, { _tag: "Order" }>, group: Group): Verdict => {
  const book = group.book(op.runId)
  if (book === undefined) return refused("not_found")
  if (book.status === "cancelled") return refused("cancelled")
  const { at, by, runId } = op
  // Written as it is carried out: without the rows that somebody else queued again before.
  const order = op.order._tag === "Requeue" ? { ...op.order, rows: current(op.order.rows, book, group) } : op.order
  const change = changeOf(order, by, book, group)
  if ("_tag" in change) return change
  const n = book.orders + 1
  group.writes.orders.push({ runId, n, by, order, at })
  group.change(book, { ...change, orders: n })
  return { _tag: "Version", version: n }
}

const changeOf = (order: OrderOf, by: string, book: Book, group: Group): Partial<Book> | Refused => {
  switch (order._tag) {
    case "Pause":
      return book.status === "done" ? refused("done") : { paused: { by: order.by, message: order.message } }
    case "Unpause":
      return { paused: null, ...(book.paused?.by === "canary" ? { canary: passed(book) } : {}) }
    case "Drain":
      return {}
    case "Approve":
      return { paused: book.paused?.by === "operator" ? book.paused : null, canary: passed(book) }
    case "Cancel":
      return book.status === "done"
        ? refused("done")
        : { status: "cancelled", paused: null, reason: { kind: "cancelled", message: `cancelled by ${by}` } }
    case "Set": {
      const counted = book.spent + book.uncertain + book.held
      if (typeof order.cap === "number" && order.cap < counted) return refused("below_counted")
      return limitsOf(book, order)
    }
    case "Requeue":
      return { ...again(order.rows, book, group), ...(book.status === "done" && order.rows.length > 0 ? queued : {}) }
  }
}

const passed = ({ canary }: Book) => (canary === null ? null : { ...canary, over: true })

const queued: Pick<Book, "status" | "reason"> = {
  status: "suspended",
  reason: { kind: "operator", message: "rows were queued again" }
}

/** Those rows that are as they were read; of the others somebody else was first. */
const current = (rows: ReadonlyArray<Ended>, book: Book, group: Group) =>
  rows.filter(({ epoch, seq }) => group.epoch(book.runId, seq) === epoch)

/**
 * Ended rows go to a new epoch and are pending again; their older outcomes stay.
 *
 * @since 0.1.0
 */
export const again = (rows: ReadonlyArray<Ended>, book: Book, group: Group): Partial<Book> => {
  const same = current(rows, book, group)
  for (const { epoch, seq } of same) group.rerun({ runId: book.runId, seq, epoch: epoch + 1 })
  return pendingAgain(same, book)
}

/** The counts of a book once these rows are pending again. @since 0.1.0 */
export const pendingAgain = (rows: ReadonlyArray<Ended>, book: Book) => {
  const count = (kind: OutcomeRecord["kind"]) => rows.filter((row) => row.kind === kind).length
  return {
    done: book.done - count("done"),
    partial: book.partial - count("partial"),
    failed: book.failed - count("failed"),
    reruns: book.reruns + rows.length
  }
}

const limitsOf = (book: Book, limits: Limits) => ({
  cap: limits.cap === undefined ? book.cap : limits.cap,
  maxCalls: limits.maxCalls === undefined ? book.maxCalls : limits.maxCalls,
  maxConcurrency: limits.maxConcurrency ?? book.maxConcurrency,
  requestsPerMinute: limits.requestsPerMinute === undefined ? book.requestsPerMinute : limits.requestsPerMinute,
  tokensPerMinute: limits.tokensPerMinute === undefined ? book.tokensPerMinute : limits.tokensPerMinute,
  settings: limits.settings ?? book.settings
})

/**
 * A book under other limits; what is `undefined` stays.
 *
 * @since 0.1.0
 */
export const withLimits = (book: Book, limits: Limits): Book => ({ ...book, ...limitsOf(book, limits) })
