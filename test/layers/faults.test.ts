import { inspect } from "node:util"
import { afterAll, assert, describe, it } from "@effect/vitest"
import { Cause, Effect, Exit, Fiber, Layer, Option, Redacted } from "effect"
import * as LLMOpenAI from "../../src/layers/LLMOpenAI.ts"
import type { LLMError } from "../../src/services/Errors.ts"
import { type ChatAnswer, LLM, request } from "../../src/services/LLM.ts"
import {
  type AnswerFault,
  type Counts,
  type Fault,
  startFaultServer,
  type WireFault
} from "../support/startFaultServer.ts"

const server = await startFaultServer()
afterAll(server.stop)

const asked = request({
  model: "gpt-6-luna",
  messages: [{ role: "user", content: "vendor 42" }],
  maxOutputTokens: 200,
  format: { mode: "text" }
})

const generate = (baseUrl: string, options: LLMOpenAI.Options = {}) =>
  Effect.flatMap(LLM, (llm) => llm.generate(asked)).pipe(
    Effect.provide(Layer.orDie(LLMOpenAI.layerWith({ apiKey: Redacted.make("sk-test"), baseUrl, ...options })))
  )

/** Silence is what these are about; any other call must end by itself, so a deadline cannot hide that it does not. */
const isSilent = (fault: string) => /^(stall|drip|length-too-long-kept-open)/.test(fault)
const servers = ["azure", "deepseek", "gemini", "groq", "ollama", "openrouter", "vllm"] as const
const optionsFor = (fault: string): LLMOpenAI.Options => ({
  timeoutMs: isSilent(fault) ? 500 : 50_000,
  profile: servers.find((name) => fault.includes(name))
})

/** As `reason category scope charge`, or as `answer "text" finish input+output`. */
const shown = (exit: Exit.Exit<ChatAnswer, LLMError>): string =>
  Exit.match(exit, {
    onSuccess: ({ finish, text, usage }) => {
      const tokens = usage === undefined ? "no-usage" : `${usage.inputTokens}+${usage.outputTokens}`
      return `answer ${JSON.stringify(text)} ${finish} ${tokens}`
    },
    onFailure: (cause) =>
      Option.match(Cause.failureOption(cause), {
        onSome: ({ category, charge, reason, scope }) => `${reason} ${category} ${scope} ${charge}`,
        onNone: () => Cause.pretty(cause)
      })
  })

/** A `*` in what is expected stands for any word: there the providers leave it open. */
const masked = (actual: string, expected: string): string => {
  const words = expected.split(" ")
  return actual
    .split(" ")
    .map((word, at) => (words[at] === "*" ? "*" : word))
    .join(" ")
}

const counts = Effect.promise(server.counts)
const requestsOf = (counts: Counts, fault: string): number => counts.requests[fault] ?? 0
const unfinishedOf = (counts: Counts, fault: string): number => counts.unfinished[fault] ?? 0

/** Asks again until it is so; what it then is. */
const eventually = (isSo: (counts: Counts) => boolean) =>
  counts.pipe(Effect.delay("20 millis"), Effect.repeat({ until: isSo }), Effect.timeout("30 seconds"))

/** What keeps this process busy and who listens to it, by kind, once the server has no connection left. */
const settled = Effect.gen(function* () {
  yield* eventually(({ open }) => open === 0)
  yield* Effect.sleep("100 millis")
  const kinds = [
    ...process.getActiveResourcesInfo(),
    ...process
      .eventNames()
      .flatMap((name) => Array.from({ length: process.listenerCount(name) }, () => `listener: ${String(name)}`))
  ]
  return [...new Set(kinds)].map((kind) => [kind, kinds.filter((other) => other === kind).length] as const)
})

const sum = (counts: Counts): number => Object.values(counts.requests).reduce((total, count) => total + count, 0)

