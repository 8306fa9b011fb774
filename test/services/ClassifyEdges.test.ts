/** What providers send seldom, or not quite as they say: each case is an answer, and what must follow from it. The usual ones are in Classify.test.ts. */
import { assert, describe, it } from "@effect/vitest"
import { Schema } from "effect"
import { classify, type Input } from "../../src/services/Classify.ts"
import { LLMError } from "../../src/services/Errors.ts"
import { type Deviation, type Profile, profiles } from "../../src/services/Profile.ts"

type Row = readonly [name: string, input: Input, expected: string]

const error = (fields: object) => ({ error: fields })
const own = (...deviations: ReadonlyArray<Deviation>): Profile => ({ ...profiles.compatible, name: "own", deviations })
const html = new Headers({ "content-type": "text/html; charset=utf-8" })
const page = { text: "<html>Sorry</html>", headers: html }
const tooLong = "This model's maximum context length is 8192 tokens"

/** Expected: reason category scope charge. */
const verdicts = (name: string, rows: ReadonlyArray<Row>) =>
  describe(name, () => {
    for (const [title, input, expected] of rows) {
      it(`${title}: ${expected}`, () => {
        const { category, charge, reason, scope } = classify(input)
        assert.strictEqual(`${reason} ${category} ${scope} ${charge}`, expected)
      })
    }
  })

const inFlight = { limit_source: "openrouter_in_flight_budget", reason: "in_flight_budget_exhausted" }
const tooDear = { limit_source: "openrouter_credits", reason: "weight_exceeds_budget" }

verdicts("What is different on one server", [
  [
    "OpenRouter: a 402 because of too many calls at once passes",
    { status: 402, profile: profiles.openrouter, body: error({ code: 402, metadata: inFlight }) },
    "rate_limited TRANSIENT row none"
  ],
  [
    "OpenRouter: it does so whatever code stands next to it",
    {
      status: 402,
      profile: profiles.openrouter,
      body: error({ code: 402, type: "insufficient_quota", metadata: inFlight })
    },
    "rate_limited TRANSIENT row none"
  ],
  [
    "OpenRouter: a 402 because one request costs more than there is does not pass",
    { status: 402, profile: profiles.openrouter, body: error({ code: 402, metadata: tooDear }) },
    "quota PERMANENT run none"
  ],
  [
    "OpenRouter: nor does a 402 that says nothing",
    { status: 402, profile: profiles.openrouter, body: error({ code: 402, message: "Insufficient credits" }) },
    "quota PERMANENT run none"
  ],
  [
    "Groq: a 422 whose words say that the row is too long is about the row, not about the answer",
    { status: 422, profile: profiles.groq, body: error({ message: tooLong }) },
    "context_length PERMANENT row none"
  ],
  [
    "another server: its 402 is not OpenRouter's",
    { status: 402, profile: profiles.deepseek, body: error({ code: 402, metadata: inFlight }) },
    "quota PERMANENT run none"
  ],
  [
    "OpenRouter: a moderated row is a 403 with its reasons",
    { status: 403, profile: profiles.openrouter, body: error({ code: 403, metadata: { reasons: ["violence"] } }) },
    "content_filter PERMANENT row none"
  ],
  [
    "OpenRouter: they say more than the code",
    {
      status: 403,
      profile: profiles.openrouter,
      body: error({ code: "permission_denied", metadata: { reasons: ["violence"] } })
    },
    "content_filter PERMANENT row none"
  ],
  [
    "OpenRouter: what a guardrail blocked is a 403 with its patterns",
    { status: 403, profile: profiles.openrouter, body: error({ code: 403, metadata: { patterns: ["email"] } }) },
    "content_filter PERMANENT row none"
  ],
  [
    "OpenRouter: any other 403 is about the key",
    { status: 403, profile: profiles.openrouter, body: error({ code: 403, metadata: { provider_name: "acme" } }) },
    "auth PERMANENT run none"
  ],
  [
    "OpenRouter: a wrong model, of which the body names the parameter",
    {
      status: 400,
      profile: profiles.openrouter,
      body: error({ code: 400, param: "model", message: "gpt-9 is not a valid model ID" })
    },
    "model_not_found PERMANENT run none"
  ],
  ["Azure: a 400 may be billed", { status: 400, profile: profiles.azure }, "bad_request PERMANENT row uncertain"],
  [
    "Azure: it may be whatever its code says",
    { status: 400, profile: profiles.azure, body: error({ code: "context_length_exceeded" }) },
    "context_length PERMANENT row uncertain"
  ],
  ["Azure: a 401 is never billed", { status: 401, profile: profiles.azure }, "auth PERMANENT run none"],
  ["Azure: a 429 is never billed", { status: 429, profile: profiles.azure }, "rate_limited TRANSIENT row none"],
  [
    "Azure: a connection that was refused is not billed",
    { networkCode: "ECONNREFUSED", profile: profiles.azure },
    "connection TRANSIENT row none"
  ],
  [
    "own: 503 means a full queue there; a code that says no more than 503 does not change that",
    {
      status: 503,
      profile: own({ statuses: [503], reason: "rate_limited", charge: "none" }),
      body: error({ type: "server_error", message: "queue is full" })
    },
    "rate_limited TRANSIENT row none"
  ],
  [
    "own: a gateway's 403 page means the key there",
    { status: 403, ...page, profile: own({ statuses: [403], reason: "auth", scope: "run" }) },
    "auth PERMANENT run none"
  ],
  [
    "own: a page behind a 200 is a gateway's login there; it may be billed all the same",
    {
      status: 200,
      ...page,
      networkCode: "INVALID_BODY",
      profile: own({ statuses: [200], reason: "auth", category: "PERMANENT", scope: "run" })
    },
    "auth PERMANENT run uncertain"
  ]
])

