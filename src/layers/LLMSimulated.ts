/**
 * A provider without a network: deterministic by seed and request, so the same request gets the same answer, and its attempts the same faults, in any
 * process. It sleeps by Effect's clock, so a `TestClock` drives it.
 *
 * @example
 * import { LLMSimulated } from "longhaul"
 * const calm = LLMSimulated.layer()
 * const rough = LLMSimulated.layer({ seed: 7, latencyMs: { p50: 400, p99: 3_000 }, rate429: 0.03, rate5xx: 0.01, rateBadJson: 0.02 })
 * const own = LLMSimulated.layer({ respond: (request) => ({ risk: "low", summary: request.messages[0]?.content }) })
 *
 * @since 0.1.0
 */
import { Arbitrary, Effect, Either, FastCheck, Layer, Schema } from "effect"
import { LLMError } from "../services/Errors.ts"
import { canonicalJson, sha256 } from "../services/Identity.ts"
import { answer, type ChatAnswer, type ChatRequest, LLM, type LLMShape } from "../services/LLM.ts"

/**
 * Rates are between 0 and 1. `rate429`, `rate5xx`, `rateTimeout` are drawn anew for each attempt at a request, so a retry can succeed; `rateBadJson` (cut
 * in the middle) and `rateRefusal` belong to the request. `latencyMs` is a number or a log-normal by its median and 99th percentile; 0, the default, does
 * not sleep. The output is `respond`'s (a text as it is, else as JSON), else a value of `output` in its encoded form, else made up from the request's
 * JSON schema and its words.
 *
 * @since 0.1.0
 */
export interface Options<A = unknown, I = unknown> {
  readonly name?: string
  readonly seed?: number
  readonly latencyMs?: number | { readonly p50: number; readonly p99: number }
  readonly rate429?: number
  readonly rate5xx?: number
  readonly rateTimeout?: number
  readonly rateBadJson?: number
  readonly rateRefusal?: number
  readonly retryAfterMs?: number
  readonly respond?: (request: ChatRequest) => unknown
  readonly output?: Schema.Schema<A, I>
}

/**
 * The simulated provider.
 *
 * @since 0.1.0
 */
export const layer = <A, I>(options: Options<A, I> = {}): Layer.Layer<LLM> => Layer.sync(LLM, () => make(options))

/**
 * The text of a good answer to a request, by the same rules; the same in any process. Internal to Verify.
 *
 * @since 0.1.0
 */
export const textFor = <A, I>(request: ChatRequest, options: Options<A, I> = {}): string =>
  asText(outputOf(options)(request, requestKey(options.seed ?? 0, request)))

const make = <A, I>(options: Options<A, I>): LLMShape => {
  const attempts = new Map<string, number>()
  const output = outputOf(options)
  return {
    provider: options.name ?? "simulated",
    generate: Effect.fnUntraced(function* (request) {
      const key = requestKey(options.seed ?? 0, request)
      const attempt = attempts.get(key) ?? 0
      attempts.set(key, attempt + 1)
      const latency = latencyOf(options, key, attempt)
      if (latency > 0) yield* Effect.sleep(latency)
      const fault = faultOf(options, key, attempt)
      if (fault !== undefined) return yield* fault
      // Answered: the same request later begins anew, and the map holds no more than what is being retried.
      attempts.delete(key)
      return answerOf(options, key, request, output)
    })
  }
}

/** The schema is one object for all rows of an agent; the rest is small. */
const requestKey = (seed: number, request: ChatRequest): string => {
  const format = request.format.mode === "json_schema" ? schemaText(request.format.schema) : request.format.mode
  const messages = request.messages.map((message) => [message.role, message.content])
  const rest = [request.maxOutputTokens, request.temperature ?? null, request.effort ?? null]
  return sha256(JSON.stringify([seed, request.model, messages, rest, format]))
}

const schemaTexts = new WeakMap<object, string>()
const schemaText = (schema: object): string => {
  const text = schemaTexts.get(schema) ?? Either.getOrElse(canonicalJson(schema), () => JSON.stringify(schema))
  schemaTexts.set(schema, text)
  return text
}

/** A whole number below 2^32 that depends on nothing but the request and the purpose. */
const draw32 = (key: string, purpose: string): number => Number.parseInt(sha256(`${key} ${purpose}`).slice(0, 8), 16)
const draw = (key: string, purpose: string): number => draw32(key, purpose) / 2 ** 32

/** Mulberry32: many numbers from one, where a hash each would be slow. */
const random = (seed: number) => () => {
  seed = (seed + 0x6d2b79f5) | 0
  const a = Math.imul(seed ^ (seed >>> 15), 1 | seed)
  const b = (a + Math.imul(a ^ (a >>> 7), 61 | a)) ^ a
  return ((b ^ (b >>> 14)) >>> 0) / 2 ** 32
}

