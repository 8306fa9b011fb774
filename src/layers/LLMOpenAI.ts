/**
 * The provider behind the official `openai` SDK, or any server that speaks chat completions. The SDK builds the request (URL, auth, headers); the
 * exchange itself is ours, because the SDK's own retries, follows redirects, drops some error bodies and (in v6) lets its timeout end with the
 * headers. So one `generate` is one physical request, on version 6 and 7 alike.
 *
 * @example
 * import { Redacted } from "effect"
 * import * as LLMOpenAI from "longhaul/openai"
 * const fromEnvironment = LLMOpenAI.layer // OPENAI_API_KEY, OPENAI_BASE_URL
 * const local = LLMOpenAI.layerWith({ apiKey: Redacted.make("any"), baseUrl: "http://127.0.0.1:11434/v1", name: "ollama" })
 *
 * @since 0.1.0
 */
import { Clock, Config, ConfigError, Effect, Either, Layer, Redacted } from "effect"
import OpenAI from "openai"
import { classify, type Input } from "../services/Classify.ts"
import { causeChain, type LLMError } from "../services/Errors.ts"
import { answer, type ChatAnswer, type ChatRequest, LLM, type LLMShape, type TokenUsage } from "../services/LLM.ts"
import * as Profile from "../services/Profile.ts"
import { rateLimits } from "../services/RateLimit.ts"
import { hiding, type Scrub } from "../services/Scrub.ts"
import { withoutConstraints } from "../services/StrictSchema.ts"
import { Usd } from "../services/Usd.ts"

/**
 * A key or base URL that is left out is read from `OPENAI_API_KEY` and `OPENAI_BASE_URL`. `timeoutMs` covers the whole call, headers and body: by
 * default 120,000, 300,000 for the flex tier and for much effort, what the profile says; above 300,000 the platform's own limit of five silent minutes comes first. `maxBodyBytes` (default 4 MiB) bounds an answer. `name` is the
 * provider's name, by default the host: breaker and cool-down belong to it. `profile` says what kind of server it is, by default what its address tells.
 *
 * @since 0.1.0
 */
export interface Options {
  readonly apiKey?: Redacted.Redacted | undefined
  readonly baseUrl?: string | undefined
  readonly timeoutMs?: number | undefined
  readonly maxBodyBytes?: number | undefined
  readonly name?: string | undefined
  readonly profile?: Profile.Name | Profile.Profile | undefined
}

/**
 * The provider with these options.
 *
 * @since 0.1.0
 */
export const layerWith = (options: Options): Layer.Layer<LLM, ConfigError.ConfigError> =>
  Layer.effect(
    LLM,
    Effect.suspend(() => make(options))
  )

/**
 * The provider by the environment: `OPENAI_API_KEY`, and `OPENAI_BASE_URL` if it is set.
 *
 * @since 0.1.0
 */
export const layer: Layer.Layer<LLM, ConfigError.ConfigError> = layerWith({})

/**
 * The provider with options that are read from the configuration.
 *
 * @since 0.1.0
 */
export const layerConfig = (config: Config.Config.Wrap<Options>): Layer.Layer<LLM, ConfigError.ConfigError> =>
  Layer.effect(LLM, Effect.flatMap(Config.unwrap(config), make))

const make = Effect.fnUntraced(function* (options: Options) {
  const key = yield* readKey(options.apiKey)
  const client = yield* makeClient(key, yield* readBaseUrl(options.baseUrl))
  const server: Server = {
    client,
    profile: profileOf(options.profile, client.baseURL),
    timeoutMs: options.timeoutMs === undefined ? undefined : yield* positive("timeoutMs", options.timeoutMs),
    maxBodyBytes: yield* positive("maxBodyBytes", options.maxBodyBytes ?? 4 * 1024 * 1024),
    // A server may quote the key back at us: no text of its leaves this file without passing here.
    scrub: hiding([key, ...(yield* secretHeaders(client))])
  }
  const shape: LLMShape = {
    provider: options.name ?? new URL(client.baseURL).host,
    outputMode: server.profile.outputMode,
    countsOutputLimit: server.profile.countsOutputLimit,
    priceFactor: server.profile.priceFactor,
    standardTier: server.profile.standardTier,
    generate: Effect.fnUntraced(function* (request) {
      const reply = yield* Effect.promise((signal) => exchange(server, request, signal))
      const now = yield* Clock.currentTimeMillis
      return yield* Either.flatMap(reply, (reply) => readReply(server, reply, request, now))
    })
  }
  return shape
})

