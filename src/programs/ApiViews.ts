/**
 * What the HTTP interface answers. Money in nano-dollars, times in milliseconds since 1970.
 *
 * @since 0.1.0
 */
import { Schema } from "effect"
import { Category, StopReason } from "../services/Errors.ts"
import * as Orders from "../services/Orders.ts"
import * as Usage from "../services/Usage.ts"
import { Usd } from "../services/Usd.ts"
import { Progress } from "./Report.ts"

const Unknowns = Schema.Record({ key: Schema.String, value: Schema.Unknown })
const IntOrNull = Schema.NullOr(Schema.Int)

const totals = {
  runId: Schema.String,
  job: Schema.String,
  status: Schema.Literal("loading", "running", "suspended", "done", "cancelled"),
  reason: Schema.NullOr(StopReason),
  paused: Schema.NullOr(Orders.Pause),
  rows: Schema.Int,
  filtered: Schema.Int,
  done: Schema.Int,
  partial: Schema.Int,
  failed: Schema.Int,
  pending: Schema.Int,
  usage: Usage.Usage,
  spent: Usd,
  uncertain: Usd,
  held: Usd,
  cap: Schema.NullOr(Usd),
  pool: Schema.NullOr(Schema.String),
  maxCalls: IntOrNull,
  maxConcurrency: Schema.Int,
  requestsPerMinute: IntOrNull,
  tokensPerMinute: IntOrNull,
  calls: Schema.Int,
  retries: Schema.Int,
  repairs: Schema.Int,
  replays: Schema.Int,
  storeHits: Schema.Int,
  memoHits: Schema.Int,
  unasked: Schema.Int,
  reruns: Schema.Int,
  kept: Schema.Int
}

/**
 * A run: its totals and where it is. `phase`: what this server's worker does with it; `idle`: no worker here. `working`: calls in flight, of the `allowed` ones. `rowsPerSecond`, over the last half
 * minute, and `secondsLeft`: null where nothing can be said.
 *
 * @since 0.1.0
 */
export const Run = Schema.Struct({
  ...totals,
  phase: Schema.Literal("idle", "loading", "running", "paused", "cooling", "provider_down", "stopping"),
  working: Schema.Int,
  allowed: Schema.Int,
  rowsPerSecond: Schema.NullOr(Schema.Number),
  secondsLeft: IntOrNull
}).annotations({ identifier: "Run" })
/** @since 0.1.0 */
export type Run = typeof Run.Type

/** @since 0.1.0 */
export const Begun = Schema.Struct({ runId: Schema.String }).annotations({ identifier: "Begun" })

/** What may be asked for, and the most that a request may ask. @since 0.1.0 */
export const Jobs = Schema.Struct({
  jobs: Schema.Array(Schema.String),
  sources: Schema.Array(Schema.String),
  maxRunUsd: Schema.Number,
  maxConcurrency: Schema.Int
}).annotations({ identifier: "Jobs" })

const Row = Schema.Struct({
  seq: Schema.Int,
  id: Schema.String,
  end: Schema.Literal("done", "partial", "failed", "pending"),
  record: Unknowns,
  /** The result, where there is one. */
  parsed: Schema.optional(Schema.Unknown),
  /** Of a partial row, what the model wrote. */
  output: Schema.optional(Schema.String),
  cost: Schema.optional(Usd),
  failure: Schema.optional(
    Schema.Struct({ category: Category, source: Schema.String, reason: Schema.String, message: Schema.String })
  )
}).annotations({ identifier: "Row" })
/** @since 0.1.0 */
export type Row = typeof Row.Type

/** `next`: give it as `after`; null: that was all. @since 0.1.0 */
export const Rows = Schema.Struct({ rows: Schema.Array(Row), next: IntOrNull }).annotations({ identifier: "Rows" })

/** @since 0.1.0 */
export const RowCall = Schema.Struct({
  epoch: Schema.Int,
  turn: Schema.Int,
  attempt: Schema.Int,
  model: Schema.String,
  state: Schema.Literal("settled", "uncertain", "released"),
  reason: Schema.String,
  usage: Usage.Usage,
  held: Usd,
  requestId: Schema.NullOr(Schema.String),
  at: Schema.Int,
  closedAt: Schema.Int
}).annotations({ identifier: "RowCall" })

/** @since 0.1.0 */
export const FailureGroup = Schema.Struct({
  kind: Schema.Literal("failed", "partial"),
  source: Schema.String,
  reason: Schema.String,
  category: Category,
  message: Schema.String,
  count: Schema.Int,
  burnt: Usd,
  rows: Schema.Array(Schema.String),
  remedy: Schema.Struct({ text: Schema.String, command: Schema.String, expectedCost: Usd })
}).annotations({ identifier: "FailureGroup" })

const Paid = Schema.Struct({ calls: Schema.Int, cost: Usd })

/** @since 0.1.0 */
export const Receipt = Schema.Struct({
  ...totals,
  settled: Paid,
  unknown: Paid,
  released: Paid,
  retried: Paid,
  repaired: Paid,
  storeSaved: Usd,
  cacheSaved: Usd,
  models: Schema.Array(Schema.Struct({ model: Schema.String, calls: Schema.Int, usage: Usage.Usage, uncertain: Usd })),
  prices: Schema.Array(Schema.Struct({ price: Schema.String, calls: Schema.Int, cost: Usd })),
  orders: Schema.Array(
    Schema.Struct({ runId: Schema.String, n: Schema.Int, by: Schema.String, order: Orders.Order, at: Schema.Int })
  ),
  digest: Schema.String
}).annotations({ identifier: "Receipt" })

/** @since 0.1.0 */
export const Checkpoint = Schema.Struct({
  version: Schema.Int,
  status: Schema.Literal("RUNNING", "SUSPENDED", "DONE"),
  at: Schema.Int,
  progress: Progress
}).annotations({ identifier: "Checkpoint" })

/** @since 0.1.0 */
export const Requeued = Schema.Struct({ rows: Schema.Int }).annotations({ identifier: "Requeued" })

/** @since 0.1.0 */
export const Health = Schema.Struct({ status: Schema.Literal("ok"), active: Schema.Int }).annotations({
  identifier: "Health"
})
