/**
 * Money and tokens. Money is an integer of nano-dollars, so sums are exact and do not depend on their order.
 *
 * @example
 * import { Usage, Usd } from "longhaul"
 * const total = Usage.add(Usage.zero, Usage.make({ inputTokens: 820, outputTokens: 110, cost: Usd.nano(189_000) }))
 * Usd.format(total.cost) // "$0.000189"
 *
 * @since 0.1.0
 */
import { Schema } from "effect"
import { Usd } from "./Usd.ts"

/**
 * What calls used: tokens and their cost in nano-dollars. Cached and cache-write tokens are parts of `inputTokens`, reasoning tokens a part
 * of `outputTokens` (https://platform.openai.com/docs/api-reference/chat/object). Frozen; a commutative monoid under {@link add}.
 *
 * @since 0.1.0
 */
export const Usage = Schema.Struct({
  inputTokens: Schema.NonNegativeInt,
  cachedTokens: Schema.NonNegativeInt,
  cacheWriteTokens: Schema.NonNegativeInt,
  outputTokens: Schema.NonNegativeInt,
  reasoningTokens: Schema.NonNegativeInt,
  cost: Usd
})

/** @since 0.1.0 */
export type Usage = typeof Usage.Type

/**
 * A frozen usage; every part that is left out is 0.
 *
 * @since 0.1.0
 */
export const make = (parts: Partial<Usage>): Usage =>
  Object.freeze({
    inputTokens: parts.inputTokens ?? 0,
    cachedTokens: parts.cachedTokens ?? 0,
    cacheWriteTokens: parts.cacheWriteTokens ?? 0,
    outputTokens: parts.outputTokens ?? 0,
    reasoningTokens: parts.reasoningTokens ?? 0,
    cost: parts.cost ?? Usd.zero
  })

/**
 * The unit of {@link add}.
 *
 * @since 0.1.0
 */
export const zero: Usage = make({})

/**
 * The sum of two usages: associative and commutative, exact.
 *
 * @since 0.1.0
 */
export const add = (a: Usage, b: Usage): Usage =>
  make({
    inputTokens: a.inputTokens + b.inputTokens,
    cachedTokens: a.cachedTokens + b.cachedTokens,
    cacheWriteTokens: a.cacheWriteTokens + b.cacheWriteTokens,
    outputTokens: a.outputTokens + b.outputTokens,
    reasoningTokens: a.reasoningTokens + b.reasoningTokens,
    cost: Usd.add(a.cost, b.cost)
  })

/**
 * The sum of any number of usages.
 *
 * @since 0.1.0
 */
export const sum = (usages: Iterable<Usage>): Usage => {
  let total = zero
  for (const usage of usages) total = add(total, usage)
  return total
}
