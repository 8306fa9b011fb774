/**
 * What a call costs. A small table of dated price rows; a user's own rows win. An unknown model under a cap is refused, never guessed.
 *
 * @example
 * import { Layer } from "effect"
 * import { Price } from "longhaul"
 * const own = Price.layer([{ model: "my-model", from: "2026-01-01", input: 0.2, output: 0.8 }])
 * const free = Price.layer([Price.free("llama3.2")])
 *
 * @since 0.1.0
 */
import { Context, Layer, Option, Schema } from "effect"
import { type ChatAnswer, type ChatRequest, noTokens, type TokenUsage } from "./LLM.ts"
import { baseOf } from "./Models.ts"
import { Usd } from "./Usd.ts"

/**
 * Prices in US dollars per million tokens, standard tier, valid from the day `from` (UTC, `yyyy-mm-dd`). `cached` and `cacheWrite` default to `input`.
 * Above `longContext.above` input tokens the whole request costs `input` and `output` times as much. `tiers`: how many times as much another service tier costs.
 *
 * @since 0.1.0
 */
export interface PriceRow {
  readonly model: string
  readonly from: string
  readonly input: number
  readonly cached?: number
  readonly cacheWrite?: number
  readonly output: number
  readonly longContext?: { readonly above: number; readonly input: number; readonly output: number }
  readonly tiers?: Readonly<Record<string, number>>
}

/**
 * A row as a call's record keeps it.
 *
 * @since 0.1.0
 */
export const PriceRowJson = Schema.parseJson(
  Schema.Struct({
    model: Schema.String,
    from: Schema.String,
    input: Schema.Number,
    cached: Schema.optionalWith(Schema.Number, { exact: true }),
    cacheWrite: Schema.optionalWith(Schema.Number, { exact: true }),
    output: Schema.Number,
    longContext: Schema.optionalWith(
      Schema.Struct({ above: Schema.Number, input: Schema.Number, output: Schema.Number }),
      { exact: true }
    ),
    tiers: Schema.optionalWith(Schema.Record({ key: Schema.String, value: Schema.Number }), { exact: true })
  })
)

const long = { above: 271_999, input: 2, output: 1.5 }
/** Flex at half price; fast was called priority until 2026-07-30. */
const tiers = (fast: number) => ({ flex: 0.5, fast, priority: fast })
const row = (
  model: string,
  from: string,
  [input, cached, cacheWrite, output]: readonly [number, number, number | null, number],
  more: Pick<PriceRow, "longContext" | "tiers"> = {}
): PriceRow => ({ model, from, input, cached, ...(cacheWrite === null ? {} : { cacheWrite }), output, ...more })

/** The day on which the built-in prices were read. @since 0.1.0 */
export const readOn = "2026-11-29"

/**
 * OpenAI's standard tier as published on its model and pricing pages (https://platform.openai.com/docs/pricing), read on {@link readOn}; the long-context rule
 * holds from gpt-5.4 on, the factor of a tier stands only where it is published. `simulated` is the simulated provider's own model.
 *
 * @since 0.1.0
 */