const profileOf = (given: Options["profile"], baseUrl: string): Profile.Profile =>
  typeof given === "string" ? Profile.profiles[given] : (given ?? Profile.forUrl(baseUrl))

const keyName = "OPENAI_API_KEY"
const urlName = "OPENAI_BASE_URL"
const absent = (fallback: string) => (error: ConfigError.ConfigError) =>
  ConfigError.isMissingDataOnly(error) ? Effect.succeed(fallback) : Effect.fail(error)

const readKey = Effect.fnUntraced(function* (given: Redacted.Redacted | undefined) {
  const config = Effect.map(Config.redacted(keyName), Redacted.value)
  const key = (given === undefined ? yield* Effect.catchAll(config, absent("")) : Redacted.value(given)).trim()
  if (key === "") return yield* Effect.fail(ConfigError.MissingData([keyName], missingKey))
  // What is not visible ASCII cannot stand in a header, and the platform's complaint about it would quote the key.
  return /^[\x21-\x7e]+$/.test(key)
    ? key
    : yield* Effect.fail(ConfigError.InvalidData([keyName], "The API key is not one word of visible ASCII characters"))
})

const missingKey = `There is no API key: set ${keyName}, or pass apiKey to LLMOpenAI.layerWith (a server that wants none takes any word)`

/** `null` is the SDK's word for its own default. A URL with a password in it is refused: it would stand in every error. */
const readBaseUrl = Effect.fnUntraced(function* (given: string | undefined) {
  const baseUrl = given ?? (yield* Effect.catchAll(Config.string(urlName), absent(""))).trim()
  if (baseUrl === "") return null
  const url = URL.canParse(baseUrl) ? new URL(baseUrl) : undefined
  return url !== undefined && /^https?:$/.test(url.protocol) && url.username === "" && url.password === ""
    ? baseUrl
    : yield* Effect.fail(
        ConfigError.InvalidData([urlName], "The base URL is not an http or https URL without user and password")
      )
})

const makeClient = (apiKey: string, baseURL: string | null) =>
  Effect.try({
    try: () => new OpenAI({ apiKey, baseURL, maxRetries: 0 }),
    catch: () =>
      ConfigError.InvalidData(
        [keyName],
        "The openai SDK refuses its settings: see OPENAI_CUSTOM_HEADERS and OPENAI_LOG"
      )
  })

const positive = (name: string, value: number) =>
  value >= 1
    ? Effect.succeed(Math.min(value, 2 ** 31 - 1))
    : Effect.fail(ConfigError.InvalidData([name], `It must be a number from 1, not ${value}`))

const isSecret = /auth|key|token|secret|cookie/i

/**
 * What OPENAI_CUSTOM_HEADERS puts beside the key. A request is built for it before the first call, so that one that cannot be built or goes astray is found here.
 */
const secretHeaders = (client: OpenAI) =>
  Effect.tryPromise({
    try: async () => {
      const { req, url } = await client.buildRequest({ method: "post", path: "/chat/completions", body: {} })
      // openai 6 writes the path behind a query.
      if (!new URL(url).pathname.endsWith("/chat/completions")) throw new Error("the base URL has a query")
      return [...new Headers(req.headers)].flatMap(([name, value]) =>
        isSecret.test(name) ? [value, value.replace(/^\S+ /, "")] : []
      )
    },
    catch: () => ConfigError.InvalidData([urlName], unbuildable)
  })

const unbuildable = `No request can be built: see ${urlName} (without a query), OPENAI_ORG_ID, OPENAI_PROJECT_ID and OPENAI_CUSTOM_HEADERS`

interface Server {
  readonly client: OpenAI
  readonly profile: Profile.Profile
  /** What the options say; without it the profile and the request do. */
  readonly timeoutMs: number | undefined
  readonly maxBodyBytes: number
  readonly scrub: Scrub
}

