import { assert, describe, it } from "@effect/vitest"
import { Schema } from "effect"
import { classify, clean, type Input } from "../../src/services/Classify.ts"
import { LLMError } from "../../src/services/Errors.ts"
import { profiles } from "../../src/services/Profile.ts"

type Row = readonly [name: string, input: Input, expected: string]

const error = (fields: object) => ({ error: fields })

/** Expected: reason category scope charge. */
const rows: ReadonlyArray<Row> = [
  ["429", { status: 429 }, "rate_limited TRANSIENT row none"],
  ["429 by code", { status: 429, code: "rate_limit_exceeded" }, "rate_limited TRANSIENT row none"],
  ["429 insufficient_quota", { status: 429, code: "insufficient_quota" }, "quota PERMANENT run none"],
  [
    "429 quota, type only",
    { status: 429, body: error({ code: null, type: "insufficient_quota" }) },
    "quota PERMANENT run none"
  ],
  ["429 spend limit", { status: 429, code: "project_spend_limit_exceeded" }, "quota PERMANENT run none"],
  [
    "429 one request above the limit",
    { status: 429, code: "rate_limit_exceeded", message: "Request too large for gpt-4 on TPM" },
    "context_length PERMANENT row none"
  ],
  ["401", { status: 401 }, "auth PERMANENT run none"],
  ["403", { status: 403 }, "auth PERMANENT run none"],
  ["402", { status: 402 }, "quota PERMANENT run none"],
  ["404 model", { status: 404, code: "model_not_found" }, "model_not_found PERMANENT run none"],
  ["404 bare", { status: 404 }, "model_not_found PERMANENT run none"],
  ["405", { status: 405 }, "bad_request PERMANENT run none"],
  ["413", { status: 413 }, "context_length PERMANENT row none"],
  ["400", { status: 400, type: "invalid_request_error" }, "bad_request PERMANENT row none"],
  ["422", { status: 422, body: { detail: [] } }, "bad_request PERMANENT row none"],
  ["400 context", { status: 400, code: "context_length_exceeded" }, "context_length PERMANENT row none"],
  [
    "400 context by its words",
    { status: 400, message: "This model's maximum context length is 8192 tokens" },
    "context_length PERMANENT row none"
  ],
  [
    "500 context (llama.cpp)",
    { status: 500, message: "the request exceeds the available context size" },
    "context_length PERMANENT row uncertain"
  ],
  [
    "400 content filter (Azure bills it)",
    { status: 400, code: "content_filter" },
    "content_filter PERMANENT row uncertain"
  ],
  ["400 policy", { status: 400, code: "content_policy_violation" }, "content_filter PERMANENT row none"],
  [
    "400 billing",
    { status: 400, code: "billing_hard_limit_reached", type: "invalid_request_error" },
    "quota PERMANENT run none"
  ],
  ["400 unsupported parameter", { status: 400, code: "unsupported_parameter" }, "bad_request PERMANENT run none"],
  [
    "400 json_validate_failed",
    { status: 400, code: "json_validate_failed" },
    "invalid_response TRANSIENT row uncertain"
  ],
  ["408", { status: 408 }, "timeout TRANSIENT row uncertain"],
  ["409", { status: 409 }, "server_error TRANSIENT row uncertain"],
  ["500", { status: 500, code: "server_error" }, "server_error TRANSIENT row uncertain"],
  ["500 with a quota code", { status: 500, code: "insufficient_quota" }, "quota PERMANENT run uncertain"],
  ["502", { status: 502 }, "server_error TRANSIENT row uncertain"],
  ["503", { status: 503 }, "overloaded TRANSIENT row uncertain"],
  ["504", { status: 504 }, "timeout TRANSIENT row uncertain"],
  ["520", { status: 520 }, "server_error TRANSIENT row uncertain"],
  ["529", { status: 529, code: "overloaded_error" }, "overloaded TRANSIENT row none"],
  ["501", { status: 501 }, "bad_request PERMANENT run none"],
  ["307", { status: 307 }, "bad_request PERMANENT run none"],
  ["200, error by number", { status: 200, body: error({ code: 429 }) }, "rate_limited TRANSIENT row uncertain"],
  [
    "200, error by number as text",
    { status: 200, body: error({ code: "502" }) },
    "server_error TRANSIENT row uncertain"
  ],
  [
    "200, error by word",
    { status: 200, body: error({ code: "rate_limit_exceeded" }) },
    "rate_limited TRANSIENT row uncertain"
  ],
  ["200, quota", { status: 200, body: error({ code: "insufficient_quota" }) }, "quota PERMANENT run uncertain"],
  ["200, error unknown", { status: 200, body: error({ message: "oh" }) }, "unknown UNKNOWN row uncertain"],
  [
    "metadata",
    { status: 200, body: error({ metadata: { error_type: "provider_overloaded" } }) },
    "overloaded TRANSIENT row uncertain"
  ],
  [
    "array body (Gemini)",
    { status: 429, body: [error({ code: 429, status: "RESOURCE_EXHAUSTED" })] },
    "rate_limited TRANSIENT row none"
  ],
  [
    "flat body (vLLM)",
    { status: 404, body: { code: 404, type: "NotFoundError", message: "no" } },
    "model_not_found PERMANENT run none"
  ],
  ["ECONNREFUSED", { networkCode: "ECONNREFUSED" }, "connection TRANSIENT row none"],
  ["EAI_AGAIN", { networkCode: "EAI_AGAIN" }, "connection TRANSIENT row none"],
  ["connect timeout", { networkCode: "UND_ERR_CONNECT_TIMEOUT" }, "connection TRANSIENT row none"],
  ["ENOTFOUND", { networkCode: "ENOTFOUND" }, "connection UNKNOWN row none"],
  ["TLS", { networkCode: "CERT_HAS_EXPIRED" }, "connection PERMANENT run none"],
  ["TLS, another name", { networkCode: "HOSTNAME_MISMATCH" }, "connection PERMANENT run none"],
  ["TLS, no issuer", { networkCode: "UNABLE_TO_GET_ISSUER_CERT" }, "connection PERMANENT run none"],
  ["reset", { networkCode: "ECONNRESET" }, "connection TRANSIENT row uncertain"],
  ["socket closed in the body", { status: 200, networkCode: "UND_ERR_SOCKET" }, "connection TRANSIENT row uncertain"],
  ["headers timeout", { networkCode: "UND_ERR_HEADERS_TIMEOUT" }, "timeout TRANSIENT row uncertain"],
  ["deadline", { status: 200, networkCode: "DEADLINE" }, "timeout TRANSIENT row uncertain"],
  ["cut JSON", { status: 200, networkCode: "INVALID_BODY" }, "invalid_response TRANSIENT row uncertain"],
  ["too large", { status: 200, networkCode: "BODY_TOO_LARGE" }, "invalid_response TRANSIENT row uncertain"],
  ["TLS: not yet valid", { networkCode: "CERT_NOT_YET_VALID" }, "connection PERMANENT run none"],
  ["TLS: refused", { networkCode: "ERR_SSL_SSLV3_ALERT_HANDSHAKE_FAILURE" }, "connection PERMANENT run none"],
  ["TLS: version", { networkCode: "ERR_SSL_TLSV1_ALERT_PROTOCOL_VERSION" }, "connection PERMANENT run none"],
  ["TLS: a code of a later Node", { networkCode: "ERR_TLS_WHATEVER" }, "connection PERMANENT run none"],
  ["no file handle is left", { networkCode: "EMFILE" }, "connection TRANSIENT row none"],
  ["a 401 that the platform reports as an error", { networkCode: "UNAUTHORIZED" }, "auth PERMANENT run none"],
  ["unknown network code", { networkCode: "EWHAT" }, "unknown UNKNOWN row uncertain"],
  ["nothing known", {}, "unknown UNKNOWN row uncertain"]
]

