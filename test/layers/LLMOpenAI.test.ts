import { createServer, type IncomingMessage, type ServerResponse } from "node:http"
import { inspect } from "node:util"
import { assert, describe, it } from "@effect/vitest"
import { Cause, Config, ConfigProvider, Deferred, Effect, Exit, Fiber, Layer, Redacted, Schema } from "effect"
import * as LLMOpenAI from "../../src/layers/LLMOpenAI.ts"
import { causeChain, LLMError } from "../../src/services/Errors.ts"
import { type ChatRequest, LLM, request } from "../../src/services/LLM.ts"
import { listening } from "../support/listening.ts"
import { startFakeProvider } from "../support/startFakeProvider.ts"

const canary = "sk-canary/0123456789"
const ask = (parts: Partial<ChatRequest> = {}) =>
  request({
    model: "gpt-6-luna",
    messages: [{ role: "user", content: "vendor 42" }],
    maxOutputTokens: 200,
    format: { mode: "text" },
    ...parts
  })

const generate = (baseUrl: string, options: LLMOpenAI.Options = {}, asked = ask()) =>
  Effect.flatMap(LLM, (llm) => llm.generate(asked)).pipe(
    Effect.provide(Layer.orDie(LLMOpenAI.layerWith({ apiKey: Redacted.make(canary), baseUrl, ...options })))
  )

type Handler = (incoming: IncomingMessage, response: ServerResponse) => void

/** A server in this process that answers badly, in one way, and keeps the bodies that it was sent. */
const serve = Effect.fnUntraced(function* (handler: Handler) {
  const seen: Array<string> = []
  const server = createServer(async (incoming, response) => {
    const chunks: Array<Buffer> = []
    for await (const chunk of incoming) chunks.push(chunk)
    seen.push(Buffer.concat(chunks).toString())
    handler(incoming, response)
  })
  const url = yield* listening(server)
  return { url, seen }
})

const json = (response: ServerResponse, status: number, body: unknown, headers: Record<string, string> = {}) => {
  response.writeHead(status, { "content-type": "application/json", ...headers })
  response.end(typeof body === "string" ? body : JSON.stringify(body))
}

const completion = (parts: object = {}, choice: object = {}) => ({
  model: "gpt-6-luna-2026-10-01",
  choices: [{ message: { role: "assistant", content: "hi", refusal: null }, finish_reason: "stop", ...choice }],
  usage: { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 },
  ...parts
})

interface Bad {
  readonly expected: string
  readonly handler: Handler
  readonly options?: LLMOpenAI.Options
}

