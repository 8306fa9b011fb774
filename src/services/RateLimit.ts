/**
 * What a provider's headers say of time and limits, in every form that is in use: Retry-After (seconds, fractions, dates, milliseconds), `x-ratelimit-*` with its
 * durations, and the sentence "try again in 6m0s" in an error. Internal.
 *
 * @since 0.1.0
 */
import type { RateLimits } from "./LLM.ts"

/** @since 0.1.0 */
export interface Headers {
  readonly get: (name: string) => string | null
}

const YEAR = 366 * 24 * 3_600_000
const clamp = (ms: number): number => Math.min(Math.max(ms, 0), YEAR)

const numberOf = (text: string | null | undefined): number | undefined => {
  const digits = text?.trim().replaceAll(",", "")
  return digits !== undefined && /^-?\d+(\.\d+)?$/.test(digits) ? Number(digits) : undefined
}

const units: Readonly<Record<string, number>> = {
  ns: 1e-6,
  us: 1e-3,
  µs: 1e-3,
  ms: 1,
  s: 1_000,
  m: 60_000,
  h: 3_600_000,
  d: 86_400_000
}
const words: Readonly<Record<string, string>> = {
  millisecond: "ms",
  sec: "s",
  second: "s",
  min: "m",
  minute: "m",
  hour: "h",
  day: "d"
}

/**
 * A duration in milliseconds: `1s`, `6m0s`, `120ms`, `2m59.56s`, `33 seconds`; a bare number is seconds, a very large one a time since 1970, in seconds or
 * milliseconds. `undefined`: no duration.
 *
 * @since 0.1.0
 */
export const durationMs = (text: string, now: number): number | undefined => {
  const bare = numberOf(text)
  if (bare !== undefined) return clamp(bare > 1e12 ? bare - now : bare > 1e9 ? bare * 1000 - now : bare * 1000)
  if (!/^(\s*\d+(\.\d+)?\s*[a-zµ]+,?)+\s*$/i.test(text)) return undefined
  let ms = 0
  for (const [, amount = "", unit = ""] of text.toLowerCase().matchAll(/(\d+(?:\.\d+)?)\s*([a-zµ]+)/g)) {
    const factor = units[unit] ?? units[words[unit.replace(/s$/, "")] ?? ""]
    if (factor === undefined) return undefined
    ms += Number(amount) * factor
  }
  return clamp(ms)
}

/**
 * How long a provider wants to be left alone, in milliseconds between 0 and a year. A date is read against the answer's own clock, so that ours may be wrong.
 *
 * @since 0.1.0
 */
export const retryAfterMs = (headers: Headers, now: number | undefined): number | undefined => {
  const ms = numberOf(headers.get("retry-after-ms"))
  if (ms !== undefined) return clamp(ms)
  const text = headers.get("retry-after") ?? ""
  const duration = durationMs(text, now ?? 0)
  if (duration !== undefined) return duration
  // "Sun, 29 Nov 2026 …": a text such as "soon 5" would be read as a year.
  const at = /^\w{3},? /.test(text) ? Date.parse(text) : Number.NaN
  const from = Date.parse(headers.get("date") ?? "")
  const wait = at - (Number.isNaN(from) ? (now ?? Number.NaN) : from)
  return Number.isNaN(wait) ? undefined : clamp(wait)
}

/**
 * The wish to wait in an error's own words ("Please try again in 6ms", "retry after 33 seconds"), in milliseconds.
 *
 * @since 0.1.0
 */
export const waitInWords = (message: string): number | undefined => {
  const said = /(?:try again|retry)[a-z ]{0,20}? (?:in|after) ((?:\d+(?:\.\d+)?\s*[a-zµ]+,?\s*)+)/i.exec(message)?.[1]
  if (said === undefined) return undefined
  // The sentence may go on behind the duration.
  const duration =
    /^(?:\d+(?:\.\d+)?\s*(?:ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hours?|d|days?)\b,?\s*)+/i.exec(
      said.replace(/(\d)([a-z]+)(?=\d)/gi, "$1$2 ")
    )?.[0]
  return duration === undefined ? undefined : durationMs(duration.trim().replace(/,$/, ""), 0)
}

/**
 * The limits that an answer tells; `undefined`: it tells none. Whether the limit of requests is one a minute depends on the provider.
 *
 * @since 0.1.0
 */
export const rateLimits = (headers: Headers, requestsPer: "minute" | "day", now: number): RateLimits | undefined => {
  const limitOf = (kind: string) => positive(numberOf(headers.get(`x-ratelimit-limit-${kind}`)))
  const waits = ["requests", "tokens", "project-tokens"].flatMap((kind) => exhausted(headers, kind, now) ?? [])
  const requests = requestsPer === "minute" ? limitOf("requests") : undefined
  const tokenLimits = ["tokens", "project-tokens"].flatMap((kind) => limitOf(kind) ?? [])
  const tokens = tokenLimits.length === 0 ? undefined : Math.min(...tokenLimits)
  if (requests === undefined && tokens === undefined && waits.length === 0) return undefined
  return {
    requestsPerMinute: requests,
    tokensPerMinute: tokens,
    waitMs: waits.length === 0 ? undefined : Math.max(...waits)
  }
}

const positive = (n: number | undefined) => (n !== undefined && n > 0 ? n : undefined)

/** Nothing is left until the reset. Some servers send -1 or a limit of 0 for what they do not count. */
const exhausted = (headers: Headers, kind: string, now: number): number | undefined => {
  const limit = numberOf(headers.get(`x-ratelimit-limit-${kind}`))
  const reset = headers.get(`x-ratelimit-reset-${kind}`)
  const isSpent = numberOf(headers.get(`x-ratelimit-remaining-${kind}`)) === 0 && (limit === undefined || limit > 0)
  return isSpent && reset !== null ? durationMs(reset, now) : undefined
}