interface Reply {
  readonly status: number
  readonly ok: boolean
  readonly headers: { readonly get: (name: string) => string | null }
  readonly text: string
}

/**
 * One physical request, ended by the answer, the deadline, the size limit or an interruption. Never rejects. The controller is this call's own, so no
 * listener outlives it.
 */
const exchange = async (
  { client, maxBodyBytes, profile, scrub, timeoutMs }: Server,
  request: ChatRequest,
  interrupted: AbortSignal
): Promise<Either.Either<Reply, LLMError>> => {
  const controller = new AbortController()
  const abort = () => controller.abort()
  const deadline = setTimeout(abort, timeoutMs ?? patience(request, profile))
  interrupted.addEventListener("abort", abort, { once: true })
  let seen: Pick<Input, "status" | "headers"> = {}
  try {
    const body = requestBody(request, profile)
    const { url, req } = await client.buildRequest({ method: "post", path: "/chat/completions", body })
    const response = await fetch(url, { ...once(req), redirect: "manual", signal: controller.signal })
    const headers = { get: (name: string) => scrubbed(response.headers.get(name), scrub) }
    seen = { status: response.status, headers }
    const isAnswer = response.ok && isJson(response.headers.get("content-type"))
    // A refusal, or a page in the place of an answer, is known by its head, even if its body never ends.
    const text = isAnswer ? await readAll(response, maxBodyBytes) : await readStart(response, controller.signal)
    return Either.right({ status: response.status, ok: response.ok, headers, text })
  } catch (error) {
    const networkCode = controller.signal.aborted ? "DEADLINE" : codeOf(error)
    const cause = new Error(scrub(causeChain(error).join(": ")))
    return Either.left(classify({ ...seen, profile, ...(networkCode === undefined ? {} : { networkCode }), cause }))
  } finally {
    clearTimeout(deadline)
    interrupted.removeEventListener("abort", abort)
  }
}

/** A cheap tier and much thinking take their time; beyond five silent minutes the platform gives up by itself. */
const patience = ({ effort, tier }: ChatRequest, { timeoutMs }: Profile.Profile): number =>
  tier === "flex" || (effort !== undefined && ["high", "xhigh", "max"].includes(effort))
    ? Math.max(timeoutMs, 300_000)
    : timeoutMs

type Request = Awaited<ReturnType<OpenAI["buildRequest"]>>["req"]

/** With a body that can be read once only, as fetch sends a text a second time where a server answers 421. */
const once = (request: Request): RequestInit => {
  if (typeof request.body !== "string") throw new TypeError("The SDK built no text")
  const bytes = new TextEncoder().encode(request.body)
  const headers = new Headers(request.headers)
  headers.set("content-length", String(bytes.byteLength))
  const body = new ReadableStream<Uint8Array>({
    start: (stream) => {
      stream.enqueue(bytes)
      stream.close()
    }
  })
  return { ...request, headers, body, duplex: "half" }
}

const scrubbed = (text: string | null, scrub: Scrub) => (text === null ? null : scrub(text))

const readAll = async (response: Response, limit: number): Promise<string> => {
  const chunks: Array<Uint8Array> = []
  let size = 0
  for await (const chunk of response.body ?? []) {
    size += chunk.byteLength
    // Leaving the loop cancels the stream and closes the socket.
    if (size > limit)
      throw Object.assign(new Error(`The answer is larger than ${limit} bytes`), { code: "BODY_TOO_LARGE" })
    chunks.push(chunk)
  }
  // An answer whose letters were lost is none.
  return new TextDecoder("utf-8", { fatal: true }).decode(Buffer.concat(chunks))
}

const START_BYTES = 16 * 1024
const START_MS = 2_000

