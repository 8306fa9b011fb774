import { assert, describe, it } from "@effect/vitest"
import { classify } from "../../src/services/Classify.ts"
import { durationMs, rateLimits, waitInWords } from "../../src/services/RateLimit.ts"

const now = Date.parse("2026-11-29T12:00:00Z")

describe("durations", () => {
  const rows: ReadonlyArray<readonly [string, number | undefined]> = [
    ["1s", 1_000],
    ["6m0s", 360_000],
    ["120ms", 120],
    ["7.66s", 7_660],
    ["2m59.56s", 179_560],
    ["1d2h3m", 93_780_000],
    ["15us", 0.015],
    ["12", 12_000],
    ["0.25", 250],
    ["1,500", 1_500_000],
    ["33 seconds", 33_000],
    ["1 minute 5 seconds", 65_000],
    ["-1", 0],
    // A time since 1970, in seconds and in milliseconds.
    [String(now / 1000 + 30), 30_000],
    [String(now + 1_500), 1_500],
    ["soon", undefined],
    ["", undefined],
    ["6x", undefined],
    ["NaN", undefined],
    ["1s and a bit", undefined]
  ]
  for (const [text, expected] of rows) {
    it(`${JSON.stringify(text)}: ${expected} ms`, () => {
      const found = durationMs(text, now)
      if (expected === undefined) assert.isUndefined(found)
      else assert.closeTo(found ?? Number.NaN, expected, 1e-6)
    })
  }
})

describe("a wait in words", () => {
  const rows: ReadonlyArray<readonly [string, number | undefined]> = [
    ["Rate limit reached for x: Limit 500, Used 500. Please try again in 6ms.", 6],
    ["Please try again in 7.5s. Visit https://example.test", 7_500],
    ["Please try again in 1m30s", 90_000],
    ["Please retry after 33 seconds.", 33_000],
    ["Requests are limited. Try again in 3 days.", 259_200_000],
    ["Please retry your request after 2 minutes and check", 120_000],
    ["try again in a while", undefined],
    ["Rate limit reached", undefined]
  ]
  for (const [message, expected] of rows) {
    it(`${message}: ${expected}`, () => {
      assert.strictEqual(waitInWords(message), expected)
      assert.strictEqual(classify({ status: 429, message }).retryAfterMs, expected)
    })
  }

  it("counts only where the provider limits: a row may hold such a sentence", () => {
    assert.isUndefined(classify({ status: 400, message: "bad row: try again in 5s" }).retryAfterMs)
  })
})

describe("hostile text", () => {
  it("takes linear time", () => {
    const parts = ["retry ", "retry in 1s", "1s ", "try again retry after 1", "1µ ", "1", "1.1s,", "1 a", "in after "]
    for (const head of ["", "retry in 1s", "try again in 1"]) {
      for (const part of parts) {
        const text = `${head}${part.repeat(60_000 / part.length)}!`
        const start = performance.now()
        waitInWords(text)
        durationMs(text, 0)
        // Room for a busy machine; what is quadratic takes a minute.
        assert.isBelow(performance.now() - start, 5_000, part)
      }
    }
  })
})

describe("limits in headers", () => {
  const limitsOf = (headers: Record<string, string>, per: "minute" | "day" = "minute") =>
    rateLimits(new Headers(headers), per, now)

  it("the limits a minute, with thousands separators", () => {
    const headers = { "x-ratelimit-limit-requests": "5,000", "x-ratelimit-limit-tokens": "200000" }
    assert.deepStrictEqual(limitsOf(headers), {
      requestsPerMinute: 5_000,
      tokensPerMinute: 200_000,
      waitMs: undefined
    })
    assert.deepStrictEqual(limitsOf(headers, "day"), {
      requestsPerMinute: undefined,
      tokensPerMinute: 200_000,
      waitMs: undefined
    })
  })

  it("nothing left: wait for the reset, the longest of those that are used up", () => {
    const spent = {
      "x-ratelimit-remaining-tokens": "0",
      "x-ratelimit-reset-tokens": "6m0s",
      "x-ratelimit-remaining-requests": "3",
      "x-ratelimit-reset-requests": "9h"
    }
    assert.strictEqual(limitsOf(spent)?.waitMs, 360_000)
    const both = { ...spent, "x-ratelimit-remaining-requests": "0" }
    assert.strictEqual(limitsOf(both)?.waitMs, 9 * 3_600_000)
    assert.strictEqual(classify({ status: 429, headers: new Headers(spent), now }).retryAfterMs, 360_000)
  })

  it("the tokens of a project are a limit too, and the lower one holds", () => {
    const both = { "x-ratelimit-limit-tokens": "200000", "x-ratelimit-limit-project-tokens": "1000" }
    assert.strictEqual(limitsOf(both)?.tokensPerMinute, 1_000)
    const spent = { ...both, "x-ratelimit-remaining-project-tokens": "0", "x-ratelimit-reset-project-tokens": "7s" }
    assert.strictEqual(limitsOf(spent)?.waitMs, 7_000)
  })

  it("what a server does not count (-1, a limit of 0) or does not say is no limit", () => {
    assert.isUndefined(limitsOf({}))
    assert.isUndefined(limitsOf({ "x-ratelimit-limit-requests": "-1", "x-ratelimit-remaining-requests": "-1" }))
    assert.isUndefined(
      limitsOf({
        "x-ratelimit-limit-tokens": "0",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "1s"
      })
    )
    assert.isUndefined(limitsOf({ "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "whenever" }))
  })
})
