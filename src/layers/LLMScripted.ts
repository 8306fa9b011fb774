/**
 * The provider of a simulation: it bills on its own, when a call is dispatched, whatever becomes of the answer; and it fails in every way a real one does, as the
 * seed decides. Internal to Verify.
 *
 * @since 0.1.0
 */
import { Effect } from "effect"
import { LLMError } from "../services/Errors.ts"
import { answer, type ChatAnswer, type ChatRequest, type LLMShape, type TokenUsage } from "../services/LLM.ts"
import type { PriceRow } from "../services/Price.ts"
import * as Price from "../services/Price.ts"
import type { Dice, World } from "../services/SimScheduler.ts"
import * as Usage from "../services/Usage.ts"

/** What may become of a call besides a good answer. `lost` is never answered at all. @since 0.1.0 */
export const faults = [
  "limited",
  "limited_wait",
  "overloaded",
  "error_free",
  "error_billed",
  "timeout_free",
  "timeout_billed",
  "reset_billed",
  "unreachable",
  "malformed",
  "misfit",
  "no_usage",
  "empty",
  "refusal",
  "cut",
  "spoiled",
  "bad_request",
  "lost"
] as const
/** @since 0.1.0 */
export type Fault = (typeof faults)[number]

/** How often each fault comes, how long a call takes in milliseconds, and when all calls fail. @since 0.1.0 */
export interface Weather {
  readonly rates: ReadonlyMap<Fault, number>
  readonly longest: number
  readonly outages: ReadonlyArray<{ readonly from: number; readonly until: number }>
}

/** What the provider sees of a call. `live`: how many of this process are in flight. `cost`: what it bills, in pico-dollars. @since 0.1.0 */
export type Event =
  | {
      readonly _tag: "Sent"
      readonly n: number
      readonly live: number
      readonly fate: Fault | "answer"
      readonly request: ChatRequest
      readonly cost: number
    }
  | { readonly _tag: "Ended"; readonly n: number }
  | { readonly _tag: "Unknown"; readonly prompt: string }

/** @since 0.1.0 */
export interface Options {
  readonly world: World
  readonly weather: () => Weather
  readonly priceOf: (model: string) => PriceRow | undefined
  /** The text of a good answer; `undefined`: the request belongs to no row. */
  readonly textOf: (request: ChatRequest) => string | undefined
  readonly heard: (event: Event) => void
}

/** Its own books, over all processes. Money in pico-dollars, so that nothing is rounded. @since 0.1.0 */
export interface Provider {
  readonly bill: () => number
  readonly sent: () => number
  /** What the call that has this request id was billed. */
  readonly billOf: (requestId: string) => number | undefined
  /** As one process reaches it, until `cut`. */
  readonly connect: (names: ReadonlyArray<string>, cut: () => boolean) => LLMShape
}

const BILLED: ReadonlySet<Fault | "answer"> = new Set<Fault | "answer">([
  "answer",
  "error_billed",
  "timeout_billed",
  "reset_billed",
  "malformed",
  "misfit",
  "no_usage",
  "empty",
  "refusal",
  "cut",
  "spoiled",
  "lost"
])

/** How long a client waits for an answer, in milliseconds. */
const PATIENCE = 120_000

/**
 * A provider in a world.
 *
 * @since 0.1.0
 */
export const make = (options: Options): Provider => {
  const { heard, world } = options
  const bills = new Map<string, number>()
  let bill = 0
  let sent = 0

  const begin = (request: ChatRequest, name: string, live: number): Call => {
    const text = options.textOf(request)
    if (text === undefined) heard({ _tag: "Unknown", prompt: promptOf(request) })
    const fate = fateOf(world.dice, options.weather(), world.now)
    const usage = usageOf(world.dice, request)
    const n = ++sent
    const row = options.priceOf(request.model)
    const cost = row !== undefined && BILLED.has(fate) ? billOf(row, usage, request.tier) : 0
    bill += cost
    bills.set(`call-${n}`, cost)
    heard({ _tag: "Sent", n, live, fate, request, cost })
    return { n, name, request, text: text ?? "{}", fate, usage, dice: world.dice, longest: options.weather().longest }
  }

  const shape = (provider: string, cut: () => boolean, live: { n: number }): LLMShape => ({
    provider,
    generate: (request) =>
      Effect.uninterruptibleMask((restore) =>
        Effect.suspend(() => {
          if (cut()) return Effect.interrupt
          const call = begin(request, provider, ++live.n)
          return Effect.ensuring(
            restore(endOf(call)),
            Effect.sync(() => {
              live.n--
              if (!cut()) heard({ _tag: "Ended", n: call.n })
            })
          )
        })
      )
  })

  return {
    bill: () => bill,
    sent: () => sent,
    billOf: (requestId) => bills.get(requestId),
    connect: (names, cut) => {
      const live = { n: 0 }
      const others = names.filter((name) => name !== NAME).map((name) => shape(name, cut, live))
      return { ...shape(NAME, cut, live), others }
    }
  }
}

const NAME = "scripted"

interface Call {
  readonly n: number
  readonly name: string
  readonly request: ChatRequest
  readonly text: string
  readonly fate: Fault | "answer"
  readonly usage: TokenUsage
  readonly dice: Dice
  readonly longest: number
}