/** What comes at once of a body that is no answer, at most 16 KiB: enough to say what it is. */
const readStart = async (response: Response, signal: AbortSignal): Promise<string> => {
  const reader = response.body?.getReader()
  if (reader === undefined) return ""
  const decoder = new TextDecoder()
  let text = ""
  let hurry = () => {}
  const late = new Promise<undefined>((resolve) => {
    hurry = () => resolve(undefined)
  })
  const timer = setTimeout(hurry, START_MS)
  signal.addEventListener("abort", hurry, { once: true })
  while (text.length < START_BYTES) {
    const next = await Promise.race([reader.read().catch(() => undefined), late])
    if (next === undefined || next.done) break
    text += decoder.decode(next.value, { stream: true })
  }
  clearTimeout(timer)
  // Closes the socket, where the body did not end by itself.
  await reader.cancel().catch(() => undefined)
  return text.slice(0, START_BYTES)
}

/** What the platform says without a code. A 401 to a body that can be read once comes as an error in undici 7.19 to 7.24 (nodejs/undici#4910), so in Node 24.14. */
const codesOfWords: ReadonlyMap<string, string> = new Map([
  ["bad port", "BAD_PORT"],
  ["expected non-null body source", "UNAUTHORIZED"]
])

/** The first code in the chain of causes: fetch wraps the socket's error, which may be several in one. */
const codeOf = (error: unknown): string | undefined => {
  if (!isFields(error)) return undefined
  if (typeof error.code === "string") return error.code
  const code = typeof error.message === "string" ? codesOfWords.get(error.message) : undefined
  if (code !== undefined) return code
  const inner = Array.isArray(error.errors) ? [error.cause, ...error.errors] : [error.cause]
  return inner.map(codeOf).find((code) => code !== undefined)
}

/** Only what is asked for is sent: a server may refuse a word that it does not know. */
const requestBody = (request: ChatRequest, profile: Profile.Profile): Fields => ({
  model: request.model,
  messages: request.messages,
  [profile.outputLimit]: request.maxOutputTokens,
  ...(request.temperature === undefined ? {} : { temperature: request.temperature }),
  ...(request.effort === undefined ? {} : { reasoning_effort: request.effort }),
  ...tierOf(request.tier ?? profile.standardTier),
  ...responseFormat(request.format, profile)
})

const tierOf = (tier: string | undefined): Fields => (tier === undefined ? {} : { service_tier: tier })

const responseFormat = (format: ChatRequest["format"], { constraints }: Profile.Profile): Fields => {
  if (format.mode === "text") return {}
  if (format.mode === "json_object") return { response_format: { type: "json_object" } }
  const name = format.name.replace(/[^A-Za-z0-9_-]/g, "_").slice(0, 64)
  const schema = constraints ? format.schema : withoutConstraints(format.schema)
  return { response_format: { type: "json_schema", json_schema: { name, schema, strict: format.strict } } }
}

const readReply = (
  { profile, scrub }: Server,
  reply: Reply,
  request: ChatRequest,
  now: number
): Either.Either<ChatAnswer, LLMError> => {
  const { status, headers } = reply
  const parsed = parse(reply.text)
  const fail = (input: Input) =>
    Either.left(classify({ status, headers, now, profile, text: scrubbedText(parsed, reply.text, scrub), ...input }))
  if (!reply.ok) return fail({ body: scrubbedJson(parsed, scrub) })
  const body = isJson(headers.get("content-type")) ? parsed : undefined
  if (!isFields(body)) return fail({ networkCode: "INVALID_BODY" })
  const choice = Array.isArray(body.choices) ? body.choices[0] : undefined
  // Once a model has begun to write, a gateway can only report an error inside the 200.
  const error = body.error ?? (isFields(choice) ? choice.error : undefined)
  if (error !== undefined && error !== null) return fail({ body: { error: scrubbedJson(error, scrub) } })
  if (!Array.isArray(body.choices)) return fail({ networkCode: "INVALID_BODY" })
  const limits = rateLimits(headers, profile.requestsPer, now)
  const said = readAnswer(body, isFields(choice) ? choice : { finish_reason: null }, request, profile)
  // A server may put the key into an answer, too, and answers are stored and exported.
  const [text = "", model = "", finish = "", tier, refusal] = [
    said.text,
    said.model,
    said.finish,
    said.tier,
    said.refusal
  ].map((word) => (word === undefined ? undefined : scrub(word)))
  const requestId = headers.get("x-request-id") ?? undefined
  return Either.right(answer({ ...said, text, model, finish, tier, refusal, requestId, limits }))
}

