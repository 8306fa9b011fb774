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
import { Context, type Effect } from "effect"
import type { LLMError } from "./Errors.ts"

/** @since 0.1.0 */
export interface Message {
  readonly role: "system" | "user" | "assistant"
  readonly content: string
}

/**
 * How the answer is asked for: constrained to a JSON schema, any JSON object, or text.
 *
 * @since 0.1.0
 */
export type ResponseFormat =
  | { readonly mode: "json_schema"; readonly name: string; readonly schema: object }
  | { readonly mode: "json_object" }
  | { readonly mode: "text" }

/**
 * One question to a model. Frozen, with all that it holds; never changed on its way down. `maxOutputTokens` is always sent: the hold rests on it.
 *
 * @since 0.1.0
 */
export interface ChatRequest {
  readonly model: string
  readonly messages: ReadonlyArray<Message>
  readonly maxOutputTokens: number
  readonly format: ResponseFormat
  readonly temperature?: number
  readonly effort?: "none" | "low" | "medium" | "high"
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
 * What came back. `usage` is `undefined` where the provider reported none or nonsense: the call then counts at its hold. `refusal` is the
 * model's own "no". `finish`: `stop`, `length`, `content_filter`, or the provider's own word.
 *
 * @since 0.1.0
 */
export interface ChatAnswer {
  readonly text: string
  readonly model: string
  readonly usage: TokenUsage | undefined
  readonly finish: string
  readonly refusal: string | undefined
  readonly requestId: string | undefined
}

/** @since 0.1.0 */
export interface LLMShape {
  /** The provider's name: breaker and cool-down belong to it. */
  readonly provider: string
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
 * A frozen request.
 *
 * @since 0.1.0
 */
export const request = (parts: ChatRequest): ChatRequest =>
  Object.freeze({
    ...parts,
    messages: Object.freeze(parts.messages.map((message) => Object.freeze({ ...message }))),
    format: Object.freeze({ ...parts.format })
  })

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
    finish: parts.finish ?? "stop",
    refusal: parts.refusal,
    requestId: parts.requestId
  })
