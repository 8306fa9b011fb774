/**
 * Prices from the package `@pydantic/genai-prices`, which must be installed beside this library: many providers, kept up to date by others. The built-in table and
 * a user's own rows go before it.
 *
 * @example
 * import { Price } from "longhaul"
 * import * as PriceGenai from "longhaul/genai-prices"
 * const prices = Price.layer(PriceGenai.rows("mistral"))
 *
 * @since 0.1.0
 */
import { type ConditionalPrice, findProvider, type ModelPrice } from "@pydantic/genai-prices"
import type { PriceRow } from "../services/Price.ts"

/**
 * The price rows of one of its providers (`openai`, `anthropic`, `google`, `mistral`, …), each under the model's own id. A model whose price depends on the time of day,
 * has more than one step, or is incomplete is left out: it stays unknown and is refused under a cap, never guessed.
 *
 * @since 0.1.0
 */
export const rows = (providerId: string): ReadonlyArray<PriceRow> =>
  (findProvider({ providerId })?.models ?? []).flatMap(({ id, prices }) => {
    const dated: ReadonlyArray<ConditionalPrice> = Array.isArray(prices) ? prices : [{ prices }]
    const found = dated.map((price) => rowOf(id, price))
    return found.every((row) => row !== undefined) ? found : []
  })

const rowOf = (model: string, { constraint, prices }: ConditionalPrice): PriceRow | undefined => {
  if (constraint !== undefined && constraint.type !== "start_date") return undefined
  const steps = ["input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok"].map((name) => stepOf(prices, name))
  const [input, output, cached, cacheWrite] = steps
  if (input === undefined || output === undefined) return undefined
  const above = steps.flatMap((step) => step?.above ?? [])
  // One step, the same for all: the whole request then costs a multiple.
  if (steps.some((step) => step?.odd === true) || new Set(above).size > 1) return undefined
  return {
    model,
    from: constraint?.start_date ?? "0000-01-01",
    input: input.base,
    output: output.base,
    ...(cached === undefined ? {} : { cached: cached.base }),
    ...(cacheWrite === undefined ? {} : { cacheWrite: cacheWrite.base }),
    ...(above[0] === undefined ? {} : { longContext: { above: above[0], input: input.factor, output: output.factor } })
  }
}

interface Step {
  readonly base: number
  readonly above?: number
  readonly factor: number
  /** More steps than one. */
  readonly odd: boolean
}

const stepOf = (prices: ModelPrice, name: string): Step | undefined => {
  const price = prices[name]
  if (price === undefined || typeof price === "number")
    return price === undefined ? undefined : { base: price, factor: 1, odd: false }
  const [step, ...more] = price.tiers
  if (step === undefined) return { base: price.base, factor: 1, odd: false }
  return {
    base: price.base,
    above: step.start,
    factor: Math.round((step.price / price.base) * 1e6) / 1e6,
    odd: more.length > 0
  }
}
