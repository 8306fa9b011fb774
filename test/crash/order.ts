/** What a process of a run is told. */
import { Schema } from "effect"

const Plant = Schema.Literal("check-then-charge")
export type Plant = typeof Plant.Type
export const isPlant = Schema.is(Plant)

/** `budget` in dollars; `point` and `nth`: where the process kills itself, if it does. */
export const Order = Schema.Struct({
  runId: Schema.String,
  db: Schema.String,
  source: Schema.String,
  out: Schema.String,
  /** The provider's base URL. */
  provider: Schema.String,
  budget: Schema.Number,
  concurrency: Schema.Int,
  timeoutMs: Schema.Int,
  point: Schema.optional(Schema.Literal("a", "b0", "b", "c", "d", "e", "f")),
  nth: Schema.Int,
  /** When it says that its work has begun: at its first commit, or at its first hold, a good while later in a new process. */
  ready: Schema.Literal("commit", "hold"),
  plant: Schema.optional(Plant)
})
export type Order = typeof Order.Type