export const table: ReadonlyArray<PriceRow> = [
  row("gpt-6-luna", "2026-01-01", [0.1, 0.01, 0.125, 0.5], { longContext: long, tiers: tiers(2) }),
  row("gpt-6.1-terra", "2026-01-01", [1, 0.05, 1.25, 5], { longContext: long }),
  row("gpt-6-sol", "2026-01-01", [2, 0.2, 2.5, 10], { longContext: long, tiers: tiers(2) }),
  row("gpt-6-astra", "2026-01-01", [10, 1, 12.5, 50], { longContext: long, tiers: tiers(2) }),
  row("gpt-5.6-luna", "2026-01-01", [1, 0.1, 1.25, 6], { longContext: long, tiers: tiers(2) }),
  row("gpt-5.6-luna", "2026-07-30", [0.2, 0.02, 0.25, 1.2], { longContext: long, tiers: tiers(2) }),
  row("gpt-5.6-terra", "2026-07-30", [2, 0.2, 2.5, 12], { longContext: long, tiers: tiers(2) }),
  row("gpt-5.6-sol", "2026-01-01", [5, 0.5, 6.25, 30], { longContext: long, tiers: tiers(2) }),
  row("gpt-5.6-sol", "2026-08-21", [4, 0.4, 5, 20], { longContext: long, tiers: tiers(2) }),
  row("gpt-5.5", "2026-01-01", [5, 0.5, null, 30], { longContext: long, tiers: tiers(2.5) }),
  row("gpt-5.4", "2026-01-01", [2.5, 0.25, null, 15], { longContext: long }),
  row("gpt-5.4-mini", "2026-01-01", [0.75, 0.075, null, 4.5], { longContext: long }),
  row("gpt-5.4-nano", "2026-01-01", [0.2, 0.02, null, 1.25], { longContext: long }),
  row("gpt-5.2", "2026-01-01", [1.75, 0.175, null, 14]),
  row("gpt-5.1", "2026-01-01", [1.25, 0.125, null, 10]),
  row("gpt-5", "2026-01-01", [1.25, 0.125, null, 10]),
  row("gpt-5-mini", "2026-01-01", [0.25, 0.025, null, 2], { tiers: tiers(1.8) }),
  row("gpt-5-nano", "2026-01-01", [0.05, 0.005, null, 0.4]),
  row("gpt-4.1", "2025-04-14", [2, 0.5, null, 8], { tiers: { fast: 1.75, priority: 1.75 } }),
  row("gpt-4.1-mini", "2025-04-14", [0.4, 0.1, null, 1.6]),
  row("gpt-4o", "2024-10-02", [2.5, 1.25, null, 10]),
  row("gpt-4o-2024-05-13", "2024-05-13", [5, 5, null, 15]),
  row("gpt-4o-mini", "2024-07-18", [0.15, 0.075, null, 0.6]),
  row("o3", "2026-01-01", [2, 0.5, null, 8]),
  row("simulated", "0000-01-01", [0.15, 0.075, null, 0.6])
]

/**
 * The price rows in force; the built-in {@link table} unless a layer says otherwise.
 *
 * @since 0.1.0
 */
export class Price extends Context.Reference<Price>()("longhaul/Price", {
  defaultValue: (): ReadonlyArray<PriceRow> => table
}) {}

/**
 * The user's rows before the built-in ones: for a model that the user names, only the user's rows count.
 *
 * @since 0.1.0
 */
export const layer = (rows: ReadonlyArray<PriceRow>): Layer.Layer<never> => {
  const own = new Set(rows.map((row) => row.model))
  return Layer.succeed(Price, [...rows, ...table.filter((row) => !own.has(row.model))])
}

/**
 * A model that costs nothing (a server of one's own), said explicitly.
 *
 * @since 0.1.0
 */
export const free = (model: string): PriceRow => ({ model, from: "0000-01-01", input: 0, output: 0 })

/**
 * The row in force for a model at a time (milliseconds since 1970): the latest that has begun. A dated snapshot (`gpt-4o-2024-08-06`) has its model's price.
 *
 * @since 0.1.0
 */
export const find = (rows: ReadonlyArray<PriceRow>, model: string, now: number): Option.Option<PriceRow> => {
  const today = new Date(now).toISOString().slice(0, 10)
  const at = (name: string) =>
    rows
      .filter((row) => row.model === name && row.from <= today)
      .reduce<PriceRow | undefined>((best, row) => (best === undefined || row.from > best.from ? row : best), undefined)
  return Option.fromNullable(at(model) ?? at(baseOf(model)))
}

/**
 * What is wrong with a row, or `undefined`. A price for one token in the place of a price for a million would be a millionth of it, and the cap would never bind;
 * the other way round one row would cost hundreds of dollars.
 *
 * @since 0.1.0
 */
export const problem = (row: PriceRow): string | undefined => {
  const prices = [row.input, row.output, row.cached ?? row.input, row.cacheWrite ?? row.input]
  const factors = [...Object.values(row.tiers ?? {}), row.longContext?.input ?? 1, row.longContext?.output ?? 1]
  return prices.every(isPrice) && factors.every((factor) => Number.isFinite(factor) && factor >= 0)
    ? undefined
    : `the price of ${row.model} cannot be right: prices are in dollars per million tokens, 0 or between 0.001 and 10,000`
}