const timedOut = "timeout TRANSIENT row uncertain"
const broken = "connection TRANSIENT row uncertain"
const unreadable = "invalid_response TRANSIENT row uncertain"
const wrongUrl = "bad_request PERMANENT run none"
const serverError = "server_error TRANSIENT row uncertain"
const overloaded = "overloaded TRANSIENT row uncertain"
const rateLimited = "rate_limited TRANSIENT row none"
const badRequest = "bad_request PERMANENT row none"
const badJob = "bad_request PERMANENT run none"
const tooLong = "context_length PERMANENT row none"
const filtered = "content_filter PERMANENT row none"
const noMoney = "quota PERMANENT run none"
const noAccess = "auth PERMANENT run none"
const noModel = "model_not_found PERMANENT run none"
const good = 'answer "hi" stop 10+5'
const unmeasured = 'answer "hi" stop no-usage'

const wire: Readonly<Record<WireFault, string>> = {
  "stall-before-headers": timedOut,
  "stall-in-status-line": timedOut,
  "stall-in-headers": timedOut,
  "stall-after-headers": timedOut,
  "stall-in-body": timedOut,
  "stall-in-chunked-body": timedOut,
  // A refusal is known by its status, and a refused request is not billed.
  "stall-in-429-body": rateLimited,

  "reset-before-headers": broken,
  "reset-in-status-line": broken,
  "reset-in-headers": broken,
  "reset-after-headers": broken,
  "reset-in-body": broken,
  "reset-in-chunked-body": broken,

  "half-close-before-headers": broken,
  "half-close-in-headers": broken,
  "half-close-after-headers": broken,
  "half-close-in-body": broken,
  "half-close-in-chunked-body": broken,

  "drip-header-bytes": timedOut,
  "drip-early-hints": timedOut,
  "drip-blank-lines": timedOut,
  "drip-comments": timedOut,
  "drip-then-good": good,

  "length-too-long": broken,
  "length-too-long-kept-open": timedOut,
  "length-too-short": unreadable,
  "second-answer": good,
  "not-http": unreadable,
  "chunk-size-garbage": unreadable,
  "headers-huge": unreadable,

  "body-100MB": unreadable,
  "body-100MB-502": serverError,
  "gzip-bomb": unreadable
}