verdicts("A page in the place of an answer", [
  ["502", { status: 502, ...page }, "server_error TRANSIENT row uncertain"],
  ["429", { status: 429, ...page }, "rate_limited TRANSIENT row none"],
  ["404", { status: 404, ...page }, "model_not_found PERMANENT run none"],
  ["200", { status: 200, networkCode: "INVALID_BODY", ...page }, "invalid_response TRANSIENT row uncertain"],
  [
    "403, but it is JSON that calls itself a page: about the key",
    { status: 403, headers: html, body: error({ message: "Forbidden" }) },
    "auth PERMANENT run none"
  ]
])

verdicts("The parameter that is named", [
  [
    "vLLM: with a 404 it is the model that is missing",
    { status: 404, body: { object: "error", type: "NotFoundError", param: "model", code: 404 } },
    "model_not_found PERMANENT run none"
  ],
  [
    "a server that breaks over it may not break the next time",
    { status: 500, body: error({ param: "response_format", message: "it broke" }) },
    "server_error TRANSIENT row uncertain"
  ],
  [
    "a limit on it passes",
    { status: 429, body: error({ param: "max_tokens", message: "slow down" }) },
    "rate_limited TRANSIENT row none"
  ],
  [
    "FastAPI: a list that begins with a sentence",
    { status: 422, body: { detail: ["1 error", { loc: ["body", "temperature"], msg: "Input should be a number" }] } },
    "bad_request PERMANENT run none"
  ]
])

verdicts("A status in the body", [
  [
    "does not count where the HTTP status says that it failed",
    { status: 503, body: error({ code: 401, message: "upstream" }) },
    "overloaded TRANSIENT row uncertain"
  ],
  [
    "nor the other way round",
    { status: 401, body: error({ code: "503", message: "upstream" }) },
    "auth PERMANENT run none"
  ],
  ["200 and 400", { status: 200, body: error({ code: 400 }) }, "bad_request PERMANENT row uncertain"],
  ["200 and 599", { status: 200, body: error({ code: 599 }) }, "server_error TRANSIENT row uncertain"],
  ["200 and 600, which is none", { status: 200, body: error({ code: 600 }) }, "unknown UNKNOWN row uncertain"],
  [
    "200 and a server's own number, which is none",
    { status: 200, body: error({ code: 1302 }) },
    "unknown UNKNOWN row uncertain"
  ],
  [
    "200 and 307, which is no failure of a call",
    { status: 200, body: error({ code: 307 }) },
    "unknown UNKNOWN row uncertain"
  ],
  [
    "200 and a status behind a word",
    { status: 200, body: error({ code: "upstream_failed", status: 503 }) },
    "overloaded TRANSIENT row uncertain"
  ],
  [
    "200 and a status behind a server's own number",
    { status: 200, body: error({ code: 1, status: 503 }) },
    "overloaded TRANSIENT row uncertain"
  ],
  [
    "no HTTP status, as in a stream",
    { body: error({ code: 503, message: "it broke" }) },
    "overloaded TRANSIENT row uncertain"
  ],
  [
    "no HTTP status, and a row that is too long",
    { body: error({ code: 400, message: tooLong }) },
    "context_length PERMANENT row uncertain"
  ]
])

verdicts("A body of another shape: the HTTP status decides", [
  ["null", { status: 502, body: null }, "server_error TRANSIENT row uncertain"],
  ["an empty list", { status: 429, body: [] }, "rate_limited TRANSIENT row none"],
  ["a number", { status: 429, body: 42 }, "rate_limited TRANSIENT row none"],
  ["an error that is null", { status: 401, body: { error: null } }, "auth PERMANENT run none"],
  [
    "a message, metadata and a detail that are null",
    { status: 401, body: error({ message: null, metadata: null, detail: null }) },
    "auth PERMANENT run none"
  ],
  ["a detail with null in it", { status: 422, body: { detail: [null] } }, "bad_request PERMANENT row none"],
  [
    "a code that is an object, which is no text",
    { status: 429, body: error({ code: { toString: null, code: "insufficient_quota" }, type: null }) },
    "rate_limited TRANSIENT row none"
  ]
])

describe("A redirect", () => {
  for (const status of [300, 301, 302, 303, 307, 308]) {
    it(`${status} is not followed, and is the job's fault whatever its body says`, () => {
      const failed = classify({ status, body: { code: 503 } })
      assert.strictEqual(
        `${failed.reason} ${failed.category} ${failed.scope} ${failed.charge}`,
        "bad_request PERMANENT run none"
      )
      assert.strictEqual(
        failed.message,
        "The provider answered with a redirect, which is not followed: check the base URL"
      )
    })
  }
})

