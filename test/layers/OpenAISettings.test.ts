import { createServer, type IncomingMessage } from "node:http"
import { inspect } from "node:util"
import { assert, describe, it } from "@effect/vitest"
import { ConfigError, Effect, Layer, Redacted } from "effect"
import { vi } from "vitest"
import * as LLMOpenAI from "../../src/layers/LLMOpenAI.ts"
import { type ChatRequest, LLM, request } from "../../src/services/LLM.ts"
import * as Profile from "../../src/services/Profile.ts"
import { listening } from "../support/listening.ts"

const key = "sk-key/0123456789"
const ask = (parts: Partial<ChatRequest> = {}) =>
  request({
    model: "gpt-6-luna",
    messages: [{ role: "user", content: "vendor 42" }],
    maxOutputTokens: 200,
    format: { mode: "text" },
    ...parts
  })
const layerOf = (baseUrl: string, options: LLMOpenAI.Options = {}) =>
  LLMOpenAI.layerWith({ apiKey: Redacted.make(key), baseUrl, ...options })
const generate = (baseUrl: string, options: LLMOpenAI.Options = {}, asked = ask()) =>
  Effect.flatMap(LLM, (llm) => llm.generate(asked)).pipe(Effect.provide(Layer.orDie(layerOf(baseUrl, options))))
const shapeOf = (baseUrl: string, options: LLMOpenAI.Options = {}) =>
  Effect.provide(LLM, Layer.orDie(layerOf(baseUrl, options)))
/** Why it cannot be built. */
const refusal = (options: LLMOpenAI.Options, baseUrl = "http://127.0.0.1:9/v1") =>
  Effect.map(Effect.flip(Effect.provide(LLM, layerOf(baseUrl, options))), (error) => {
    assert.isTrue(ConfigError.isConfigError(error))
    return String(error)
  })

interface Seen {
  readonly path: string
  readonly body: Readonly<Record<string, unknown>>
}

const answered = {
  model: "gpt-6-luna",
  choices: [{ message: { role: "assistant", content: "hi" }, finish_reason: "stop" }],
  usage: { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 }
}

/** Answers each request with what `answer` makes of it, and keeps what it was sent. */
const serve = Effect.fnUntraced(function* (
  answer: (incoming: IncomingMessage) => readonly [status: number, body: unknown] = () => [200, answered]
) {
  const seen: Array<Seen> = []
  const server = createServer(async (incoming, response) => {
    const chunks: Array<Buffer> = []
    for await (const chunk of incoming) chunks.push(chunk)
    seen.push({ path: incoming.url ?? "", body: JSON.parse(Buffer.concat(chunks).toString()) })
    const [status, body] = answer(incoming)
    response.writeHead(status, { "content-type": "application/json" })
    response.end(JSON.stringify(body))
  })
  const url = yield* listening(server)
  return { url, seen }
})

/** The SDK reads these from the process itself. */
const withEnv = (name: string, value: string) =>
  Effect.acquireRelease(
    Effect.sync(() => {
      process.env[name] = value
    }),
    () =>
      Effect.sync(() => {
        delete process.env[name]
      })
  )

describe("options", () => {
  for (const value of [0, -1, Number.NaN]) {
    it.live(`a timeout or a size of ${value} is refused when the provider is built`, () =>
      Effect.gen(function* () {
        assert.include(yield* refusal({ timeoutMs: value }), "timeoutMs")
        assert.include(yield* refusal({ maxBodyBytes: value }), "maxBodyBytes")
      })
    )
  }

  it.scopedLive("a timeout above what a timer can hold is the longest one, and not none", () =>
    Effect.gen(function* () {
      const server = yield* serve()
      assert.strictEqual((yield* generate(server.url, { timeoutMs: Number.POSITIVE_INFINITY })).text, "hi")
    })
  )

  it.scopedLive("a base URL with a query is refused, or used as it is meant", () =>
    Effect.gen(function* () {
      const server = yield* serve()
      // Version 6 of the SDK would write the path behind the query.
      if (process.env.LONGHAUL_OPENAI === "7") {
        yield* generate(`${server.url}?api-version=1`)
        assert.deepStrictEqual(
          server.seen.map(({ path }) => path),
          ["/v1/chat/completions?api-version=1"]
        )
        return
      }
      const message = yield* refusal({}, `${server.url}?key=canary-0123456789`)
      assert.include(message, "OPENAI_BASE_URL")
      assert.notInclude(message, "canary")
      assert.deepStrictEqual(server.seen, [])
    })
  )

  it.scopedLive("an organization that no header can hold is refused when the provider is built", () =>
    Effect.gen(function* () {
      yield* withEnv("OPENAI_ORG_ID", "org-漢")
      assert.include(yield* refusal({}), "OPENAI_ORG_ID")
    })
  )
})

