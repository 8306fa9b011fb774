/**
 * The typed errors. Each says what may be done about it by two words: its category (is it worth another try?) and its scope (does it concern
 * this row only, or can no row succeed?).
 *
 * @since 0.1.0
 */
import { Schema } from "effect"
import { Usage } from "./Usage.ts"
import { Usd } from "./Usd.ts"

/**
 * TRANSIENT: another try may succeed. PERMANENT: it will not. UNKNOWN: nobody knows, tried again a bounded number of times.
 *
 * @since 0.1.0
 */
export const Category = Schema.Literal("TRANSIENT", "PERMANENT", "UNKNOWN")
/** @since 0.1.0 */
export type Category = typeof Category.Type

/**
 * Whom an error concerns: one row, or the whole run (no row can succeed).
 *
 * @since 0.1.0
 */
export const Scope = Schema.Literal("row", "run")
/** @since 0.1.0 */
export type Scope = typeof Scope.Type

/**
 * What a row's result depends on. `content`: the row itself; `other`: the result is from before parts were recorded.
 *
 * @since 0.1.0
 */
export const Part = Schema.Literal("prompt", "schema", "model", "parameters", "content", "other")
/** @since 0.1.0 */
export type Part = typeof Part.Type

/**
 * What the provider billed for a call that failed. `none`: surely nothing. `known`: the reported usage. `uncertain`: perhaps; counted at its hold.
 *
 * @since 0.1.0
 */
export const Charge = Schema.Literal("none", "known", "uncertain")
/** @since 0.1.0 */
export type Charge = typeof Charge.Type

/**
 * Why a call failed. `rate_limited`: this client sends too much; `overloaded`: the provider has too much to do; `server_error`: something broke there.
 *
 * @since 0.1.0
 */
export const LLMErrorReason = Schema.Literal(
  "rate_limited",
  "overloaded",
  "server_error",
  "timeout",
  "connection",
  "quota",
  "auth",
  "model_not_found",
  "bad_request",
  "context_length",
  "refusal",
  "content_filter",
  "truncated",
  "invalid_response",
  "unknown"
)
/** @since 0.1.0 */
export type LLMErrorReason = typeof LLMErrorReason.Type

/**
 * One call to a provider failed. `retryAfterMs` is the provider's own wish, in milliseconds. `body` is the answer as it came, at most 2,000 characters; neither it
 * nor the message holds a key.
 *
 * @since 0.1.0
 */
export class LLMError extends Schema.TaggedError<LLMError>()("LLMError", {
  reason: LLMErrorReason,
  category: Category,
  scope: Scope,
  charge: Charge,
  message: Schema.String,
  status: Schema.optionalWith(Schema.Int, { exact: true }),
  retryAfterMs: Schema.optionalWith(Schema.NonNegative, { exact: true }),
  usage: Schema.optionalWith(Usage, { exact: true }),
  requestId: Schema.optionalWith(Schema.String, { exact: true }),
  body: Schema.optionalWith(Schema.String, { exact: true }),
  cause: Schema.optionalWith(Schema.Defect, { exact: true })
}) {}

/**
 * Whether a call was refused for the rate: it waits, and neither the row nor the provider is to blame.
 *
 * @since 0.1.0
 */
export const isRateLimited = ({ category, reason }: LLMError): boolean =>
  category === "TRANSIENT" && reason === "rate_limited"

/**
 * Whether a call met too much traffic: fewer at once may do better.
 *
 * @since 0.1.0
 */
export const isCrowded = (error: LLMError): boolean =>
  isRateLimited(error) || (error.category === "TRANSIENT" && error.reason === "overloaded")

/**
 * Whether the provider answered, if only to say that this row cannot be.
 *
 * @since 0.1.0
 */
export const isAnswered = ({ category, scope, status }: LLMError): boolean =>
  category === "PERMANENT" && scope === "row" && status !== undefined

/**
 * The provider is failing as a whole and the breaker is open; `cause` is the failure that opened it.
 *
 * @since 0.1.0
 */
export class CircuitOpen extends Schema.TaggedError<CircuitOpen>()("CircuitOpen", {
  message: Schema.String,
  cause: LLMError
}) {}

/**
 * The database refused. Scope: run. `path` is the file where there is one; the message names the fix. `regressed`: it lacks commits that it once had; `gone`: its file was
 * moved or deleted in use; `unsafe`: its commits would not survive a loss of power.
 *
 * @since 0.1.0
 */
export class StorageError extends Schema.TaggedError<StorageError>()("StorageError", {
  reason: Schema.Literal(
    "binding_missing",
    "cannot_open",
    "busy",
    "full",
    "read_only",
    "corrupt",
    "regressed",
    "gone",
    "unsafe",
    "schema",
    "broken",
    "failed"
  ),
  message: Schema.String,
  path: Schema.optionalWith(Schema.String, { exact: true }),
  cause: Schema.optionalWith(Schema.Defect, { exact: true })
}) {}