/** What the model said, judged by nobody yet: an empty, cut or refused answer is an answer, and was billed. */
const readAnswer = (body: Fields, choice: Fields, request: ChatRequest, profile: Profile.Profile) => {
  const message = isFields(choice.message) ? choice.message : {}
  const finish = choice.finish_reason === undefined ? "stop" : choice.finish_reason
  return {
    text: textOf(message.content),
    model: profile.isAlias || typeof body.model !== "string" ? request.model : body.model,
    usage: readUsage(body.usage),
    cost: profile.costInUsage ? readCost(body.usage) : undefined,
    tier: typeof body.service_tier === "string" ? body.service_tier : undefined,
    finish: typeof finish === "string" ? finish : "unknown",
    refusal: typeof message.refusal === "string" && message.refusal !== "" ? message.refusal : undefined
  }
}

/** Some servers give the text in parts. */
const textOf = (content: unknown): string => {
  if (typeof content === "string") return content
  const parts: ReadonlyArray<unknown> = Array.isArray(content) ? content : []
  return parts.map((part) => (isFields(part) && typeof part.text === "string" ? part.text : "")).join("")
}

/** The provider's own bill in dollars (OpenRouter); with a key of one's own there the upstream's bill comes on top. */
const readCost = (usage: unknown): Usd | undefined => {
  if (!isFields(usage) || typeof usage.cost !== "number" || !(usage.cost >= 0)) return undefined
  const details = isFields(usage.cost_details) ? usage.cost_details : {}
  const upstream = usage.is_byok === true ? details.upstream_inference_cost : 0
  if (typeof upstream !== "number" || !(upstream >= 0)) return undefined
  const nano = Math.ceil((usage.cost + upstream) * 1e9 - 1e-3)
  return Number.isSafeInteger(nano) ? Usd.nano(Math.max(0, nano)) : undefined
}

/**
 * `undefined` unless every number is one and they agree: a wrong bill is worse than the hold. No request has zero input tokens, so a zero is a server
 * that does not count.
 */
const readUsage = (usage: unknown): TokenUsage | undefined => {
  if (!isFields(usage)) return undefined
  const inputs = isFields(usage.prompt_tokens_details) ? usage.prompt_tokens_details : {}
  const outputs = isFields(usage.completion_tokens_details) ? usage.completion_tokens_details : {}
  const tokens: TokenUsage = {
    inputTokens: count(usage.prompt_tokens),
    cachedTokens: count(inputs.cached_tokens ?? 0),
    cacheWriteTokens: count(inputs.cache_write_tokens ?? 0),
    outputTokens: count(usage.completion_tokens),
    reasoningTokens: count(outputs.reasoning_tokens ?? 0)
  }
  const total = count(usage.total_tokens ?? tokens.inputTokens + tokens.outputTokens)
  const agree =
    tokens.inputTokens > 0 &&
    tokens.cachedTokens + tokens.cacheWriteTokens <= tokens.inputTokens &&
    tokens.reasoningTokens <= tokens.outputTokens &&
    total === tokens.inputTokens + tokens.outputTokens
  return agree ? tokens : undefined
}

/** A count of tokens, or NaN, which agrees with nothing. */
const count = (value: unknown): number =>
  typeof value === "number" && Number.isSafeInteger(value) && value >= 0 ? value : Number.NaN

type Fields = Readonly<Record<string, unknown>>
const isFields = (value: unknown): value is Fields =>
  typeof value === "object" && value !== null && !Array.isArray(value)

/** A server that does not name its type is judged by the text alone. */
const isJson = (contentType: string | null) => contentType === null || /[/+]json\b/i.test(contentType)

const parse = (text: string): unknown => {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

const scrubbedText = (parsed: unknown, text: string, scrub: Scrub): string => {
  const clear = scrubbedJson(parsed, scrub)
  return clear === undefined ? scrub(text) : JSON.stringify(clear)
}

/** As it is written anew, names and all. What is nested too deep to be written is dropped. */
const scrubbedJson = (value: unknown, scrub: Scrub): unknown => {
  try {
    const text = JSON.stringify(value)
    return text === undefined ? undefined : JSON.parse(scrub(text))
  } catch {
    return undefined
  }
}