const answers: Readonly<Record<AnswerFault, string>> = {
  good,
  "good-gzip": good,
  "good-after-blank-lines": good,
  "good-without-type": good,
  "good-with-null-error": good,

  "html-200": unreadable,
  "type-text": unreadable,
  "type-octets": unreadable,
  "event-stream": unreadable,
  "empty-200": unreadable,
  "no-content-204": unreadable,
  "json-cut": unreadable,
  "json-null": unreadable,
  "json-array": unreadable,
  "json-without-choices": unreadable,
  "json-twice": unreadable,
  "utf8-invalid-in-text": unreadable,
  "utf8-invalid-everywhere": unreadable,
  "gzip-that-is-none": unreadable,
  "gzip-cut": unreadable,

  // By the code, but a model may have run.
  "200-error-429": "rate_limited TRANSIENT row uncertain",
  "200-error-502": serverError,
  "200-error-503-as-text": overloaded,
  "200-error-408": timedOut,
  "200-error-401": "auth PERMANENT run uncertain",
  "200-error-402": "quota PERMANENT run uncertain",
  "200-error-typed": overloaded,
  "200-error-quota": "quota PERMANENT run uncertain",
  "200-error-context": "context_length PERMANENT row uncertain",
  "200-error-text": "unknown UNKNOWN row uncertain",
  "200-error-deep": "unknown UNKNOWN row uncertain",
  "200-choice-error-502": serverError,
  "200-choice-error-429": "rate_limited TRANSIENT row uncertain",
  "200-choice-error-word": serverError,

  "choices-empty": 'answer "" unknown 10+5',
  "content-null": 'answer "" stop 10+5',
  "finish-length": 'answer "hi" length 10+5',
  "finish-filter": 'answer "" content_filter 10+5',
  "finish-null": 'answer "hi" unknown 10+5',

  "usage-missing": unmeasured,
  "usage-null": unmeasured,
  "usage-text": unmeasured,
  "usage-zero": unmeasured,
  "usage-negative": unmeasured,
  "usage-negative-output": unmeasured,
  "usage-1e308": unmeasured,
  "usage-infinite": unmeasured,
  "usage-fraction": unmeasured,
  "usage-numbers-as-text": unmeasured,
  "usage-wrong-sum": unmeasured,
  "usage-cached-above-prompt": unmeasured,
  "usage-cached-negative": unmeasured,
  "usage-reasoning-above-output": unmeasured,

  "redirect-301": wrongUrl,
  "redirect-302": wrongUrl,
  "redirect-303": wrongUrl,
  "redirect-307": wrongUrl,
  "redirect-308": wrongUrl,

  "400-openai": badRequest,
  "400-openai-schema": badJob,
  "400-openai-max-tokens": badJob,
  "400-openai-unsupported": badJob,
  "400-openai-temperature": badJob,
  "400-openai-context": tooLong,
  "400-openai-billing": noMoney,
  // Azure bills a filtered prompt.
  "400-azure-filter": "content_filter PERMANENT row uncertain",
  "400-vllm-flat": tooLong,
  "400-vllm": tooLong,
  "400-llama-context": tooLong,
  "400-gemini-array": badJob,
  "400-groq-json": unreadable,
  "400-deep": badRequest,

  "401-openai": noAccess,
  "401-azure-flat": noAccess,
  "402-deepseek": noMoney,
  "402-openrouter": noMoney,
  "402-openrouter-in-flight": rateLimited,
  "402-openrouter-weight": "* PERMANENT * none",
  "403-openai-region": noAccess,
  "403-openrouter-moderation": filtered,
  "403-openrouter-guardrail": "* PERMANENT row none",
  "403-openrouter-budget": "* PERMANENT run none",
  "403-azure-quota": "* PERMANENT run none",
  "404-openai": noModel,
  "404-azure": noModel,
  "404-ollama": noModel,
  "404-vllm-flat": noModel,
  "404-gemini-array": noModel,
  "404-fastapi": noModel,
  "413-groq": tooLong,
  "422-fastapi": badRequest,
  "424-groq": serverError,
  "429-openai": rateLimited,
  "429-openai-too-large": tooLong,
  "429-openai-quota": noMoney,
  "429-openai-quota-by-type": noMoney,
  "429-openai-spend-limit": noMoney,
  "429-azure": rateLimited,
  "429-gemini-array": rateLimited,
  "429-flex": rateLimited,
  "498-groq": rateLimited,

  "500-openai": serverError,
  "500-vllm-flat": serverError,
  "500-llama-context": "context_length PERMANENT row uncertain",
  "500-ollama-memory": "* PERMANENT run uncertain",
  "502-openrouter": serverError,
  "503-openai": overloaded,
  "503-llama-loading": overloaded,
  "503-openrouter": overloaded,
  "504-openai": timedOut,
  "529-anthropic": "overloaded TRANSIENT row none"
}

const forStatuses = (expected: string, statuses: ReadonlyArray<number>): ReadonlyArray<readonly [Fault, string]> =>
  statuses.map((status) => [`status-${status}`, expected])
const forPages = (expected: string, statuses: ReadonlyArray<number>): ReadonlyArray<readonly [Fault, string]> =>
  statuses.map((status) => [`page-${status}`, expected])
const forCodes = (expected: string, status: number, codes: string): ReadonlyArray<readonly [Fault, string]> =>
  codes.split(" ").map((code) => [`code-${status}-${code}`, expected])