/** The row's own words: what is asked first. */
const promptOf = (request: ChatRequest): string => request.messages.find(({ role }) => role === "user")?.content ?? ""

const fateOf = (dice: Dice, { outages, rates }: Weather, now: number): Fault | "answer" => {
  let roll = dice.next()
  if (outages.some(({ from, until }) => from <= now && now < until)) {
    return roll < 0.4 ? "overloaded" : roll < 0.7 ? "error_billed" : "unreachable"
  }
  for (const [fault, rate] of rates) {
    if (roll < rate) return fault
    roll -= rate
  }
  return "answer"
}

/** Within what was asked for; now and then all of it, so that a hold is used up to its last nano-dollar. */
const usageOf = (dice: Dice, request: ChatRequest): TokenUsage => {
  const most = Price.inputBound(request)
  const whole = dice.chance(0.1)
  const inputTokens = whole ? most : 1 + dice.below(most)
  const outputTokens = whole ? request.maxOutputTokens : 1 + dice.below(request.maxOutputTokens)
  const cachedTokens = !whole && dice.chance(0.3) ? dice.below(inputTokens + 1) : 0
  const reasoningTokens = dice.chance(0.3) ? dice.below(outputTokens + 1) : 0
  return { inputTokens, cachedTokens, cacheWriteTokens: 0, outputTokens, reasoningTokens }
}

/** By the price table, and by nothing else of the library. */
const billOf = (row: PriceRow, usage: TokenUsage, tier = ""): number => {
  const pico = (usdPerMillion: number) => Math.round(usdPerMillion * 1e6)
  const isLong = row.longContext !== undefined && usage.inputTokens > row.longContext.above
  const factor = isLong ? row.longContext : { input: 1, output: 1 }
  const cached = usage.cachedTokens * pico(row.cached ?? row.input)
  const input = ((usage.inputTokens - usage.cachedTokens) * pico(row.input) + cached) * factor.input
  const output = usage.outputTokens * pico(row.output) * factor.output
  return Math.round((input + output) * (row.tiers?.[tier] ?? 1))
}

const endOf = (call: Call): Effect.Effect<ChatAnswer, LLMError> => {
  const { dice, fate, longest } = call
  const soon = 1 + Math.floor(longest * dice.next() ** 3)
  switch (fate) {
    case "lost":
      return Effect.async<never>(() => {})
    case "timeout_billed":
    case "timeout_free":
      return after(PATIENCE, failed(call, { reason: "timeout", charge: "uncertain" }))
    case "reset_billed":
      return after(soon, failed(call, { reason: "connection", charge: "uncertain" }))
    case "unreachable":
      return after(1, failed(call, { reason: "connection", charge: "none" }))
    case "limited":
      return after(soon, failed(call, { reason: "rate_limited", charge: "none", status: 429 }))
    case "limited_wait": {
      const retryAfterMs = 1_000 * (1 + dice.below(40))
      return after(soon, failed(call, { reason: "rate_limited", charge: "none", status: 429, retryAfterMs }))
    }
    case "overloaded":
      return after(soon, failed(call, { reason: "overloaded", charge: "none", status: 503 }))
    case "error_billed":
    case "error_free":
      return after(soon, failed(call, { reason: "server_error", charge: "uncertain", status: 500 }))
    case "bad_request":
      return after(soon, failed(call, { reason: "bad_request", category: "PERMANENT", charge: "none", status: 400 }))
    case "spoiled": {
      const usage = Usage.make({ ...call.usage })
      return after(soon, failed(call, { reason: "invalid_response", charge: "known", usage }))
    }
    default:
      return after(
        soon,
        Effect.sync(() => answered(call, fate))
      )
  }
}

const after = <A, E>(ms: number, end: Effect.Effect<A, E>): Effect.Effect<A, E> => Effect.delay(end, ms)

type Parts = Pick<LLMError, "reason" | "charge"> &
  Partial<Pick<LLMError, "category" | "status" | "retryAfterMs" | "usage">>

const failed = ({ fate, n }: Call, parts: Parts): Effect.Effect<never, LLMError> =>
  Effect.suspend(
    () =>
      new LLMError({
        category: "TRANSIENT",
        scope: "row",
        message: `simulated: ${fate}`,
        requestId: `call-${n}`,
        ...parts
      })
  )

const answered = ({ n, request, text, usage }: Call, fate: Fault | "answer"): ChatAnswer => {
  const whole = { text, model: request.model, usage, requestId: `call-${n}` }
  switch (fate) {
    case "malformed":
      return answer({ ...whole, text: text.slice(0, Math.ceil(text.length / 2)) })
    case "misfit":
      return answer({ ...whole, text: '{"unexpected":true}' })
    case "no_usage":
      return answer({ ...whole, usage: undefined })
    case "empty":
      return answer({ ...whole, text: "", usage: { ...usage, reasoningTokens: 0 } })
    case "refusal":
      return answer({ ...whole, text: "", refusal: "I cannot help with that." })
    case "cut":
      return answer({ ...whole, text: text.slice(0, Math.ceil(text.length / 2)), finish: "length" })
    default:
      return answer(whole)
  }
}