const isPrice = (price: number): boolean => price === 0 || (price >= 0.001 && price <= 10_000)

/**
 * A row where everything costs so many times as much.
 *
 * @since 0.1.0
 */
export const times = (row: PriceRow, factor: number): PriceRow => ({
  ...row,
  input: row.input * factor,
  output: row.output * factor,
  ...(row.cached === undefined ? {} : { cached: row.cached * factor }),
  ...(row.cacheWrite === undefined ? {} : { cacheWrite: row.cacheWrite * factor })
})

/** Pico-dollars per token: every published price is a whole number of them. */
const pico = (usdPerMillion: number): number => Math.round(usdPerMillion * 1_000_000)
/** Rounded up; a factor such as 1.8 leaves its dust behind the tenth digit. */
const picoToUsd = (picoDollars: number): Usd => Usd.nano(Math.max(0, Math.ceil(picoDollars / 1000 - 1e-7)))

const factors = (row: PriceRow, inputTokens: number) =>
  row.longContext !== undefined && inputTokens > row.longContext.above ? row.longContext : { input: 1, output: 1 }

/** The names that providers give to the tier without a factor. */
const standard = new Set(["", "default", "auto", "standard", "on_demand"])
const tierFactor = (row: PriceRow, tier = ""): number | undefined => {
  if (standard.has(tier)) return 1
  return row.tiers !== undefined && Object.hasOwn(row.tiers, tier) ? row.tiers[tier] : undefined
}

/**
 * Whether a row says what a tier costs.
 *
 * @since 0.1.0
 */
export const knowsTier = (row: PriceRow, tier: string | undefined): boolean => tierFactor(row, tier) !== undefined

/**
 * What to mend where a row does not say what a tier costs.
 *
 * @since 0.1.0
 */
export const tierProblem = (row: PriceRow, tier: string | undefined): string | undefined =>
  knowsTier(row, tier)
    ? undefined
    : `the price of ${row.model} does not say what tier "${tier}" costs: add its factor to tiers`

/**
 * The cost of a call by its reported tokens and tier, rounded up once to a whole nano-dollar. A tier without a factor counts as the standard one; {@link bill} does
 * not let one pass.
 *
 * @since 0.1.0
 */
export const cost = (row: PriceRow, usage: TokenUsage, tier?: string): Usd => {
  const factor = factors(row, usage.inputTokens)
  const plain = usage.inputTokens - usage.cachedTokens - usage.cacheWriteTokens
  const input =
    plain * pico(row.input) +
    usage.cachedTokens * pico(row.cached ?? row.input) +
    usage.cacheWriteTokens * pico(row.cacheWrite ?? row.input)
  const whole = input * factor.input + usage.outputTokens * pico(row.output) * factor.output
  return picoToUsd(whole * (tierFactor(row, tier) ?? 1))
}

/**
 * The most that a request can cost: every byte a token (a byte-level tokenizer emits at most one token a byte), at the dearest input price, and the whole
 * output limit. The slack of 64 tokens and 16 a message covers the chat frame. A cheaper tier does not lower it: it may be refused, and the standard one served. Without
 * a tier it covers the dearest one, which may be the project's default.
 *
 * @since 0.1.0
 */
export const hold = (row: PriceRow, request: ChatRequest, tier = request.tier): Usd => {
  const tokens = inputBound(request)
  const factor = factors(row, tokens)
  const dearest = Math.max(pico(row.input), pico(row.cached ?? row.input), pico(row.cacheWrite ?? row.input))
  const whole = tokens * dearest * factor.input + request.maxOutputTokens * pico(row.output) * factor.output
  const asked = tier === undefined || tier === "auto" ? Object.values(row.tiers ?? {}) : [tierFactor(row, tier) ?? 1]
  return picoToUsd(whole * Math.max(1, ...asked))
}

