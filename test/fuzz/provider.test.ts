/** Whatever a provider sends: an answer or a typed error, at once, and a bill that is an amount. */
import { createServer, type Server } from "node:http"
import { assert, describe, it } from "@effect/vitest"
import { Cause, Effect, Either, Exit, Layer, Option, Redacted, Runtime, Schema } from "effect"
import fc from "fast-check"
import * as LLMOpenAI from "../../src/layers/LLMOpenAI.ts"
import * as Classify from "../../src/services/Classify.ts"
import { InputError, LLMError } from "../../src/services/Errors.ts"
import * as JsonText from "../../src/services/JsonText.ts"
import { type ChatAnswer, LLM, answer as makeAnswer, request } from "../../src/services/LLM.ts"
import * as Price from "../../src/services/Price.ts"
import * as Profile from "../../src/services/Profile.ts"
import * as RateLimit from "../../src/services/RateLimit.ts"
import * as StrictSchema from "../../src/services/StrictSchema.ts"
import { listening } from "../support/listening.ts"
import { fuzz, runs } from "./fuzz.ts"

const YEAR = 366 * 24 * 3_600_000
const asked = request({
  model: "gpt-4o-mini",
  messages: [{ role: "user", content: "vendor 42" }],
  maxOutputTokens: 200,
  format: { mode: "text" }
})
const price: Price.PriceRow = { model: "gpt-4o-mini", from: "1970-01-01", input: 0.15, output: 0.6, cached: 0.075 }

// ---- what may come over the wire

/** Any of these where a value is expected. */
const odd: fc.Arbitrary<unknown> = fc.oneof(
  fc.jsonValue({ maxDepth: 1 }),
  fc.constantFrom<unknown>(
    null,
    -1,
    0,
    1e308,
    1.5,
    2 ** 53,
    "1",
    "",
    true,
    [],
    {},
    "length",
    "stop",
    "insufficient_quota",
    429
  )
)
const often = <A>(usual: A) => fc.oneof({ weight: 3, arbitrary: fc.constant(usual) }, { weight: 1, arbitrary: odd })
/** A completion of which any part may be something else or missing. */
const completion = fc.record(
  {
    id: often("id"),
    model: often("gpt-4o-mini"),
    service_tier: often("default"),
    error: odd,
    choices: fc.oneof(
      odd,
      fc.array(
        fc.record(
          {
            index: often(0),
            finish_reason: often("stop"),
            error: odd,
            message: fc.oneof(
              odd,
              fc.record({ role: often("assistant"), content: often("fine"), refusal: odd }, { requiredKeys: [] })
            )
          },
          { requiredKeys: [] }
        ),
        { maxLength: 2 }
      )
    ),
    usage: fc.oneof(
      odd,
      fc.record(
        {
          prompt_tokens: often(10),
          completion_tokens: often(5),
          total_tokens: often(15),
          cost: odd,
          prompt_tokens_details: fc.oneof(odd, fc.record({ cached_tokens: often(1) })),
          completion_tokens_details: fc.oneof(odd, fc.record({ reasoning_tokens: often(1) }))
        },
        { requiredKeys: [] }
      )
    )
  },
  { requiredKeys: [] }
)
const refusal = fc.record({
  error: fc.oneof(
    odd,
    fc.record(
      { message: often("Rate limit"), type: often("x"), code: often("y"), param: often("z"), metadata: odd },
      { requiredKeys: [] }
    )
  )
})
const json = fc.oneof(completion, refusal, fc.jsonValue()).map((value) => JSON.stringify(value))
const deep = fc
  .tuple(fc.constantFrom("[", '{"a":', '{"error":', '{"choices":['), fc.integer({ min: 1, max: 30_000 }))
  .map(([open, times]) => open.repeat(times))