/** What an operator reads where the provider says nothing, and how the provider's own words are kept. */
describe("The message", () => {
  const json = new Headers({ "content-type": "application/json" })
  const messages: ReadonlyArray<readonly [Input, string]> = [
    [{ networkCode: "ECONNREFUSED" }, "No answer from the provider (ECONNREFUSED)"],
    [{ status: 200, networkCode: "UND_ERR_SOCKET" }, "The answer cannot be read: UND_ERR_SOCKET, HTTP status 200"],
    [
      { status: 200, networkCode: "INVALID_BODY", headers: json, text: '{"a":"é' },
      "The answer cannot be read: INVALID_BODY, HTTP status 200 (application/json, 8 bytes read)"
    ],
    [{ status: 405 }, "The provider answered with HTTP status 405"],
    [{ status: 502, headers: new Headers() }, "The provider answered with HTTP status 502"],
    [{ status: 502, ...page }, "The provider answered with HTTP status 502 (text/html; charset=utf-8, 18 bytes read)"],
    [
      { status: 502, headers: html },
      "The provider answered with HTTP status 502 (text/html; charset=utf-8, 0 bytes read)"
    ],
    [{}, "The call failed for an unknown reason"],
    // An empty text says nothing.
    [{ status: 500, body: error({ message: "" }) }, "The provider answered with HTTP status 500"],
    [{ status: 500, message: "", body: error({ message: "it broke" }) }, "it broke"],
    [{ status: 500, body: { error: "", detail: "it broke" } }, "it broke"],
    [{ status: 400, body: error({ message: "\n  no such thing \r\n" }) }, "no such thing"],
    [{ status: 503, body: error({ message: "busy 😀 now, 😀 later" }) }, "busy 😀 now, 😀 later"]
  ]
  for (const [input, expected] of messages) {
    it(expected, () => assert.strictEqual(classify(input).message, expected))
  }
})

describe("What is kept of a failed call", () => {
  it("the status, and the answer as it came, up to 2,000 characters", () => {
    const failed = classify({ status: 502, text: `<html>${"x".repeat(3_000)}` })
    assert.deepStrictEqual([failed.status, failed.body], [502, `<html>${"x".repeat(1_994)}`])
    assert.strictEqual(classify({ status: 502, text: "no" }).body, "no")
  })

  it("nothing that was not there", () => {
    const unreached = Schema.encodeSync(LLMError)(classify({ networkCode: "ECONNREFUSED" }))
    assert.hasAllKeys(unreached, ["_tag", "reason", "category", "scope", "charge", "message"])
    assert.notProperty(Schema.encodeSync(LLMError)(classify({ status: 502, text: "" })), "body")
  })
})

describe("How long the provider wants to be left alone", () => {
  const now = Date.parse("Sun, 29 Nov 2026 12:00:20 GMT")
  const spent = (reset: string) => ({ "x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": reset })
  const epoch = String(Date.parse("Sun, 29 Nov 2026 12:00:50 GMT") / 1_000)
  const waits: ReadonlyArray<
    readonly [name: string, input: Input, headers: Record<string, string>, number | undefined]
  > = [
    ["429: in its words", { status: 429, message: "Rate limit reached. Please try again in 6ms." }, {}, 6],
    [
      "429: the header says more than the words",
      { status: 429, message: "try again in 6ms" },
      { "retry-after": "2" },
      2_000
    ],
    ["429: when the limit that is used up is reset", { status: 429 }, spent("6m0s"), 360_000],
    ["429: at a time since 1970", { status: 429 }, spent(epoch), 30_000],
    ["429: the words say more than the reset", { status: 429, message: "try again in 6ms" }, spent("6m0s"), 6],
    ["429: nobody says", { status: 429, message: "slow down" }, { "x-ratelimit-remaining-requests": "7" }, undefined],
    [
      "a quota is not back when the limit is reset",
      { status: 429, code: "insufficient_quota", message: "Please try again in 6ms." },
      spent("6m0s"),
      undefined
    ],
    [
      "500: its words may quote a row",
      { status: 500, message: 'failed on "please try again in 5 minutes"' },
      {},
      undefined
    ],
    ["503: a header counts", { status: 503 }, { "retry-after": "20" }, 20_000],
    [
      "OpenRouter: the 402 that passes says for how long",
      { status: 402, profile: profiles.openrouter, body: error({ code: 402, metadata: inFlight }) },
      { "retry-after": "3" },
      3_000
    ]
  ]
  for (const [name, input, headers, expected] of waits) {
    it(`${name}: ${expected}`, () => {
      assert.strictEqual(classify({ ...input, headers: new Headers(headers), now }).retryAfterMs, expected)
    })
  }

  it("is in its words also where there is no header at all", () => {
    assert.strictEqual(classify({ status: 429, message: "retry after 33 seconds" }).retryAfterMs, 33_000)
    assert.strictEqual(classify({ status: 429 }).retryAfterMs, undefined)
  })
})