const page = {
  text: "<html>Sorry, you have been blocked</html>",
  headers: new Headers({ "content-type": "text/html" })
}
const extra = { type: "extra_forbidden", loc: ["body", "max_completion_tokens"], msg: "Extra inputs are not permitted" }
const argument = { message: "Unrecognized request argument supplied: max_completion_tokens", param: null, code: null }

/** What is wrong with the job, or with one row, in each server's own words. */
const words: ReadonlyArray<Row> = [
  [
    "Gemini: a wrong key is a 400",
    {
      status: 400,
      profile: profiles.gemini,
      body: [
        error({ code: 400, message: "API key not valid. Please pass a valid API key.", status: "INVALID_ARGUMENT" })
      ]
    },
    "auth PERMANENT run none"
  ],
  [
    "Gemini: an unknown field",
    {
      status: 400,
      profile: profiles.gemini,
      body: [error({ code: 400, message: 'Invalid JSON payload received. Unknown name "x": Cannot find field.' })]
    },
    "bad_request PERMANENT run none"
  ],
  [
    "OpenRouter: a wrong model is a 400",
    { status: 400, profile: profiles.openrouter, body: error({ code: 400, message: "gpt-9 is not a valid model ID" }) },
    "model_not_found PERMANENT run none"
  ],
  [
    "DeepSeek: a wrong model is a 400",
    {
      status: 400,
      profile: profiles.deepseek,
      body: error({ code: "invalid_request_error", message: "Model Not Exist" })
    },
    "model_not_found PERMANENT run none"
  ],
  [
    "Azure: an unknown argument, without a param; a 400 may be billed",
    { status: 400, profile: profiles.azure, body: error(argument) },
    "bad_request PERMANENT run uncertain"
  ],
  ["OpenAI: an unknown argument", { status: 400, body: error(argument) }, "bad_request PERMANENT run none"],
  [
    "a row that quotes such words further back",
    { status: 400, body: error({ message: `cannot read "${argument.message}"` }) },
    "bad_request PERMANENT row none"
  ],
  [
    "Mistral: an unknown argument",
    { status: 422, body: { object: "error", message: { detail: [extra] }, type: "invalid_request_error", code: null } },
    "bad_request PERMANENT run none"
  ],
  ["FastAPI: an unknown argument", { status: 422, body: { detail: [extra] } }, "bad_request PERMANENT run none"],
  [
    "FastAPI: what is wrong is in the messages",
    { status: 422, body: { detail: [{ loc: ["body", "messages", 0], msg: "Input should be a string" }] } },
    "bad_request PERMANENT row none"
  ],
  [
    "a parameter below response_format",
    {
      status: 400,
      body: error({ code: "invalid_value", param: "response_format.json_schema.name", message: "Invalid" })
    },
    "bad_request PERMANENT run none"
  ],
  [
    "vLLM: an output limit above the context",
    { status: 400, body: error({ code: 400, param: "max_tokens", message: "'max_tokens' is too large: 50000" }) },
    "bad_request PERMANENT run none"
  ],
  [
    "Groq: a parameter of the job, with the status of an answer that does not fit",
    { status: 422, profile: profiles.groq, body: error({ param: "response_format", message: "x" }) },
    "bad_request PERMANENT run none"
  ],
  [
    "Groq: a row that is too long, with that status",
    { status: 422, profile: profiles.groq, body: error({ code: "context_length_exceeded", message: "x" }) },
    "context_length PERMANENT row none"
  ],
  ["Groq: 422 without a word", { status: 422, profile: profiles.groq }, "invalid_response UNKNOWN row none"],
  [
    "OpenRouter: a refusal is a 403 of one row",
    { status: 403, profile: profiles.openrouter, body: error({ code: 403, metadata: { error_type: "refusal" } }) },
    "refusal PERMANENT row none"
  ],
  [
    "OpenRouter: a refusal inside a 200 may be billed",
    { status: 200, profile: profiles.openrouter, body: error({ code: 403, metadata: { error_type: "refusal" } }) },
    "refusal PERMANENT row uncertain"
  ],
  ["a firewall's page is about what the row says", { status: 403, ...page }, "bad_request PERMANENT row none"],
  [
    "a 403 in JSON is about the key",
    { status: 403, body: error({ message: "no" }), headers: new Headers({ "content-type": "application/json" }) },
    "auth PERMANENT run none"
  ],
  [
    "Ollama: a model that does not fit into memory",
    {
      status: 500,
      profile: profiles.ollama,
      body: error({ message: "model requires more system memory (8.4 GiB) than is available (5.1 GiB)" })
    },
    "model_not_found PERMANENT run uncertain"
  ],
  [
    "Ollama: an illegal memory access passes",
    {
      status: 500,
      profile: profiles.ollama,
      body: error({ message: "CUDA error: an illegal memory access was encountered", type: "api_error", code: null })
    },
    "server_error TRANSIENT row uncertain"
  ],
  [
    "a 500 that quotes a row about context windows",
    { status: 500, body: error({ message: 'failed on "explain the context window of GPT"', type: "server_error" }) },
    "server_error TRANSIENT row uncertain"
  ]
]