/**
 * What an answer costs. `excess`: the provider does not keep the output limit, on which every hold rests. Where the cost cannot be known it counts at its hold;
 * `unpriced`: it came from a model or a tier without a price, so that the next one would too.
 *
 * @since 0.1.0
 */
export type Bill =
  | { readonly _tag: "Known"; readonly usage: TokenUsage; readonly cost: Usd; readonly excess: string | undefined }
  | { readonly _tag: "Uncertain"; readonly reason: string; readonly unpriced: boolean }

/**
 * The bill of an answer to a request that was to cost `row`. The provider's own figure (`answer.cost`) goes before the table; an answer of another model costs that
 * model's price.
 *
 * @since 0.1.0
 */
export const bill = (
  row: PriceRow,
  request: ChatRequest,
  answer: ChatAnswer,
  priceOf: (model: string) => PriceRow | undefined
): Bill => {
  const usage = answer.usage !== undefined && isSound(answer.usage) ? answer.usage : undefined
  const own = answer.cost !== undefined && isAmount(answer.cost) ? answer.cost : undefined
  if (usage === undefined && own === undefined) return noUsage
  const tokens = usage ?? noTokens
  const known = (cost: Usd): Bill => ({ _tag: "Known", usage: tokens, cost, excess: excessOf(row, request, tokens) })
  if (own !== undefined) return known(own)
  if (isFree(row)) return known(Usd.zero)
  // A snapshot may have a price of its own; else it has its model's.
  const isSame = baseOf(answer.model) === baseOf(request.model)
  const answered = answer.model === request.model ? row : (priceOf(answer.model) ?? (isSame ? row : undefined))
  if (answered === undefined) return unpriced(`the answer came from model ${answer.model}, which has no price`)
  const tier = answer.tier ?? request.tier
  if (tierFactor(answered, tier) !== undefined) return known(cost(answered, tokens, tier))
  return unpriced(`the answer was served in tier "${tier}": add its factor to tiers in the price of ${answered.model}`)
}

const isAmount = (nano: number): boolean => Number.isSafeInteger(nano) && nano >= 0
const noUsage: Bill = { _tag: "Uncertain", reason: "no usage", unpriced: false }
const unpriced = (reason: string): Bill => ({ _tag: "Uncertain", reason, unpriced: true })
const isFree = ({ input, output }: PriceRow): boolean => input === 0 && output === 0

const excessOf = (row: PriceRow, { maxOutputTokens }: ChatRequest, { outputTokens }: TokenUsage): string | undefined =>
  isFree(row) || outputTokens <= maxOutputTokens
    ? undefined
    : `an answer has ${outputTokens} output tokens, above the limit of ${maxOutputTokens}: this provider does not keep it, so no cap can be promised`

/** No call has a thousand million tokens; above it a cost would not be exact. */
const isCount = (n: unknown): boolean => typeof n === "number" && Number.isSafeInteger(n) && n >= 0 && n <= 1e9

/**
 * Whether reported tokens can be billed: whole counts, whose parts do not pass the whole.
 *
 * @since 0.1.0
 */
export const isSound = (usage: TokenUsage): boolean =>
  [usage.cachedTokens, usage.cacheWriteTokens, usage.inputTokens, usage.outputTokens, usage.reasoningTokens].every(
    isCount
  ) &&
  usage.cachedTokens + usage.cacheWriteTokens <= usage.inputTokens &&
  usage.reasoningTokens <= usage.outputTokens

/**
 * An upper bound of a request's input tokens.
 *
 * @since 0.1.0
 */
export const inputBound = (request: ChatRequest): number => {
  let bytes = 64
  for (const message of request.messages) bytes += Buffer.byteLength(message.content) + 16
  if (request.format.mode === "json_schema") bytes += schemaBytes(request.format.schema)
  return bytes
}

/** A schema is one object for all rows of an agent; its size is measured once. */
const schemaSizes = new WeakMap<object, number>()
const schemaBytes = (schema: object): number => {
  const known = schemaSizes.get(schema)
  if (known !== undefined) return known
  const bytes = Buffer.byteLength(JSON.stringify(schema))
  schemaSizes.set(schema, bytes)
  return bytes
}