/** Expected: reason category scope charge. */
const bad: Readonly<Record<string, Bad>> = {
  "a 429": {
    expected: "rate_limited TRANSIENT row none",
    handler: (_, response) => json(response, 429, { error: { code: "rate_limit_exceeded" } }, { "retry-after": "1" })
  },
  "a 429 that means: no money": {
    expected: "quota PERMANENT run none",
    handler: (_, response) => json(response, 429, { error: { code: null, type: "insufficient_quota" } })
  },
  "a 500": { expected: "server_error TRANSIENT row uncertain", handler: (_, response) => json(response, 500, {}) },
  "a 502 with a page": {
    expected: "server_error TRANSIENT row uncertain",
    handler: (_, response) => json(response, 502, "<html>Bad gateway</html>", { "content-type": "text/html" })
  },
  "a flat error body": {
    expected: "context_length PERMANENT row none",
    handler: (_, response) => json(response, 400, { code: 400, message: "maximum context length is 10 tokens" })
  },
  "a refusal whose body never ends": {
    expected: "rate_limited TRANSIENT row none",
    options: { timeoutMs: 200 },
    handler: (_, response) => void response.writeHead(429, { "content-type": "application/json" }).write("{")
  },
  "a redirect": {
    expected: "bad_request PERMANENT run none",
    handler: (_, response) => json(response, 307, "", { location: "/v1/chat/completions" })
  },
  "a page with status 200": {
    expected: "invalid_response TRANSIENT row uncertain",
    handler: (_, response) => json(response, 200, "<html>Sign in</html>", { "content-type": "text/html" })
  },
  "JSON under another type": {
    expected: "invalid_response TRANSIENT row uncertain",
    handler: (_, response) => json(response, 200, completion(), { "content-type": "text/plain" })
  },
  "cut JSON": {
    expected: "invalid_response TRANSIENT row uncertain",
    handler: (_, response) => json(response, 200, JSON.stringify(completion()).slice(0, 60))
  },
  "an empty 200": {
    expected: "invalid_response TRANSIENT row uncertain",
    handler: (_, response) => json(response, 200, "")
  },
  "JSON that is no completion": {
    expected: "invalid_response TRANSIENT row uncertain",
    handler: (_, response) => json(response, 200, { hello: "world" })
  },
  "an error inside a 200": {
    expected: "rate_limited TRANSIENT row uncertain",
    handler: (_, response) => json(response, 200, { error: { code: 429, message: "slow" } })
  },
  "an error inside a choice": {
    expected: "server_error TRANSIENT row uncertain",
    handler: (_, response) =>
      json(response, 200, completion({}, { finish_reason: "error", error: { code: 502, message: "upstream" } }))
  },
  "a huge body": {
    expected: "invalid_response TRANSIENT row uncertain",
    options: { maxBodyBytes: 10_000 },
    handler: (_, response) => json(response, 200, completion({ padding: "x".repeat(100_000) }))
  },
  "silence before the headers": {
    expected: "timeout TRANSIENT row uncertain",
    options: { timeoutMs: 200 },
    handler: () => undefined
  },
  "a body that stalls": {
    expected: "timeout TRANSIENT row uncertain",
    options: { timeoutMs: 200 },
    handler: (_, response) => void response.writeHead(200, { "content-type": "application/json" }).write('{"choices"')
  },
  "a body that is kept alive with blank lines": {
    expected: "timeout TRANSIENT row uncertain",
    options: { timeoutMs: 300 },
    handler: (_, response) => {
      response.writeHead(200, { "content-type": "application/json" })
      const timer = setInterval(() => response.write("\n"), 50)
      response.on("close", () => clearInterval(timer))
    }
  },
  "a reset before the headers": {
    expected: "connection TRANSIENT row uncertain",
    handler: (incoming) => void incoming.socket.resetAndDestroy()
  },
  "a reset in the body": {
    expected: "connection TRANSIENT row uncertain",
    handler: (incoming, response) => {
      response.writeHead(200, { "content-type": "application/json" }).write('{"choices"')
      setTimeout(() => incoming.socket.resetAndDestroy(), 20)
    }
  }
}

