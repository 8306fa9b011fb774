/**
 * A row that could not be done, as a value: it stands in the row's place in the results, is stored, listed and exported. It is not an exception.
 *
 * @example
 * import { Either } from "effect"
 * import type { Outcome } from "longhaul"
 * const describe = (outcome: Outcome.Outcome<unknown>) =>
 *   Either.isLeft(outcome) ? `${outcome.left.source}: ${outcome.left.message}` : "done"
 *
 * @since 0.1.0
 */
import { Schema } from "effect"
import { Category, causeChain, type LLMError } from "./Errors.ts"

/**
 * `source` says which part failed (`llm`, `agent`, `row`), `reason` is a code to group by, `cause` the chain of messages, outermost first.
 *
 * @since 0.1.0
 */
export const Failure = Schema.TaggedStruct("Failure", {
  category: Category,
  source: Schema.String,
  reason: Schema.String,
  message: Schema.String,
  cause: Schema.Array(Schema.String)
})

/** @since 0.1.0 */
export type Failure = typeof Failure.Type

/**
 * A frozen failure.
 *
 * @since 0.1.0
 */
export const make = (failure: Omit<Failure, "_tag">): Failure =>
  Object.freeze({ _tag: "Failure", ...failure, cause: Object.freeze([...failure.cause]) })

/**
 * The failure of a row whose call failed for good.
 *
 * @since 0.1.0
 */
export const fromLLMError = (error: LLMError): Failure =>
  make({
    category: error.category,
    source: "llm",
    reason: error.reason,
    message: error.message,
    cause: causeChain(error.cause)
  })

/**
 * The failure of a row whose own code failed or died.
 *
 * @since 0.1.0
 */
export const fromUnknown = (error: unknown): Failure => {
  const [message = "unknown error", ...cause] = causeChain(error)
  return make({ category: "PERMANENT", source: "row", reason: "unknown", message, cause })
}

/**
 * True of a {@link Failure}.
 *
 * @since 0.1.0
 */
export const is = Schema.is(Failure)