const generic: ReadonlyArray<readonly [Fault, string]> = [
  ...forStatuses(badRequest, [400, 422]),
  ...forStatuses(noAccess, [401, 403]),
  ...forStatuses(noMoney, [402]),
  ...forStatuses(noModel, [404]),
  ...forStatuses(wrongUrl, [405, 406, 410, 411, 414, 415, 421, 426, 428, 431, 451, 501, 505]),
  ...forStatuses(tooLong, [413]),
  ...forStatuses(rateLimited, [429, 498]),
  ...forStatuses(timedOut, [408, 504]),
  ...forStatuses(serverError, [409, 423, 424, 425, 499, 500, 502, 520, 521, 522, 523, 524, 525, 526, 530]),
  ...forStatuses(overloaded, [503]),
  ...forStatuses("overloaded TRANSIENT row none", [529]),
  ...forStatuses(unreadable, [205, 206]),

  ...forPages(noAccess, [401]),
  // A firewall that dislikes what the row says.
  ...forPages(badRequest, [403]),
  ...forPages(noModel, [404]),
  ...forPages(tooLong, [413]),
  ...forPages(rateLimited, [429]),
  ...forPages(serverError, [500, 502, 520, 521, 522, 523, 524, 525, 526, 530]),
  ...forPages(overloaded, [503]),
  ...forPages(timedOut, [504]),

  ...forCodes(noMoney, 429, "credit_balance_exhausted organization_spend_limit_exceeded"),
  ...forCodes(noMoney, 429, "organization_usage_limit_exceeded quota_exceeded billing_not_active"),
  ...forCodes("* PERMANENT run none", 401, "account_deactivated access_terminated"),
  ...forCodes(noAccess, 401, "invalid_api_key authentication_error Unauthorized invalid_organization"),
  ...forCodes(noModel, 404, "model_not_found not_found_error DeploymentNotFound"),
  ...forCodes(tooLong, 400, "context_length_exceeded exceed_context_size_error string_above_max_length"),
  ...forCodes(tooLong, 400, "string_too_long max_tokens_exceeded"),
  ...forCodes(filtered, 400, "content_policy_violation moderation_blocked invalid_prompt bio_policy"),
  ...forCodes(filtered, 400, "image_content_policy_violation"),
  ...forCodes(filtered, 403, "content_policy_violation moderation_blocked"),
  ...forCodes(badJob, 400, "unsupported_parameter unsupported_value invalid_json_schema"),
  ...forCodes(unreadable, 400, "json_validate_failed"),
  ...forCodes(rateLimited, 429, "rate_limit_exceeded slow_down resource_unavailable"),
  // Where the status says nothing, the code stands alone.
  ...forCodes("rate_limited TRANSIENT row uncertain", 200, "rate_limit_exceeded slow_down"),
  ...forCodes(serverError, 200, "server_error api_error provider_unavailable"),
  ...forCodes(overloaded, 200, "overloaded_error server_is_overloaded provider_overloaded"),
  ...forCodes(timedOut, 200, "timeout vector_store_timeout"),
  ...forCodes("overloaded TRANSIENT row uncertain", 500, "overloaded_error server_is_overloaded provider_overloaded")
]

const table: ReadonlyArray<readonly [fault: string, url: string, expected: string]> = [
  ...Object.entries(wire),
  ...Object.entries(answers),
  ...generic
].map(([fault, expected]) => [fault, `${server.origin}/${fault}/v1`, expected])

