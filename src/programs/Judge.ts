/**
 * Which answers are none: a refusal, a cut, nothing at all. All are billed. Internal.
 *
 * @since 0.1.0
 */
import { clean } from "../services/Classify.ts"
import { LLMError } from "../services/Errors.ts"
import type { ChatAnswer, ChatRequest } from "../services/LLM.ts"

/**
 * A failure in the shape of a success: it is billed, and another try gives the same. `undefined`: the answer can be read.
 *
 * @since 0.1.0
 */
export const judge = (answer: ChatAnswer, { maxOutputTokens }: ChatRequest): LLMError | undefined => {
  if (answer.refusal !== undefined) {
    return billed("refusal", "PERMANENT", "the model refused to answer", new Error(clean(answer.refusal)))
  }
  if (answer.finish === "content_filter")
    return billed("content_filter", "PERMANENT", "the content filter cut the answer")
  const thoughtOnly = answer.text.trim() === "" && (answer.usage?.reasoningTokens ?? 0) > 0
  if (answer.finish === "length" || thoughtOnly) {
    return billed("truncated", "PERMANENT", truncated(answer, maxOutputTokens))
  }
  return undefined
}

/** A reasoning model may spend the whole limit on thoughts that nobody sees. */
const truncated = ({ text, usage }: ChatAnswer, limit: number): string =>
  text.trim() === "" && usage !== undefined && usage.reasoningTokens > 0
    ? `all ${usage.outputTokens} output tokens went into reasoning and none into the answer: raise maxOutputTokens (${limit}), or lower effort`
    : `the answer was cut at the output limit of ${limit} tokens: raise maxOutputTokens`

const billed = (reason: LLMError["reason"], category: LLMError["category"], message: string, cause?: Error) =>
  new LLMError({ reason, category, scope: "row", charge: "known", message, ...(cause === undefined ? {} : { cause }) })

/** The model wrote nothing, or the server says that it broke off. @since 0.1.0 */
export const isEmpty = (answer: ChatAnswer, request: ChatRequest): boolean =>
  (answer.text.trim() === "" || brokenOff.has(answer.finish)) && judge(answer, request) === undefined
const brokenOff = new Set(["error", "abort", "insufficient_system_resource"])

/** Billed too, but another try may bring more. @since 0.1.0 */
export const empty = billed("invalid_response", "TRANSIENT", "the answer is empty")
