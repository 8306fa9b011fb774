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
import { Context, Layer, Option } from "effect"
import type { ChatRequest, TokenUsage } from "./LLM.ts"
import { Usd } from "./Usd.ts"

/**
 * Prices in US dollars per million tokens, standard tier, valid from the day `from` (UTC, `yyyy-mm-dd`). `cached` and `cacheWrite` default to `input`.
 * Above `longContext.above` input tokens the whole request costs `input` and `output` times as much.
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
}

const long = { above: 272_000, input: 2, output: 1.5 }

/**
 * OpenAI's standard tier as published on its model and pricing pages (https://platform.openai.com/docs/pricing), read 2026-11-29; the long-context rule
 * holds from gpt-5.4 on. `simulated` is the simulated provider's own model.
 *
 * @since 0.1.0
 */
export const table: ReadonlyArray<PriceRow> = [
  {
    model: "gpt-6-luna",
    from: "2026-01-01",
    input: 0.1,
    cached: 0.01,
    cacheWrite: 0.125,
    output: 0.5,
    longContext: long
  },
  {
    model: "gpt-6.1-terra",
    from: "2026-01-01",
    input: 1,
    cached: 0.05,
    cacheWrite: 1.25,
    output: 5,
    longContext: long
  },
  { model: "gpt-6-sol", from: "2026-01-01", input: 2, cached: 0.2, cacheWrite: 2.5, output: 10, longContext: long },
  { model: "gpt-6-astra", from: "2026-01-01", input: 10, cached: 1, cacheWrite: 12.5, output: 50, longContext: long },
  { model: "gpt-5.6-luna", from: "2026-01-01", input: 1, cached: 0.1, cacheWrite: 1.25, output: 6, longContext: long },
  {
    model: "gpt-5.6-luna",
    from: "2026-07-30",
    input: 0.2,
    cached: 0.02,
    cacheWrite: 0.25,
    output: 1.2,
    longContext: long
  },
  { model: "gpt-5.6-terra", from: "2026-07-30", input: 2, cached: 0.2, cacheWrite: 2.5, output: 12, longContext: long },
  { model: "gpt-5.6-sol", from: "2026-01-01", input: 5, cached: 0.5, cacheWrite: 6.25, output: 30, longContext: long },
  { model: "gpt-5.6-sol", from: "2026-08-21", input: 4, cached: 0.4, cacheWrite: 5, output: 20, longContext: long },
  { model: "gpt-5.4-mini", from: "2026-01-01", input: 0.75, cached: 0.075, output: 4.5, longContext: long },
  { model: "gpt-5.4-nano", from: "2026-01-01", input: 0.2, cached: 0.02, output: 1.25, longContext: long },
  { model: "gpt-4.1-mini", from: "2025-04-14", input: 0.4, cached: 0.1, output: 1.6 },
  { model: "gpt-4o", from: "2024-10-02", input: 2.5, cached: 1.25, output: 10 },
  { model: "gpt-4o-mini", from: "2024-07-18", input: 0.15, cached: 0.075, output: 0.6 },
  { model: "simulated", from: "0000-01-01", input: 0.15, cached: 0.075, output: 0.6 }
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
  return Option.fromNullable(at(model) ?? at(model.replace(/-\d{4}-\d{2}-\d{2}$/, "")))
}

/** Pico-dollars per token: every published price is a whole number of them. */
const pico = (usdPerMillion: number): number => Math.round(usdPerMillion * 1_000_000)
const picoToUsd = (picoDollars: number): Usd => Usd.nano(Math.ceil(picoDollars / 1000))

const factors = (row: PriceRow, inputTokens: number) =>
  row.longContext !== undefined && inputTokens > row.longContext.above ? row.longContext : { input: 1, output: 1 }

/**
 * The cost of a call by its reported tokens, rounded up once to a whole nano-dollar.
 *
 * @since 0.1.0
 */
export const cost = (row: PriceRow, usage: TokenUsage): Usd => {
  const factor = factors(row, usage.inputTokens)
  const plain = usage.inputTokens - usage.cachedTokens - usage.cacheWriteTokens
  const input =
    plain * pico(row.input) +
    usage.cachedTokens * pico(row.cached ?? row.input) +
    usage.cacheWriteTokens * pico(row.cacheWrite ?? row.input)
  return picoToUsd(input * factor.input + usage.outputTokens * pico(row.output) * factor.output)
}

/**
 * The most that a request can cost: every byte a token (a byte-level tokenizer emits at most one token a byte), at the dearest input price, and the whole
 * output limit. The slack of 64 tokens and 16 a message covers the chat frame.
 *
 * @since 0.1.0
 */
export const hold = (row: PriceRow, request: ChatRequest): Usd => {
  const tokens = inputBound(request)
  const factor = factors(row, tokens)
  const dearest = Math.max(pico(row.input), pico(row.cached ?? row.input), pico(row.cacheWrite ?? row.input))
  return picoToUsd(tokens * dearest * factor.input + request.maxOutputTokens * pico(row.output) * factor.output)
}

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