const happens = (rate: number | undefined, key: string, purpose: string): boolean =>
  rate !== undefined && rate > 0 && draw(key, purpose) < rate

const latencyOf = <A, I>({ latencyMs = 0 }: Options<A, I>, key: string, attempt: number): number => {
  if (typeof latencyMs === "number") return latencyMs
  const sigma = Math.log(latencyMs.p99 / latencyMs.p50) / 2.3263
  const radius = Math.sqrt(-2 * Math.log(1 - draw(key, `radius ${attempt}`)))
  const normal = radius * Math.cos(2 * Math.PI * draw(key, `angle ${attempt}`))
  return Math.round(latencyMs.p50 * Math.exp(sigma * normal))
}

const faultOf = <A, I>(options: Options<A, I>, key: string, attempt: number): LLMError | undefined => {
  const first = options.rate429 ?? 0
  const second = first + (options.rate5xx ?? 0)
  const third = second + (options.rateTimeout ?? 0)
  const dice = third > 0 ? draw(key, `fault ${attempt}`) : 1
  const common = { category: "TRANSIENT", scope: "row" } as const
  if (dice < first) {
    const retryAfter = options.retryAfterMs === undefined ? {} : { retryAfterMs: options.retryAfterMs }
    const message = "Simulated: rate limit reached"
    return new LLMError({ ...common, ...retryAfter, reason: "rate_limited", charge: "none", status: 429, message })
  }
  if (dice < second) {
    const message = "Simulated: server error"
    return new LLMError({ ...common, reason: "server_error", charge: "uncertain", status: 500, message })
  }
  return dice < third
    ? new LLMError({ ...common, reason: "timeout", charge: "uncertain", message: "Simulated: no answer in time" })
    : undefined
}

type Output = (request: ChatRequest, key: string) => unknown

const outputOf = <A, I>({ respond, output }: Options<A, I>): Output =>
  respond ?? (output === undefined ? fromFormat : fromSchema(output))

const answerOf = <A, I>(options: Options<A, I>, key: string, request: ChatRequest, output: Output): ChatAnswer => {
  const refused = happens(options.rateRefusal, key, "refusal")
  const whole = refused ? "" : asText(output(request, key))
  const bad = !refused && happens(options.rateBadJson, key, "bad json")
  const wanted = bad ? whole.slice(0, Math.ceil(whole.length / 2)) : whole
  const refusal = refused ? "I cannot help with that." : undefined
  const tokens = tokensOf(refusal ?? wanted)
  // The output limit is kept to, as a real provider does: the hold rests on it.
  const cut = tokens > request.maxOutputTokens
  return answer({
    text: cut
      ? Buffer.from(wanted)
          .subarray(0, request.maxOutputTokens * 4)
          .toString()
      : wanted,
    model: request.model,
    finish: cut ? "length" : "stop",
    refusal,
    requestId: `sim-${key.slice(0, 16)}`,
    usage: {
      inputTokens: tokensOf(request.messages.map((message) => message.content).join("")),
      cachedTokens: 0,
      cacheWriteTokens: 0,
      outputTokens: Math.min(tokens, request.maxOutputTokens),
      reasoningTokens: 0
    }
  })
}

const tokensOf = (text: string): number => Math.ceil(Buffer.byteLength(text) / 4)
const asText = (value: unknown): string => (typeof value === "string" ? value : (JSON.stringify(value) ?? "null"))

/** Not every arbitrary value has an encoded form (an invalid Date has none), so a few seeds are tried. */
const fromSchema = <A, I>(schema: Schema.Schema<A, I>): Output => {
  const arbitrary = Arbitrary.make(schema)
  const encode = Schema.encodeEither(schema)
  return (_request, key) => {
    for (let tries = 0; tries < 20; tries++) {
      const [value] = FastCheck.sample(arbitrary, { seed: draw32(key, `output ${tries}`) | 0, numRuns: 1 })
      const encoded = value === undefined ? undefined : Either.getOrUndefined(encode(value))
      if (encoded !== undefined) return JSON.stringify(encoded)
    }
    throw new Error(
      "LLMSimulated: no value of the output schema can be encoded; give its Schema an arbitrary annotation, or use respond"
    )
  }
}

const fromFormat: Output = (request, key) => {
  const said = request.messages.findLast((message) => message.role === "user")?.content ?? ""
  const maker = makeMaker(key, said)
  if (request.format.mode === "json_schema") return JSON.stringify(maker.value(request.format.schema, 0))
  return request.format.mode === "json_object" ? { answer: maker.sentence(12) } : maker.sentence(12)
}

type Fields = Readonly<Record<string, unknown>>
const isFields = (value: unknown): value is Fields =>
  typeof value === "object" && value !== null && !Array.isArray(value)