describe("custom headers", () => {
  it.scopedLive("are sent, and a secret among them is in no error and no answer that quotes it", () =>
    Effect.gen(function* () {
      yield* withEnv(
        "OPENAI_CUSTOM_HEADERS",
        "api-key: canary/one-0123456789\nAuthorization: Bearer canary-two-0123456789"
      )
      const arrived: Array<unknown> = []
      let status = 400
      const server = yield* serve(({ headers }) => {
        arrived.push(headers["api-key"], headers.authorization)
        const quote = `bad: ${headers["api-key"]} ${encodeURIComponent(String(headers["api-key"]))} ${headers.authorization}`
        if (status === 400) return [status, { error: { message: quote, code: quote } }]
        return [status, { ...answered, choices: [{ message: { content: quote }, finish_reason: "stop" }] }]
      })
      const error = yield* Effect.flip(generate(server.url))
      status = 200
      const answer = yield* generate(server.url)
      assert.deepStrictEqual(new Set(arrived), new Set(["canary/one-0123456789", "Bearer canary-two-0123456789"]))
      assert.include(answer.text, "<redacted>")
      assert.notInclude(inspect([error, answer], { depth: 9, showHidden: true }), "canary")
    })
  )
})

describe("a wrong key", () => {
  it.scopedLive("is one, whatever the platform makes of a 401 to a body that can be read once", () =>
    Effect.gen(function* () {
      const server = yield* serve(() => [401, { error: { message: "Incorrect API key", code: "invalid_api_key" } }])
      const error = yield* Effect.flip(generate(server.url))
      assert.deepStrictEqual(
        [error.reason, error.category, error.scope, error.charge],
        ["auth", "PERMANENT", "run", "none"]
      )
      assert.strictEqual(server.seen.length, 1)
    })
  )

  it.scopedLive("that undici reports as an error is one", () =>
    Effect.gen(function* () {
      // What fetch does in some versions (nodejs/undici#4910).
      const cause = new Error("expected non-null body source")
      yield* Effect.acquireRelease(
        Effect.sync(() => vi.stubGlobal("fetch", () => Promise.reject(new TypeError("fetch failed", { cause })))),
        () => Effect.sync(() => vi.unstubAllGlobals())
      )
      const error = yield* Effect.flip(generate("http://127.0.0.1:9/v1"))
      assert.deepStrictEqual(
        [error.reason, error.category, error.scope, error.charge],
        ["auth", "PERMANENT", "run", "none"]
      )
    })
  )
})

describe("the profile", () => {
  for (const name of Profile.names) {
    const { outputLimit, standardTier }: Profile.Profile = Profile.profiles[name]
    it.scopedLive(`${name}: the output limit as ${outputLimit}, the tier as ${standardTier ?? "nothing"}`, () =>
      Effect.gen(function* () {
        const server = yield* serve()
        yield* generate(server.url, { profile: name })
        const [sent] = server.seen
        assert.strictEqual(sent?.body[outputLimit], 200)
        assert.strictEqual(sent?.body.service_tier, standardTier)
        assert.deepStrictEqual(
          Object.keys(sent?.body ?? {}).sort(),
          ["messages", "model", outputLimit, ...(standardTier === undefined ? [] : ["service_tier"])].sort()
        )
      })
    )
  }

  it.scopedLive("a tier that is asked for is sent everywhere", () =>
    Effect.gen(function* () {
      const server = yield* serve()
      for (const profile of ["openai", "compatible"] as const) {
        yield* generate(server.url, { profile }, ask({ tier: "flex" }))
      }
      assert.deepStrictEqual(
        server.seen.map(({ body }) => body.service_tier),
        ["flex", "flex"]
      )
    })
  )

  it.live("by its address: price, standard tier and output mode", () =>
    Effect.gen(function* () {
      const regional = yield* shapeOf("https://eu.api.openai.com/v1")
      assert.deepStrictEqual([regional.priceFactor, regional.standardTier], [1.1, "default"])
      const plain = yield* shapeOf("https://api.openai.com/v1")
      assert.deepStrictEqual([plain.priceFactor, plain.standardTier], [1, "default"])
      const other = yield* shapeOf("https://api.deepseek.com")
      assert.deepStrictEqual([other.standardTier, other.outputMode], [undefined, "json_object"])
    })
  )
})

describe("an answer", () => {
  it.scopedLive("that broke off says so and keeps its bill", () =>
    Effect.gen(function* () {
      const choices = [{ message: { content: '{"a":' }, finish_reason: "error" }]
      const server = yield* serve(() => [200, { ...answered, choices }])
      const answer = yield* generate(server.url)
      assert.deepStrictEqual([answer.finish, answer.usage?.outputTokens], ["error", 5])
    })
  )

  it.scopedLive("in parts is their text", () =>
    Effect.gen(function* () {
      const content = [{ type: "text", text: "a" }, { type: "other" }, { type: "text", text: "b" }]
      const server = yield* serve(() => [200, { ...answered, choices: [{ message: { content } }] }])
      const answer = yield* generate(server.url)
      assert.deepStrictEqual([answer.text, answer.finish], ["ab", "stop"])
    })
  )
})