const closed = fc.integer({ min: 1, max: 30_000 }).map((times) => `{"error":${"[".repeat(times)}${"]".repeat(times)}}`)
const cut = fc.tuple(json, fc.nat(400)).map(([text, at]) => text.slice(0, at))
const body = fc.oneof(
  { weight: 12, arbitrary: json.map((text) => Buffer.from(text)) },
  { weight: 2, arbitrary: cut.map((text) => Buffer.from(text)) },
  { weight: 2, arbitrary: fc.string({ unit: "binary" }).map((text) => Buffer.from(text)) },
  { weight: 2, arbitrary: fc.uint8Array({ maxLength: 200 }).map((bytes) => Buffer.from(bytes)) },
  { weight: 1, arbitrary: fc.oneof(deep, closed).map((text) => Buffer.from(text)) }
)
const number = fc.oneof(
  fc.integer().map(String),
  fc.constantFrom("0", "-1", "1e9", "9".repeat(400), "1.5", "1,000", "NaN")
)
const headerText = fc.oneof(
  number,
  fc.constantFrom(
    "6m0s",
    "1s",
    "2m59.56s",
    "Sun, 29 Nov 2026 10:00:00 GMT",
    "soon",
    "",
    "1d",
    "5 parsecs",
    "1ms1ms",
    "0.0.0"
  ),
  fc.tuple(number, fc.constantFrom("s", "ms", "h", "ns", " seconds", "x")).map(([n, unit]) => n + unit),
  fc.string({ unit: "grapheme-ascii", maxLength: 12 })
)
const headers = fc.dictionary(
  fc.constantFrom(
    "retry-after",
    "retry-after-ms",
    "date",
    "x-request-id",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
    "x-should-retry"
  ),
  headerText
)
const type = fc.constantFrom(
  "application/json",
  "application/json; charset=utf-8",
  "text/html",
  "text/event-stream",
  "",
  "nonsense"
)
const status = fc.oneof(
  { weight: 5, arbitrary: fc.constant(200) },
  { weight: 3, arbitrary: fc.constantFrom(201, 302, 400, 401, 403, 404, 408, 413, 422, 429, 500, 502, 503, 529) },
  { weight: 1, arbitrary: fc.integer({ min: 200, max: 599 }) }
)
const reply = fc.record({ status, headers, type, body })
type Reply = typeof reply extends fc.Arbitrary<infer A> ? A : never

// ---- what must be true of what comes out

const isAmount = (n: number) => Number.isSafeInteger(n) && n >= 0
const isWait = (ms: number | undefined) => ms === undefined || (ms >= 0 && ms <= YEAR)
const isLimit = (n: number | undefined) => n === undefined || n > 0

const checkLimits = (limits: ChatAnswer["limits"]) => {
  if (limits === undefined) return
  assert.isTrue(isWait(limits.waitMs), `waits ${limits.waitMs}`)
  assert.isTrue(isLimit(limits.requestsPerMinute), `${limits.requestsPerMinute} requests a minute`)
  assert.isTrue(isLimit(limits.tokensPerMinute), `${limits.tokensPerMinute} tokens a minute`)
}
const checkError = (error: LLMError) => {
  assert.instanceOf(error, LLMError)
  assert.isAtMost(error.message.length, 300)
  assert.notMatch(error.message, /[\p{Cc}\p{Zl}\p{Zp}]/u)
  assert.isTrue(isWait(error.retryAfterMs), `waits ${error.retryAfterMs}`)
}
const checkAnswer = (answer: ChatAnswer) => {
  for (const word of [answer.text, answer.model, answer.finish]) assert.isString(word)
  if (answer.usage !== undefined) assert.isTrue(Price.isSound(answer.usage), JSON.stringify(answer.usage))
  if (answer.cost !== undefined) assert.isTrue(isAmount(answer.cost))
  checkLimits(answer.limits)
  const bill = Price.bill(price, asked, answer, () => undefined)
  if (bill._tag === "Known") assert.isTrue(isAmount(bill.cost), `${bill.cost}`)
}

