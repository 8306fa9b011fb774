/**
 * The raw provider: what an LLM layer supplies. Inside a run nothing but the Invoker calls it, so each call is metered.
 *
 * @example
 * import { Effect, Layer } from "effect"
 * import { LLM } from "longhaul"
 * const echo = Layer.succeed(LLM.LLM, {
 *   provider: "echo",
 *   generate: (request) => Effect.succeed(LLM.answer({ text: request.messages.at(-1)?.content ?? "", model: request.model, usage: undefined }))
 * })
 *
 * @since 0.1.0
 */
import { Context, Effect, Layer } from "effect"
import type { LLMError } from "./Errors.ts"
import type { Usd } from "./Usd.ts"

/** @since 0.1.0 */
export interface Message {
  readonly role: "system" | "user" | "assistant"
  readonly content: string
}

/**
 * How the answer is asked for: constrained to a JSON schema (`strict`: enforced, and the schema in the subset that allows it), any JSON object, or text.
 *
 * @since 0.1.0
 */
export type ResponseFormat =
  | { readonly mode: "json_schema"; readonly name: string; readonly schema: object; readonly strict: boolean }
  | { readonly mode: "json_object" }
  | { readonly mode: "text" }

/**
 * How much a reasoning model thinks before it writes (https://platform.openai.com/docs/guides/reasoning); not every model knows every word.
 *
 * @since 0.1.0
 */
export type Effort = "none" | "minimal" | "low" | "medium" | "high" | "xhigh" | "max"

/**
 * One question to a model. Frozen, with all that it holds; never changed on its way down. `maxOutputTokens`, reasoning included, is always sent: the hold rests on
 * it. `tier`: the service tier that is asked for, the provider's own default without it.
 *
 * @since 0.1.0
 */
export interface ChatRequest {
  readonly model: string
  readonly messages: ReadonlyArray<Message>
  readonly maxOutputTokens: number
  readonly format: ResponseFormat
  readonly temperature?: number
  readonly effort?: Effort
  readonly tier?: string
}

/**
 * The tokens a provider reports. Cached and cache-write tokens are parts of `inputTokens`, reasoning tokens a part of `outputTokens`.
 *
 * @since 0.1.0
 */
export interface TokenUsage {
  readonly inputTokens: number
  readonly cachedTokens: number
  readonly cacheWriteTokens: number
  readonly outputTokens: number
  readonly reasoningTokens: number
}

/**
 * No tokens at all.
 *
 * @since 0.1.0
 */
export const noTokens: TokenUsage = {
  inputTokens: 0,
  cachedTokens: 0,
  cacheWriteTokens: 0,
  outputTokens: 0,
  reasoningTokens: 0
}

/**
 * What a provider says of its limits: how many requests and tokens a minute it takes, and how long (milliseconds) it wants to be left alone because
 * nothing is left of them.
 *
 * @since 0.1.0
 */
export interface RateLimits {
  readonly requestsPerMinute?: number | undefined
  readonly tokensPerMinute?: number | undefined
  readonly waitMs?: number | undefined
}

/**
 * What came back. `usage` is `undefined` where the provider reported none or nonsense: the call then counts at its hold. `cost`: what the provider itself says that
 * it billed. `tier`: the service tier that answered. `refusal` is the model's own "no". `finish`: `stop`, `length`, `content_filter`, or the provider's own word.
 *
 * @since 0.1.0
 */
export interface ChatAnswer {
  readonly text: string
  readonly model: string
  readonly usage: TokenUsage | undefined
  readonly cost: Usd | undefined
  readonly tier: string | undefined
  readonly finish: string
  readonly refusal: string | undefined
  readonly requestId: string | undefined
  readonly limits: RateLimits | undefined
}

/** @since 0.1.0 */
export interface LLMShape {
  /** The provider's name: breaker and cool-down belong to it. */
  readonly provider: string
  /** How a typed output is best asked for here; default `json_schema`. */
  readonly outputMode?: ResponseFormat["mode"]
  /** Whether a limit of tokens a minute counts the output limit when a call begins, and not what it used in the end; default false. */
  readonly countsOutputLimit?: boolean
  /** The tier that is asked for where a request names none; without it a project's own default may be served, and every hold covers the dearest tier. */
  readonly standardTier?: string | undefined
  /** How many times the price of the table everything costs here; default 1. */
  readonly priceFactor?: number
  /** Providers besides this one, for a job's fallback. */
  readonly others?: ReadonlyArray<LLMShape>
  /**
   * Exactly one physical request: no retry inside, no redirect followed. Interruption aborts it.
   */
  readonly generate: (request: ChatRequest) => Effect.Effect<ChatAnswer, LLMError>
}

/**
 * The raw provider.
 *
 * @since 0.1.0
 */
export class LLM extends Context.Tag("longhaul/LLM")<LLM, LLMShape>() {}

/**
 * Several providers as one: the first answers, the others serve a job's fallback by their names.
 *
 * @since 0.1.0
 */
export const several = <E, R>(
  first: Layer.Layer<LLM, E, R>,
  ...others: ReadonlyArray<Layer.Layer<LLM, E, R>>
): Layer.Layer<LLM, E, R> => {
  const shapeOf = (layer: Layer.Layer<LLM, E, R>) => Effect.map(Layer.build(layer), Context.get(LLM))
  return Layer.scoped(
    LLM,
    Effect.zipWith(shapeOf(first), Effect.forEach(others, shapeOf), (shape, rest) => ({
      ...shape,
      others: [shape, ...rest].flatMap((one, i) => [...(i === 0 ? [] : [one]), ...(one.others ?? [])])
    }))
  )
}

/**
 * A frozen request. Half of a surrogate pair, as in a text that was cut within a character, becomes U+FFFD: servers refuse the whole request for it.
 *
 * @since 0.1.0
 */
export const request = (parts: ChatRequest): ChatRequest =>
  Object.freeze({
    ...parts,
    messages: Object.freeze(
      parts.messages.map((message) => Object.freeze({ ...message, content: wellFormed(message.content) }))
    ),
    format: Object.freeze({ ...parts.format })
  })

const wellFormed = (text: string): string => text.replaceAll(/\p{Surrogate}/gu, "\ufffd")

/**
 * A frozen answer; what is left out is the ordinary case.
 *
 * @since 0.1.0
 */
export const answer = (parts: Pick<ChatAnswer, "text" | "model" | "usage"> & Partial<ChatAnswer>): ChatAnswer =>
  Object.freeze({
    text: parts.text,
    model: parts.model,
    usage: parts.usage === undefined ? undefined : Object.freeze({ ...parts.usage }),
    cost: parts.cost,
    tier: parts.tier,
    finish: parts.finish ?? "stop",
    refusal: parts.refusal,
    requestId: parts.requestId,
    limits: parts.limits
  })