describe("faults", () => {
  describe("one request, and what it means, for", () => {
    for (const [fault, url, expected] of table) {
      it.live(`${fault}: ${expected}`, () =>
        Effect.gen(function* () {
          const before = yield* counts
          const exit = yield* Effect.exit(generate(url, optionsFor(fault)))
          const after = yield* counts
          assert.strictEqual(masked(shown(exit), expected), expected, inspect(exit, { depth: 6 }))
          assert.strictEqual(requestsOf(after, fault) - requestsOf(before, fault), 1)
          assert.strictEqual(requestsOf(after, "redirect-target"), 0)
          const message = Exit.isFailure(exit) ? Cause.pretty(exit.cause) : ""
          assert.notInclude(message, "<html")
        })
      )
    }
  })

  const waits: ReadonlyArray<readonly [Fault, number]> = [
    ["402-openrouter-in-flight", 3000],
    ["429-openai", 19_500],
    ["429-azure", 4200]
  ]
  for (const [fault, expected] of waits) {
    it.live(`${fault} says how long to wait`, () =>
      Effect.gen(function* () {
        const error = yield* Effect.flip(generate(server.url(fault)))
        assert.strictEqual(error.retryAfterMs, expected)
      })
    )
  }

  it.live("what is left over from one answer is never the answer to the next request", () =>
    Effect.gen(function* () {
      for (let at = 0; at < 5; at++) {
        yield* Effect.exit(generate(server.url("length-too-short")))
        yield* Effect.exit(generate(server.url("second-answer")))
        const exit = yield* Effect.exit(generate(server.url("status-429")))
        assert.strictEqual(shown(exit), rateLimited)
      }
    })
  )

  it.live("a body that is too large is not read to its end", () =>
    Effect.gen(function* () {
      for (const fault of ["body-100MB", "body-100MB-502"] as const) {
        const before = yield* counts
        yield* Effect.exit(generate(server.url(fault)))
        yield* eventually((after) => unfinishedOf(after, fault) > unfinishedOf(before, fault))
      }
    })
  )

  const unsendable = {
    "a port that fetch refuses": ["http://127.0.0.1:6000/v1", "connection PERMANENT run none"],
    "https to a server without it": [server.url("good").replace("http:", "https:"), "connection PERMANENT run none"]
  } as const
  for (const [name, [url, expected]] of Object.entries(unsendable)) {
    it.live(`never sent, so never billed: ${name}`, () =>
      Effect.gen(function* () {
        const before = yield* counts
        const exit = yield* Effect.exit(generate(url))
        assert.strictEqual(shown(exit), expected, inspect(exit, { depth: 6 }))
        assert.deepStrictEqual((yield* counts).requests, before.requests)
      })
    )
  }

  const interruptible = [
    "stall-before-headers",
    "stall-in-headers",
    "stall-in-body",
    "stall-in-429-body",
    "drip-blank-lines"
  ] as const
  for (const fault of interruptible) {
    it.live(`an interruption closes the socket and is no error: ${fault}`, () =>
      Effect.gen(function* () {
        const before = yield* counts
        const fiber = yield* Effect.fork(generate(server.url(fault), { timeoutMs: 50_000 }))
        yield* eventually((now) => requestsOf(now, fault) > requestsOf(before, fault))
        // Until what the server wrote is here.
        yield* Effect.sleep("50 millis")
        assert.strictEqual(unfinishedOf(yield* counts, fault), unfinishedOf(before, fault))
        const exit = yield* Fiber.interrupt(fiber)
        assert.isTrue(Exit.isFailure(exit) && Cause.isInterruptedOnly(exit.cause), shown(exit))
        yield* eventually((after) => unfinishedOf(after, fault) > unfinishedOf(before, fault))
        assert.strictEqual(requestsOf(yield* counts, fault) - requestsOf(before, fault), 1)
      })
    )
  }

  it.scopedLive(
    "1,000 calls leave no socket, timer or listener behind",
    () =>
      Effect.gen(function* () {
        const warnings: Array<string> = []
        const note = (warning: Error) => void warnings.push(warning.name)
        process.on("warning", note)
        yield* Effect.addFinalizer(() => Effect.sync(() => process.off("warning", note)))

        const calls = yield* Effect.forEach(table, ([fault, baseUrl]) => {
          const options = { apiKey: Redacted.make("sk-test"), baseUrl, maxBodyBytes: 64 * 1024, ...optionsFor(fault) }
          return Effect.map(LLM, (llm) => Effect.exit(llm.generate(asked))).pipe(
            Effect.provide(LLMOpenAI.layerWith(options))
          )
        })
        const [well] = calls.filter((_, at) => table[at]?.[0] === "good")
        assert.isDefined(well)
        const mixed = Array.from({ length: 500 }, (_, at) => [well, calls[at % calls.length] ?? well]).flat()
        const concurrency = { concurrency: 16, discard: true } as const

        // The first calls also make what stays for good.
        yield* Effect.all(mixed.slice(0, 100), concurrency)
        const before = new Map(yield* settled)
        const sent = sum(yield* counts)
        yield* Effect.all(mixed, concurrency)
        const received = sum(yield* counts) - sent
        yield* Effect.all(
          calls.slice(0, 100).map((call) => Effect.timeoutOption(call, "20 millis")),
          concurrency
        )

        const more = settled.pipe(
          Effect.map((now) => now.filter(([kind, count]) => count > (before.get(kind) ?? 0))),
          Effect.repeat({ until: (more) => more.length === 0, times: 50 })
        )
        assert.deepStrictEqual(yield* more, [])
        assert.strictEqual(received, 1000)
        assert.notInclude(warnings, "MaxListenersExceededWarning")
      }),
    120_000
  )
})