describe("What a provider sends", () => {
  let next: Reply | undefined
  const serving: Effect.Effect<Server> = Effect.sync(() =>
    createServer((incoming, response) => {
      incoming.resume().on("end", () => {
        const now = next
        if (now === undefined) return response.destroy()
        for (const [name, value] of Object.entries(now.headers)) response.setHeader(name, value)
        if (now.type !== "") response.setHeader("content-type", now.type)
        response.writeHead(now.status).end(now.status === 204 || now.status === 304 ? undefined : now.body)
      })
    })
  )

  it.scopedLive(
    "any reply over HTTP is an answer or an LLMError, at once, whatever its status, type, headers and body",
    () =>
      Effect.gen(function* () {
        const baseUrl = yield* Effect.flatMap(serving, listening)
        const providers = yield* Effect.forEach([undefined, ...Profile.names], (profile) =>
          Effect.provide(
            LLM,
            Layer.orDie(
              LLMOpenAI.layerWith({ apiKey: Redacted.make("sk-fuzz-fuzz"), baseUrl, timeoutMs: 20_000, profile })
            )
          )
        )
        const runtime = yield* Effect.runtime<never>()
        const property = fc.asyncProperty(reply, fc.constantFrom(...providers), async (given, llm) => {
          next = given
          const exit = await Runtime.runPromise(runtime, Effect.exit(llm.generate(asked)))
          if (Exit.isSuccess(exit)) return checkAnswer(exit.value)
          const error = Option.getOrUndefined(Cause.failureOption(exit.cause))
          if (error === undefined) return assert.fail(Cause.pretty(exit.cause))
          checkError(error)
          assert.isFalse(error.status === undefined && error.reason === "timeout", "it hung")
        })
        yield* Effect.promise(() => fc.assert(property, runs(1_500)))
      })
  )

  it("a failed call of any shape is classified, on one line, with a wait of at most a year", async () => {
    const input = fc.record(
      {
        status,
        code: fc.oneof(fc.string(), fc.integer()),
        type: fc.string(),
        message: fc.oneof(
          fc.string({ unit: "binary" }),
          headerText.map((text) => `Please try again in ${text}.`)
        ),
        networkCode: fc.constantFrom("ECONNRESET", "DEADLINE", "ERR_SSL_X", "toString", "__proto__", ""),
        body: fc.oneof(odd, refusal, fc.array(refusal, { maxLength: 2 })),
        text: fc.string({ unit: "binary" }),
        profile: fc.constantFrom(...Object.values<Profile.Profile>(Profile.profiles)),
        now: fc.integer(),
        cause: odd
      },
      { requiredKeys: [] }
    )
    await fuzz(
      fc.property(input, headers, (given, named) => {
        checkError(Classify.classify({ ...given, headers: { get: (name) => named[name] ?? null } }))
      }),
      20_000
    )
  })

  it("headers say waits between nothing and a year, and limits above nothing", async () => {
    await fuzz(
      fc.property(
        headers,
        headerText,
        fc.integer(),
        fc.constantFrom("minute" as const, "day" as const),
        (named, text, now, per) => {
          const given = { get: (name: string) => named[name] ?? null }
          assert.isTrue(isWait(RateLimit.durationMs(text, now)), `duration ${text}`)
          assert.isTrue(isWait(RateLimit.waitInWords(`Please try again in ${text}. Thank you`)), `words ${text}`)
          assert.isTrue(isWait(RateLimit.retryAfterMs(given, now)), `retry ${JSON.stringify(named)}`)
          checkLimits(RateLimit.rateLimits(given, per, now))
        }
      ),
      20_000
    )
  })

  it("the JSON of any text is found or refused in words that quote none of it", async () => {
    const piece = fc.oneof(
      json,
      cut,
      fc.constantFrom(
        "```json\n",
        "\n```",
        "```",
        "<think>",
        "</think>",
        "{",
        "}",
        "[",
        '"',
        "\\",
        "\n",
        "Here it is: ",
        "{...}"
      ),
      fc.string({ unit: "binary" })
    )
    await fuzz(
      fc.property(fc.array(piece, { maxLength: 6 }), (pieces) => {
        const found = JsonText.find(pieces.join(""))
        if (Either.isRight(found)) return assert.doesNotThrow(() => JSON.stringify(found.right.value))
        assert.match(found.left, /^the answer [a-z0-9 ,:JSON?]+$/)
      }),
      20_000
    )
    for (const times of [1, 100, 50_000]) {
      for (const open of ["{", "[", '{"a":', "<think></think>", "```\n", "```json\n{}\n```\n", '"', "\\"]) {
        assert.isTrue(Either.isEither(JsonText.find(open.repeat(times))))
      }
    }
  })

  it("any usage has a bill that is an amount, or none that counts at its hold", async () => {
    const tokens = fc.oneof(fc.nat(10 ** 9), fc.constantFrom(-1, 0.5, 1e308, Number.NaN, 2 ** 53))
    const dollars = fc.oneof(fc.constantFrom(0, 0.001, 0.15, 75, 600), fc.double({ min: 0.001, max: 600, noNaN: true }))
    const row = fc.record(
      {
        model: fc.constant("m"),
        from: fc.constant("1970-01-01"),
        input: dollars,
        output: dollars,
        cached: dollars,
        cacheWrite: dollars,
        tiers: fc.dictionary(fc.constantFrom("flex", "priority", "batch"), fc.double({ min: 0, max: 2, noNaN: true })),
        longContext: fc.record({
          above: fc.nat(10 ** 6),
          input: fc.constantFrom(1, 2),
          output: fc.constantFrom(1, 1.5)
        })
      },
      { requiredKeys: ["model", "from", "input", "output"] }
    )
    const usage = fc.record({
      inputTokens: tokens,
      cachedTokens: tokens,
      cacheWriteTokens: tokens,
      outputTokens: tokens,
      reasoningTokens: tokens
    })
    const tier = fc.constantFrom(undefined, "default", "flex", "priority", "toString", "")
    await fuzz(
      fc.property(row, fc.option(usage, { nil: undefined }), tier, (price, usage, tier) => {
        const answer = makeAnswer({ text: "", model: "m", usage, tier })
        const bill = Price.bill(price, { ...asked, model: "m" }, answer, () => undefined)
        if (bill._tag === "Known") assert.isTrue(isAmount(bill.cost), `${bill.cost}`)
        assert.isTrue(isAmount(Price.hold(price, asked)))
      }),
      20_000
    )
  })

  it("any JSON schema is freed of its constraints, and any Effect schema is asked for or refused with a fix", async () => {
    await fuzz(
      fc.property(
        fc.dictionary(fc.constantFrom("type", "properties", "items", "anyOf", "$defs", "minLength"), fc.jsonValue()),
        (given) => {
          assert.isObject(StrictSchema.withoutConstraints(given))
        }
      ),
      20_000
    )
    const leaves = [
      Schema.String,
      Schema.Number,
      Schema.Int.pipe(Schema.between(0, 5)),
      Schema.Boolean,
      Schema.Date,
      Schema.BigInt,
      Schema.Unknown,
      Schema.Any,
      Schema.Never,
      Schema.Undefined,
      Schema.Null,
      Schema.Void,
      Schema.Object,
      Schema.SymbolFromSelf,
      Schema.DateFromSelf,
      Schema.Literal("a", 1, null),
      Schema.TemplateLiteral("a", Schema.Number),
      Schema.String.pipe(Schema.pattern(/^a+$/), Schema.maxLength(3)),
      Schema.Record({ key: Schema.String, value: Schema.Number }),
      Schema.Map({ key: Schema.String, value: Schema.Number }),
      Schema.instanceOf(Error),
      Schema.declare((value: unknown): value is string => typeof value === "string")
    ]
    const untyped = ({ ast }: Schema.Schema.All) => Schema.make<unknown>(ast)
    const schema = fc.letrec<{ schema: Schema.Schema<unknown> }>((tie) => ({
      schema: fc.oneof(
        { maxDepth: 3 },
        fc.constantFrom(...leaves.map(untyped)),
        fc
          .oneof(
            tie("schema").map((item) => Schema.Array(item)),
            tie("schema").map((item) => Schema.NullOr(item)),
            fc.tuple(tie("schema"), tie("schema")).map(([a, b]) => Schema.Union(a, b)),
            fc.tuple(tie("schema"), tie("schema")).map(([a, b]) => Schema.Tuple(a, b)),
            fc.dictionary(fc.string(), tie("schema"), { maxKeys: 3 }).map((fields) => Schema.Struct(fields)),
            tie("schema").map((item) => Schema.suspend(() => item))
          )
          .map(untyped)
      )
    })).schema
    await fuzz(
      fc.property(schema, fc.boolean(), (given, wrapped) => {
        const strict = StrictSchema.fromSchema("agent", wrapped ? untyped(Schema.Struct({ a: given })) : given)
        if (Either.isRight(strict)) return assert.doesNotThrow(() => JSON.stringify(strict.right))
        assert.instanceOf(strict.left, InputError)
        assert.isString(strict.left.fix)
      }),
      5_000
    )
  })
})