const isList = (value: unknown): value is ReadonlyArray<unknown> => Array.isArray(value)
const numberOr = (value: unknown, fallback: number): number => (typeof value === "number" ? value : fallback)

const spareWords = "a steady supplier with clear terms and no open questions on record".split(" ")

/** Makes values up by a JSON schema, in the words of the prompt: plausible, not exhaustive (no `pattern`, no `allOf`). */
const makeMaker = (key: string, said: string) => {
  const next = random(draw32(key, "value"))
  const between = (low: number, high: number) => low + Math.floor(next() * (high - low + 1))
  const own = said.match(/\p{L}{3,}/gu) ?? []
  const words = own.length < 4 ? spareWords : own
  const pick = <T>(items: ReadonlyArray<T>) => items[between(0, items.length - 1)]
  const sentence = (length: number) => Array.from({ length }, () => pick(words)).join(" ")

  const text = (schema: Fields): string => {
    if (schema.format === "date-time") return new Date(between(1_500_000_000, 1_800_000_000) * 1000).toISOString()
    if (schema.format === "date") return new Date(between(17_000, 20_000) * 86_400_000).toISOString().slice(0, 10)
    if (schema.format === "email") return `${between(100, 999)}@example.com`
    if (schema.format === "uuid") return key.replace(/^(.{8})(.{4}).(.{3}).(.{3})(.{12}).*/, "$1-$2-4$3-8$4-$5")
    const made = sentence(between(5, 12))
    return made.padEnd(numberOr(schema.minLength, 0), " and so on").slice(0, numberOr(schema.maxLength, 10_000))
  }

  const number = (schema: Fields, step: number): number => {
    const above = numberOr(schema.minimum, numberOr(schema.exclusiveMinimum, Number.NaN) + step)
    const below = numberOr(schema.maximum, numberOr(schema.exclusiveMaximum, Number.NaN) - step)
    const low = Number.isNaN(above) ? Math.min(0, Number.isNaN(below) ? 0 : below - 100) : above
    const high = Number.isNaN(below) ? low + 100 : below
    const unit = numberOr(schema.multipleOf, step)
    const first = Math.ceil(low / unit)
    return Number((unit * between(first, Math.max(first, Math.floor(high / unit)))).toFixed(6))
  }

  const list = (schema: Fields, depth: number): unknown => {
    const tuple = isList(schema.prefixItems) ? schema.prefixItems : isList(schema.items) ? schema.items : []
    const least = numberOr(schema.minItems, depth > 4 ? 0 : 1)
    const length = tuple.length > 0 ? 0 : between(least, Math.min(numberOr(schema.maxItems, least + 2), least + 2))
    const rest = Array.from({ length: depth > 4 ? least : length }, () => value(schema.items, depth + 1))
    return tuple.length > 0 ? tuple.map((item) => value(item, depth + 1)) : rest
  }

  const record = (schema: Fields, depth: number): unknown => {
    const properties = isFields(schema.properties) ? schema.properties : {}
    const required = isList(schema.required) ? schema.required : []
    const kept = Object.entries(properties).filter(([name]) => depth < 4 || required.includes(name))
    return Object.fromEntries(kept.map(([name, property]) => [name, value(property, depth + 1)]))
  }

  let definitions: Fields = {}
  /** Effect writes a refinement of a named schema as a reference with its own words beside it. */
  const resolve = (reference: string, { $ref: _, ...beside }: Fields): unknown => {
    const definition = definitions[reference.replace("#/$defs/", "")]
    return isFields(definition) ? { ...definition, ...beside } : beside
  }
  const value = (schema: unknown, depth: number): unknown => {
    if (!isFields(schema) || depth > 40) return sentence(3)
    if (isFields(schema.$defs)) definitions = schema.$defs
    if (typeof schema.$ref === "string") return value(resolve(schema.$ref, schema), depth + 1)
    if ("const" in schema) return schema.const
    if (isList(schema.enum)) return pick(schema.enum)
    const choices = schema.anyOf ?? schema.oneOf
    // Deep down a plain choice, so that a recursive schema ends.
    const plain = isList(choices) ? choices.find((choice) => !isFields(choice) || !("$ref" in choice)) : undefined
    if (isList(choices)) return value(depth > 4 && plain !== undefined ? plain : pick(choices), depth + 1)
    const type = isList(schema.type) ? schema.type.find((name) => name !== "null") : schema.type
    switch (type) {
      case "object":
        return record(schema, depth)
      case "array":
        return list(schema, depth)
      case "integer":
        return number(schema, 1)
      case "number":
        return number(schema, 0.01)
      case "boolean":
        return next() < 0.5
      case "null":
        return null
      default:
        return text(schema)
    }
  }
  return { value, sentence }
}