describe("LLMOpenAI", () => {
  describe("one physical request per generate, and the right error, for", () => {
    for (const [name, { expected, handler, options }] of Object.entries(bad)) {
      it.scopedLive(name, () =>
        Effect.gen(function* () {
          const server = yield* serve(handler)
          const started = Date.now()
          const error = yield* Effect.flip(generate(server.url, options))
          assert.strictEqual(`${error.reason} ${error.category} ${error.scope} ${error.charge}`, expected)
          assert.strictEqual(server.seen.length, 1)
          assert.isBelow(Date.now() - started, 2000)
          assert.isFalse(/<html|[\r\n]/.test(error.message), error.message)
        })
      )
    }
  })

  it.live("a refused connection is not billed, and its cause stays readable", () =>
    Effect.gen(function* () {
      const { url } = yield* Effect.scoped(serve(() => undefined))
      const error = yield* Effect.flip(generate(url))
      assert.deepStrictEqual([error.reason, error.charge, error.status], ["connection", "none", undefined])
      assert.include(causeChain(error).join(), "ECONNREFUSED")
    })
  )

  it.scopedLive("Retry-After and the request id come with the error", () =>
    Effect.gen(function* () {
      const headers = { "retry-after-ms": "1500", "x-request-id": "req-7" }
      const server = yield* serve((_, response) => json(response, 429, {}, headers))
      const error = yield* Effect.flip(generate(server.url))
      assert.deepStrictEqual([error.retryAfterMs, error.requestId, error.status], [1500, "req-7", 429])
    })
  )

  it.scopedLive("interruption aborts the request", () =>
    Effect.gen(function* () {
      const arrived = yield* Deferred.make<void>()
      const closed = yield* Deferred.make<void>()
      const server = yield* serve((incoming) => {
        Deferred.unsafeDone(arrived, Effect.void)
        incoming.socket.on("close", () => Deferred.unsafeDone(closed, Effect.void))
      })
      const fiber = yield* Effect.fork(generate(server.url))
      yield* Deferred.await(arrived)
      const exit = yield* Fiber.interrupt(fiber)
      assert.isTrue(Exit.isFailure(exit) && Cause.isInterruptedOnly(exit.cause))
      yield* Effect.timeout(Deferred.await(closed), "2 seconds")
    })
  )

  it.scopedLive("reads the whole answer", () =>
    Effect.gen(function* () {
      const usage = {
        prompt_tokens: 100,
        completion_tokens: 50,
        total_tokens: 150,
        prompt_tokens_details: { cached_tokens: 60, cache_write_tokens: 40, audio_tokens: 0 },
        completion_tokens_details: { reasoning_tokens: 20 }
      }
      const server = yield* serve((_, response) =>
        json(response, 200, completion({ usage }), { "x-request-id": "req-1" })
      )
      const answer = yield* generate(server.url)
      assert.deepStrictEqual(answer, {
        text: "hi",
        model: "gpt-6-luna-2026-10-01",
        finish: "stop",
        refusal: undefined,
        requestId: "req-1",
        cost: undefined,
        tier: undefined,
        limits: undefined,
        usage: { inputTokens: 100, cachedTokens: 60, cacheWriteTokens: 40, outputTokens: 50, reasoningTokens: 20 }
      })
      assert.isTrue(Object.isFrozen(answer) && Object.isFrozen(answer.usage))
    })
  )

  const choices: ReadonlyArray<
    readonly [name: string, parts: object, choice: object, expected: ReadonlyArray<unknown>]
  > = [
    ["length", {}, { finish_reason: "length" }, ["hi", "length", undefined]],
    ["no finish reason", {}, { finish_reason: undefined }, ["hi", "stop", undefined]],
    ["null as finish reason", {}, { finish_reason: null }, ["hi", "unknown", undefined]],
    ["its own word", {}, { finish_reason: "abort" }, ["hi", "abort", undefined]],
    ["a refusal", {}, { message: { content: null, refusal: "No." } }, ["", "stop", "No."]],
    [
      "a filter",
      {},
      { message: { content: null }, finish_reason: "content_filter" },
      ["", "content_filter", undefined]
    ],
    ["no choice", { choices: [] }, {}, ["", "unknown", undefined]]
  ]
  for (const [name, parts, choice, expected] of choices) {
    it.scopedLive(`a billed answer is not an error: ${name}`, () =>
      Effect.gen(function* () {
        const server = yield* serve((_, response) => json(response, 200, completion(parts, choice)))
        const answer = yield* generate(server.url)
        assert.deepStrictEqual([answer.text, answer.finish, answer.refusal], expected)
        assert.strictEqual(answer.usage?.inputTokens, 10)
      })
    )
  }

  it.scopedLive("usage that is missing or does not add up is undefined, never a number", () =>
    Effect.gen(function* () {
      const good = { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 }
      const nonsense: ReadonlyArray<unknown> = [
        null,
        {},
        { ...good, prompt_tokens: -1 },
        { ...good, completion_tokens: 5.5 },
        { ...good, prompt_tokens: "10" },
        { ...good, total_tokens: 16 },
        { prompt_tokens: 0, completion_tokens: 0, total_tokens: 0 },
        { ...good, prompt_tokens_details: { cached_tokens: 8, cache_write_tokens: 3 } },
        { ...good, completion_tokens_details: { reasoning_tokens: 6 } }
      ]
      let next = 0
      const server = yield* serve((_, response) => json(response, 200, completion({ usage: nonsense[next++] })))
      for (const usage of nonsense) {
        assert.isUndefined((yield* generate(server.url)).usage, JSON.stringify(usage))
      }
    })
  )

  it.scopedLive("sends what is asked for and nothing else", () =>
    Effect.gen(function* () {
      const server = yield* serve((_, response) => json(response, 200, completion()))
      const strict = {
        type: "object",
        properties: { risk: { type: "string", enum: ["low"] } },
        required: ["risk"],
        additionalProperties: false
      }
      const loose = { ...strict, required: [] }
      const json_schema = (schema: object, strict: boolean) =>
        ask({ format: { mode: "json_schema", name: "a b", schema, strict } })
      yield* generate(server.url)
      yield* generate(server.url, {}, ask({ temperature: 0, effort: "low", format: { mode: "json_object" } }))
      yield* generate(server.url, {}, json_schema(strict, true))
      yield* generate(server.url, {}, json_schema(loose, false))
      const basic = {
        model: "gpt-6-luna",
        messages: [{ role: "user", content: "vendor 42" }],
        max_completion_tokens: 200
      }
      const response_format = (schema: object, strict: boolean) => ({
        type: "json_schema",
        json_schema: { name: "a_b", schema, strict }
      })
      assert.deepStrictEqual(
        server.seen.map((body) => JSON.parse(body)),
        [
          basic,
          { ...basic, temperature: 0, reasoning_effort: "low", response_format: { type: "json_object" } },
          { ...basic, response_format: response_format(strict, true) },
          { ...basic, response_format: response_format(loose, false) }
        ]
      )
    })
  )

  it.scopedLive("the key is in no error, whatever the server quotes back", () =>
    Effect.gen(function* () {
      const quote = `Incorrect API key provided: ${canary}. ${"x".repeat(250)} ${canary}`
      const text = JSON.stringify({ error: { message: quote, code: canary, type: canary } })
      const quotes: ReadonlyArray<Handler> = [
        (_, response) => json(response, 401, text, { "x-request-id": canary }),
        (_, response) => json(response, 401, text.replaceAll("/", "\\/")),
        (_, response) => json(response, 200, text),
        (_, response) => json(response, 302, "", { location: `http://127.0.0.1/${canary}` }),
        (incoming) => void incoming.socket.end(`HTTP/1.1 ${canary}\r\n${canary}`),
        (incoming) => void incoming.socket.resetAndDestroy()
      ]
      for (const handler of quotes) {
        const server = yield* serve(handler)
        const exit = yield* Effect.exit(Effect.withSpan(generate(server.url), "test"))
        const error = yield* Effect.flip(exit)
        const shown = [
          inspect(exit, { depth: 20, showHidden: true }),
          JSON.stringify(error),
          JSON.stringify(yield* Schema.encode(LLMError)(error)),
          Exit.isFailure(exit) ? Cause.pretty(exit.cause, { renderErrorCause: true }) : "",
          ...causeChain(error)
        ].join()
        assert.notInclude(shown, "canary")
      }
    })
  )

  it.live("a missing or unusable key or URL is a ConfigError that does not quote it", () =>
    Effect.gen(function* () {
      const build = (layer: Layer.Layer<LLM, unknown>, env: Record<string, string> = {}) =>
        Effect.flip(Effect.scoped(Layer.build(layer))).pipe(
          Effect.withConfigProvider(ConfigProvider.fromMap(new Map(Object.entries(env)))),
          Effect.map(String)
        )
      assert.include(yield* build(LLMOpenAI.layer), "set OPENAI_API_KEY")
      assert.include(yield* build(LLMOpenAI.layer, { OPENAI_API_KEY: " " }), "set OPENAI_API_KEY")
      const config = LLMOpenAI.layerConfig({ apiKey: Config.redacted("MY_KEY") })
      assert.include(yield* build(config), "MY_KEY")
      for (const key of [`${canary}\nx`, `${canary} x`, `${canary}é`]) {
        const message = yield* build(LLMOpenAI.layer, { OPENAI_API_KEY: key })
        assert.include(message, "visible ASCII")
        assert.notInclude(message, "canary")
      }
      for (const url of ["nowhere", "ftp://x", `https://user:${canary}@host/v1`]) {
        const message = yield* build(LLMOpenAI.layer, { OPENAI_API_KEY: "k", OPENAI_BASE_URL: url })
        assert.include(message, "The base URL")
        assert.notInclude(message, "canary")
      }
    })
  )

  it.live("reads key and URL from the environment; the name is the host unless given", () =>
    Effect.gen(function* () {
      const name = (layer: Layer.Layer<LLM, unknown>, env: Record<string, string>) =>
        Effect.map(LLM, (llm) => llm.provider).pipe(
          Effect.provide(layer),
          Effect.withConfigProvider(ConfigProvider.fromMap(new Map(Object.entries(env))))
        )
      assert.strictEqual(yield* name(LLMOpenAI.layer, { OPENAI_API_KEY: ` ${canary}\n` }), "api.openai.com")
      const env = { OPENAI_API_KEY: "k", OPENAI_BASE_URL: "http://127.0.0.1:9/v1" }
      assert.strictEqual(yield* name(LLMOpenAI.layer, env), "127.0.0.1:9")
      assert.strictEqual(yield* name(LLMOpenAI.layerWith({ name: "own" }), env), "own")
      const config = LLMOpenAI.layerConfig({ apiKey: Config.redacted("OPENAI_API_KEY"), name: Config.succeed("c") })
      assert.strictEqual(yield* name(config, env), "c")
    })
  )

  describe("against the fake provider, a process with its own bill", () => {
    const provider = (flags: Parameters<typeof startFakeProvider>[0]) =>
      Effect.acquireRelease(
        Effect.promise(() => startFakeProvider(flags)),
        (started) => Effect.promise(started.stop)
      )

    it.scopedLive(
      "every call is one request, every bill is seen or uncertain, and the sums agree",
      () =>
        Effect.gen(function* () {
          const fake = yield* provider({ latency: 5, rate429: 0.2, billed500: 0.2, billedReset: 0.2, seed: 3 })
          const llm = yield* Effect.provide(LLM, LLMOpenAI.layerWith({ apiKey: Redacted.make("k"), baseUrl: fake.url }))
          const asks = Array.from({ length: 60 }, (_, i) =>
            ask({ messages: [{ role: "user", content: `vendor ${i}` }] })
          )
          const ends = yield* Effect.forEach(asks, (asked) => Effect.either(llm.generate(asked)), { concurrency: 4 })
          const bill = yield* Effect.promise(fake.bill)
          let seenNano = 0
          const charges = { none: 0, known: 0, uncertain: 0 }
          for (const end of ends) {
            if (end._tag === "Left") charges[end.left.charge]++
            else seenNano += (end.right.usage?.inputTokens ?? 0) * 150 + (end.right.usage?.outputTokens ?? 0) * 600
          }
          assert.strictEqual(bill.requests, 60)
          assert.strictEqual(charges.none, bill.refused429)
          assert.strictEqual(charges.uncertain, bill.billed500 + bill.billedReset)
          assert.strictEqual(Object.keys(bill.byHash).length, bill.answered)
          assert.isAtMost(seenNano, bill.billedNano)
          assert.isTrue(bill.refused429 > 0 && bill.billed500 > 0 && bill.billedReset > 0 && bill.answered > 0)
          assert.isAtMost(bill.maxInFlight, 4)
          assert.strictEqual(bill.inFlight, 0)
        }),
      30_000
    )

    it.scopedLive(
      "answers by the request's schema, and bills a client that is gone",
      () =>
        Effect.gen(function* () {
          const fake = yield* provider({ latency: 100 })
          const schema = {
            type: "object",
            properties: { id: { type: "integer" }, risk: { enum: ["low", "high"] }, summary: { type: "string" } }
          }
          const asked = ask({ format: { mode: "json_schema", name: "out", schema, strict: true } })
          const answer = yield* generate(fake.url, {}, asked)
          assert.deepStrictEqual(JSON.parse(answer.text), { id: 42, risk: "low", summary: "echo: vendor 42" })
          const before = yield* Effect.promise(fake.bill)
          const error = yield* Effect.flip(generate(fake.url, { timeoutMs: 50 }, asked))
          const after = yield* Effect.promise(fake.bill)
          assert.deepStrictEqual([error.reason, error.charge], ["timeout", "uncertain"])
          assert.strictEqual(after.billedNano, before.billedNano * 2)
        }),
      30_000
    )
  })
})
