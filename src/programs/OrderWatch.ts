/**
 * What the worker of a run does with the orders that other processes give it. The book obeys them at once; this is how their worker learns of it. Internal.
 *
 * @since 0.1.0
 */
import { Effect, Schedule, type Scope } from "effect"
import type { Book, Fence, OrderRecord } from "../services/Book.ts"
import type { StorageError } from "../services/Errors.ts"
import type { JournalShape } from "../services/Journal.ts"
import type { Meter } from "../services/Meter.ts"

/** How often a worker looks for orders, in milliseconds. */
const LOOK_MS = 250

/** Told of each order, once it is carried out. @since 0.1.0 */
export type OnOrder = (record: OrderRecord) => void

/** @since 0.1.0 */
export interface OrderWatch {
  /** Reads what was ordered since the last time, and carries it out. Never twice at once. */
  readonly hear: (onOrder: OnOrder) => Effect.Effect<void, StorageError>
  /** The number of the last order that was heard. */
  readonly heard: () => number
  /** Hears for as long as the scope is open. */
  readonly watch: (onOrder: OnOrder) => Effect.Effect<void, never, Scope.Scope>
}

/** @since 0.1.0 */
export interface OrderWatchOptions {
  readonly journal: JournalShape
  readonly fence: Fence
  readonly meter: Meter
  /** The book when the run was claimed: what was ordered before is in it. */
  readonly book: Book
}

/**
 * The ear of a run's worker.
 *
 * @since 0.1.0
 */
export const make = ({ book: claimed, fence, journal, meter }: OrderWatchOptions): OrderWatch => {
  const { runId } = fence
  let heard = claimed.orders

  const hear = Effect.fnUntraced(function* (onOrder: OnOrder) {
    const book = yield* journal.reads.book(runId)
    if (book === undefined) return
    if (book.orders > heard) {
      const { cap, maxCalls, maxConcurrency, requestsPerMinute, tokensPerMinute } = book
      meter.dispatch({ _tag: "Limits", cap, maxCalls, maxConcurrency, requestsPerMinute, tokensPerMinute })
      for (const record of yield* journal.reads.orders(runId, heard)) {
        // Ordered since the book was read: its limits are not in it.
        if (record.n > book.orders) break
        heard = record.n
        const { by, order } = record
        if (order._tag === "Drain") meter.stop({ kind: "operator", message: `drained by ${by}` })
        if (order._tag === "Cancel") meter.stop({ kind: "cancelled", message: `cancelled by ${by}` })
        onOrder(record)
      }
    }
    // By what the book says, not by the orders: a hold that was refused for a pause may be heard of after its end.
    const { paused } = meter.state()
    if (book.paused === null && paused !== null) meter.dispatch({ _tag: "Unpause" })
    if (book.paused !== null && book.paused.message !== paused?.message) {
      meter.dispatch({ _tag: "Pause", pause: book.paused })
    }
  })

  const watch = (onOrder: OnOrder) =>
    hear(onOrder).pipe(
      Effect.delay(LOOK_MS),
      Effect.repeat(Schedule.forever),
      Effect.catchAll((error) => Effect.sync(() => meter.stop({ kind: "storage", message: error.message }))),
      Effect.forkScoped,
      Effect.asVoid
    )
  return { hear, heard: () => heard, watch }
}