describe("Classify", () => {
  for (const [name, input, expected] of [...rows, ...words]) {
    it(`${name}: ${expected}`, () => {
      const { reason, category, scope, charge } = classify(input)
      assert.strictEqual(`${reason} ${category} ${scope} ${charge}`, expected)
    })
  }

  it("what was refused was not billed; what broke on the way may have been", () => {
    for (let status = 400; status < 600; status++) {
      const error = classify({ status })
      if (status < 500 && error.category === "PERMANENT") assert.strictEqual(error.charge, "none", String(status))
      if ([500, 502, 503, 504, 408].includes(status)) assert.strictEqual(error.charge, "uncertain", String(status))
    }
  })

  const date = "Sun, 29 Nov 2026 12:00:00 GMT"
  const waits: ReadonlyArray<readonly [Record<string, string>, number | undefined]> = [
    [{ "retry-after-ms": "0", "retry-after": "1" }, 0],
    [{ "retry-after-ms": "1500" }, 1500],
    [{ "retry-after-ms": "soon", "retry-after": "2" }, 2000],
    [{ "retry-after": "0.5" }, 500],
    [{ "retry-after": "-7" }, 0],
    [{ "retry-after": "86400" }, 86_400_000],
    [{ "retry-after": "Sun, 29 Nov 2026 12:00:30 GMT", date }, 30_000],
    [{ "retry-after": "Sun, 29 Nov 2026 11:00:00 GMT", date }, 0],
    [{ "retry-after": "Sun, 29 Nov 2036 11:00:00 GMT", date }, 366 * 86_400_000],
    [{ "retry-after": "Sun, 29 Nov 2026 12:00:30 GMT" }, 10_000],
    [{ "retry-after": "30s", date }, 30_000],
    [{ "retry-after": "1m30s" }, 90_000],
    // A time since 1970.
    [{ "retry-after": String(Date.parse("Sun, 29 Nov 2026 12:00:50 GMT") / 1_000) }, 30_000],
    [{ "retry-after": "soon", date }, undefined],
    // It would be read as a year.
    [{ "retry-after": "soon 5", date }, undefined],
    [{}, undefined]
  ]
  for (const [headers, expected] of waits) {
    it(`Retry-After ${JSON.stringify(headers)}: ${expected}`, () => {
      const now = Date.parse("Sun, 29 Nov 2026 12:00:20 GMT")
      assert.strictEqual(classify({ status: 429, headers: new Headers(headers), now }).retryAfterMs, expected)
    })
  }

  it("keeps the provider's words and its request id, on one line and bounded", () => {
    const message = `bad\u0000\u001b[31m\nred\u202e${"x".repeat(1000)}`
    const failed = classify({
      status: 400,
      body: error({ message }),
      headers: new Headers({ "x-request-id": "req-1" })
    })
    assert.match(failed.message, /^bad \[31m red x+$/)
    assert.strictEqual(failed.message.length, 300)
    assert.strictEqual(failed.requestId, "req-1")
    assert.strictEqual(clean(`${"x".repeat(299)}😀`).length, 299)
  })

  it("takes FastAPI's first word for the message", () => {
    assert.strictEqual(classify({ status: 422, body: { detail: [extra] } }).message, extra.msg)
  })

  it("never takes an HTML page for a message", () => {
    assert.strictEqual(classify({ status: 502, body: undefined }).message, "The provider answered with HTTP status 502")
  })

  it("survives encoding with its cause", () => {
    const failed = classify({ networkCode: "ECONNRESET", cause: new Error("read ECONNRESET") })
    const encoded = JSON.parse(JSON.stringify(Schema.encodeSync(LLMError)(failed)))
    const decoded = Schema.decodeUnknownSync(LLMError)(encoded)
    assert.deepStrictEqual(
      [decoded.reason, decoded.charge, String(decoded.cause)],
      ["connection", "uncertain", "Error: read ECONNRESET"]
    )
  })
})