/**
 * Why a run stopped before its end. `budget`: the next call does not fit under the cap. `max_calls`: the call limit is reached. `provider`: no
 * row can succeed (quota, key, model). `outage`: the provider stayed down past the limit. `storage`: the book cannot be written. `fenced`:
 * another worker took the run over. `breach`: a bill above its hold, or an answer above its output limit. `unpriced`: an answer came from a model or tier without a
 * price. `operator`: asked to. `interrupted`: its process was. `cancelled`: given up for good. `fail_fast`: the first failed row, in fail-fast mode.
 *
 * @since 0.1.0
 */
export const StopReason = Schema.Struct({
  kind: Schema.Literal(
    "budget",
    "max_calls",
    "provider",
    "outage",
    "storage",
    "fenced",
    "breach",
    "unpriced",
    "operator",
    "interrupted",
    "cancelled",
    "fail_fast"
  ),
  message: Schema.String
})
/** @since 0.1.0 */
export type StopReason = typeof StopReason.Type

/**
 * The run stopped, so this call was not sent; its row stays pending. Never a row's failure.
 *
 * @since 0.1.0
 */
export class RunStopped extends Schema.TaggedError<RunStopped>()("RunStopped", { reason: StopReason }) {
  override get message() {
    return this.reason.message
  }
}

/**
 * Input that cannot be used. It names the file, the line and field where there are any, and the fix.
 *
 * @since 0.1.0
 */
export class InputError extends Schema.TaggedError<InputError>()("InputError", {
  reason: Schema.Literal(
    "not_found",
    "unreadable",
    "malformed",
    "bad_row",
    "duplicate_id",
    "empty",
    "bad_job",
    "bad_option"
  ),
  message: Schema.String,
  file: Schema.optionalWith(Schema.String, { exact: true }),
  line: Schema.optionalWith(Schema.Int, { exact: true }),
  field: Schema.optionalWith(Schema.String, { exact: true }),
  fix: Schema.optionalWith(Schema.String, { exact: true })
}) {}

/**
 * Rows that were done with something else than the job has now: how many changed in each part, and what it costs to run them again, in nano-dollars: by what a row cost
 * so far, and at most (one call a row).
 *
 * @since 0.1.0
 */
export const Drift = Schema.Struct({
  rows: Schema.Int,
  parts: Schema.partial(Schema.Record({ key: Part, value: Schema.Int })),
  expectedCost: Usd,
  atMost: Usd
})
/** @since 0.1.0 */
export type Drift = typeof Drift.Type

/**
 * The run cannot be started or resumed as asked. `busy`: a live process works on it. `not_found`: no such run. `wrong_job`: the id belongs to
 * another job. `drift`: rows done with another prompt, schema or model, and no choice was made. `budget_in_use`: this Budget already belongs to
 * another run. `no_cap`: neither a cap nor an explicit "no cap". `unpriced`: a cap needs a price, and one that can be right. `bad_fallback`: the job's fallback names
 * a provider that is not there. `mixed`: durable parts beside memory parts. `cancelled`, `done`: it is over, and takes no orders.
 *
 * @since 0.1.0
 */
export class RunRefused extends Schema.TaggedError<RunRefused>()("RunRefused", {
  reason: Schema.Literal(
    "busy",
    "not_found",
    "wrong_job",
    "drift",
    "budget_in_use",
    "no_cap",
    "bad_limit",
    "unpriced",
    "bad_fallback",
    "mixed",
    "cancelled",
    "done"
  ),
  message: Schema.String,
  drift: Schema.optionalWith(Drift, { exact: true })
}) {}

/**
 * A value has no canonical form (a function, a symbol, a cycle, NaN, an instance of an unknown class), so it has no key and no snapshot. `path` is where.
 *
 * @since 0.1.0
 */
export class UnsupportedValue extends Schema.TaggedError<UnsupportedValue>()("UnsupportedValue", {
  path: Schema.String,
  message: Schema.String
}) {}

/**
 * The chain of messages of an error and its causes, outermost first, at most eight, each at most 500 characters.
 *
 * @since 0.1.0
 */
export const causeChain = (error: unknown): ReadonlyArray<string> => {
  const chain: Array<string> = []
  let current: unknown = error
  while (current !== undefined && current !== null && chain.length < 8) {
    const message = current instanceof Error ? current.message : typeof current === "string" ? current : String(current)
    chain.push(message.slice(0, 500))
    current = current instanceof Error ? current.cause : undefined
  }
  return chain
}
