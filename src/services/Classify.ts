/**
 * What a failed call means: worth another try, whose concern, billed or not. Tables, so that a new provider's word is a new line here.
 *
 * Two questions, answered apart. *Is it worth another try?* By the provider's own code first, then its message, then a vaguer code, then the HTTP
 * status: a status alone lies (429 is also "your money is gone", 400 is also "the hard limit is reached"). *Was it billed?* By the status alone: what
 * refused a request did not run a model; what broke on the way may have.
 *
 * @example
 * import { Classify } from "longhaul"
 * Classify.classify({ status: 429, body: { error: { code: "insufficient_quota", message: "..." } } }) // PERMANENT, run, not billed
 *
 * @since 0.1.0
 */
import { type Category, type Charge, LLMError, type LLMErrorReason, type Scope } from "./Errors.ts"
import type { Deviation, Profile } from "./Profile.ts"
import * as RateLimit from "./RateLimit.ts"

/**
 * What is known of a failed call; every part may be missing. `body` is the parsed answer (its error is found in it), `text` the answer as it came, `networkCode` the
 * code at the root of a network error, or one of this library's own: `DEADLINE`, `BODY_TOO_LARGE`, `INVALID_BODY`, `BAD_PORT`. `now` serves a Retry-After date whose
 * answer has no Date header. `profile`: what is different on this server.
 *
 * @since 0.1.0
 */
export interface Input {
  readonly status?: number
  readonly code?: string | number
  readonly type?: string
  readonly message?: string
  readonly headers?: { readonly get: (name: string) => string | null }
  readonly networkCode?: string
  readonly body?: unknown
  readonly text?: string
  readonly profile?: Profile
  readonly now?: number
  readonly cause?: unknown
}

/**
 * The typed error of a failed call. Pure, and by structure only: an SDK has two copies of each of its classes, so `instanceof` says nothing.
 *
 * @since 0.1.0
 */
export const classify = (input: Input): LLMError => {
  const found = inBody(input)
  const status = effectiveStatus(input.status, found.codes)
  const rule = deviating(decide(input, status, found), input, status, found)
  const charge = rule.charge ?? (input.status === undefined ? undefined : byStatus(input.status).charge) ?? "uncertain"
  const retryAfterMs = wishOf(input, rule, found)
  const requestId = input.headers?.get("x-request-id") ?? undefined
  return new LLMError({
    reason: rule.reason,
    category: rule.category,
    scope: rule.scope,
    charge,
    message: clean(found.message ?? rule.hint ?? describe(input)),
    ...(input.text === undefined || input.text === "" ? {} : { body: input.text.slice(0, 2_000) }),
    ...(input.status === undefined ? {} : { status: input.status }),
    ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
    ...(requestId === undefined ? {} : { requestId: clean(requestId) }),
    ...(input.cause === undefined ? {} : { cause: input.cause })
  })
}

/**
 * A text on one line, without control or invisible characters, at most 300 characters: fit for a log, a table and a terminal.
 *
 * @since 0.1.0
 */
export const clean = (text: string): string =>
  text
    .replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]+/gu, " ")
    .trim()
    .slice(0, 300)
    .replace(/[\uD800-\uDBFF]$/, "")

/** `charge` is left out where the HTTP status tells it. `hint` stands in where the provider says nothing. */
interface Rule {
  readonly values: ReadonlyArray<string | number>
  readonly reason: LLMErrorReason
  readonly category: Category
  readonly scope: Scope
  readonly charge?: Charge
  readonly hint?: string
}

/** Codes that decide alone, whatever the status. */
const codes: ReadonlyArray<Rule> = [
  {
    reason: "quota",
    category: "PERMANENT",
    scope: "run",
    values: [
      "insufficient_quota",
      "quota_exceeded",
      "billing_not_active",
      "billing_hard_limit_reached",
      "account_deactivated",
      "access_terminated",
      "credit_balance_exhausted",
      "organization_spend_limit_exceeded",
      "project_spend_limit_exceeded",
      "organization_usage_limit_exceeded"
    ]
  },
  {
    reason: "auth",
    category: "PERMANENT",
    scope: "run",
    values: [
      "invalid_api_key",
      "authentication_error",
      "unauthorized",
      "unauthenticated",
      "permission_denied",
      "invalid_organization"
    ]
  },
  {
    reason: "model_not_found",
    category: "PERMANENT",
    scope: "run",
    values: ["model_not_found", "not_found_error", "deploymentnotfound"]
  },
  {
    reason: "context_length",
    category: "PERMANENT",
    scope: "row",
    values: [
      "context_length_exceeded",
      "exceed_context_size_error",
      "string_above_max_length",
      "string_too_long",
      "max_tokens_exceeded"
    ]
  },
  // Azure answers this with 400 and bills the prompt.
  { reason: "content_filter", category: "PERMANENT", scope: "row", charge: "uncertain", values: ["content_filter"] },
  {
    reason: "content_filter",
    category: "PERMANENT",
    scope: "row",
    values: [
      "content_policy_violation",
      "moderation_blocked",
      "invalid_prompt",
      "bio_policy",
      "image_content_policy_violation"
    ]
  },
  // The same for every row: the parameters and the schema are the job's, not the row's.
  {
    reason: "bad_request",
    category: "PERMANENT",
    scope: "run",
    values: ["unsupported_parameter", "unsupported_value", "invalid_json_schema"]
  },
  // Groq: the model wrote, so it may be billed, but what it wrote was not the schema's.
  {
    reason: "invalid_response",
    category: "TRANSIENT",
    scope: "row",
    charge: "uncertain",
    values: ["json_validate_failed"]
  }
]

/** Where the words matter more than a vague code. Only with these statuses: an error's text can quote a row. */
const messages: ReadonlyArray<
  Omit<Rule, "values"> & { readonly pattern: RegExp; readonly values: ReadonlyArray<number> }
> = [
  {
    pattern: /maximum context length|context (length|window|size)/i,
    values: [400, 413, 422, 500],
    reason: "context_length",
    category: "PERMANENT",
    scope: "row"
  },
  // One request above the whole minute's tokens never fits.
  {
    pattern: /request too large/i,
    values: [413, 429],
    reason: "context_length",
    category: "PERMANENT",
    scope: "row"
  }
]

/** Codes that say what a status would say; they matter where the status is 200. */
const vagueCodes: ReadonlyArray<Rule> = [
  {
    reason: "rate_limited",
    category: "TRANSIENT",
    scope: "row",
    values: [
      "rate_limit_exceeded",
      "rate_limit_error",
      "rate_limited",
      "slow_down",
      "resource_unavailable",
      "resource_exhausted"
    ]
  },
  {
    reason: "overloaded",
    category: "TRANSIENT",
    scope: "row",
    values: ["overloaded_error", "server_is_overloaded", "provider_overloaded", "unavailable"]
  },
  {
    reason: "server_error",
    category: "TRANSIENT",
    scope: "row",
    values: ["server_error", "api_error", "internal_server_error", "internalservererror", "provider_unavailable"]
  },
  { reason: "timeout", category: "TRANSIENT", scope: "row", values: ["timeout", "vector_store_timeout"] }
]

/** What belongs to the job and not to a row: refused once, refused for every row. */
const jobParams = new Set(
  "model max_tokens max_completion_tokens temperature response_format reasoning_effort service_tier".split(" ")
)

const statuses: ReadonlyArray<Rule> = [
  { values: [400, 422], reason: "bad_request", category: "PERMANENT", scope: "row", charge: "none" },
  { values: [413], reason: "context_length", category: "PERMANENT", scope: "row", charge: "none" },
  { values: [401, 403], reason: "auth", category: "PERMANENT", scope: "run", charge: "none" },
  { values: [402], reason: "quota", category: "PERMANENT", scope: "run", charge: "none" },
  { values: [404], reason: "model_not_found", category: "PERMANENT", scope: "run", charge: "none" },
  { values: [429, 498], reason: "rate_limited", category: "TRANSIENT", scope: "row", charge: "none" },
  { values: [408, 504], reason: "timeout", category: "TRANSIENT", scope: "row", charge: "uncertain" },
  {
    values: [409, 423, 424, 425, 499, 500, 502],
    reason: "server_error",
    category: "TRANSIENT",
    scope: "row",
    charge: "uncertain"
  },
  { values: [503], reason: "overloaded", category: "TRANSIENT", scope: "row", charge: "uncertain" },
  { values: [501, 505], reason: "bad_request", category: "PERMANENT", scope: "run", charge: "none" },
  { values: [529], reason: "overloaded", category: "TRANSIENT", scope: "row", charge: "none" }
]

/** Before the request was sent: surely not billed. After: nobody knows. */
const network: ReadonlyArray<Rule> = [
  {
    reason: "connection",
    category: "TRANSIENT",
    scope: "row",
    charge: "none",
    values: ["ECONNREFUSED", "EAI_AGAIN", "UND_ERR_CONNECT_TIMEOUT"]
  },
  // A typo in the URL, or a DNS outage: a few more tries tell.
  { reason: "connection", category: "UNKNOWN", scope: "row", charge: "none", values: ["ENOTFOUND"] },
  {
    reason: "connection",
    category: "PERMANENT",
    scope: "run",
    charge: "none",
    values: [
      "ERR_INVALID_URL",
      "BAD_PORT",
      "ERR_SSL_WRONG_VERSION_NUMBER",
      "ERR_TLS_CERT_ALTNAME_INVALID",
      "CERT_HAS_EXPIRED",
      "DEPTH_ZERO_SELF_SIGNED_CERT",
      "SELF_SIGNED_CERT_IN_CHAIN",
      "UNABLE_TO_GET_ISSUER_CERT_LOCALLY",
      "UNABLE_TO_VERIFY_LEAF_SIGNATURE"
    ]
  },
  {
    reason: "connection",
    category: "TRANSIENT",
    scope: "row",
    charge: "uncertain",
    values: [
      "ECONNRESET",
      "EPIPE",
      "ENETUNREACH",
      "EHOSTUNREACH",
      "ENETDOWN",
      "UND_ERR_SOCKET",
      "UND_ERR_CLOSED",
      "UND_ERR_DESTROYED",
      "ERR_STREAM_PREMATURE_CLOSE"
    ]
  },
  {
    reason: "timeout",
    category: "TRANSIENT",
    scope: "row",
    charge: "uncertain",
    values: ["DEADLINE", "ETIMEDOUT", "UND_ERR_HEADERS_TIMEOUT", "UND_ERR_BODY_TIMEOUT"]
  },
  {
    reason: "invalid_response",
    category: "TRANSIENT",
    scope: "row",
    charge: "uncertain",
    values: [
      "BODY_TOO_LARGE",
      "INVALID_BODY",
      "ERR_ENCODING_INVALID_ENCODED_DATA",
      "HPE_INVALID_CONSTANT",
      "HPE_INVALID_CHUNK_SIZE",
      "HPE_HEADER_OVERFLOW",
      "UND_ERR_HEADERS_OVERFLOW",
      "Z_DATA_ERROR",
      "Z_BUF_ERROR"
    ]
  }
]

const index = (rules: ReadonlyArray<Rule>) =>
  new Map(rules.flatMap((rule) => rule.values.map((value) => [value, rule] as const)))
const rulesOf = {
  codes: index(codes),
  vagueCodes: index(vagueCodes),
  statuses: index(statuses),
  network: index(network)
}

const unknown: Rule = { values: [], reason: "unknown", category: "UNKNOWN", scope: "row", charge: "uncertain" }
const redirect: Rule = {
  values: [],
  reason: "bad_request",
  category: "PERMANENT",
  scope: "run",
  charge: "none",
  hint: "The provider answered with a redirect, which is not followed: check the base URL"
}
const jobFault: Rule = { values: [], reason: "bad_request", category: "PERMANENT", scope: "run" }
const wrongUrl: Rule = { values: [], reason: "bad_request", category: "PERMANENT", scope: "run", charge: "none" }
const serverFault: Rule = {
  values: [],
  reason: "server_error",
  category: "TRANSIENT",
  scope: "row",
  charge: "uncertain"
}

const byStatus = (status: number): Rule =>
  rulesOf.statuses.get(status) ??
  (status >= 500 ? serverFault : status >= 400 ? wrongUrl : status >= 300 ? redirect : unknown)

interface Found {
  /** Lower case, the most telling first. */
  readonly codes: ReadonlyArray<string>
  readonly message: string | undefined
  readonly param: string | undefined
  readonly metadata: Fields
}

const decide = (input: Input, status: number | undefined, found: Found): Rule => {
  const among = (rules: ReadonlyMap<string | number, Rule>) =>
    found.codes.map((code) => rules.get(code)).find((rule) => rule !== undefined)
  const rule = among(rulesOf.codes) ?? byMessage(status, found.message) ?? among(rulesOf.vagueCodes)
  if (rule !== undefined) return rule
  if (status === undefined || input.networkCode !== undefined) {
    return rulesOf.network.get(input.networkCode ?? "") ?? unknown
  }
  if ((status === 400 || status === 422) && found.param !== undefined && jobParams.has(found.param)) return jobFault
  // Behind a 200 a model may have run, whatever the code in the body would mean as a status.
  return status === input.status ? byStatus(status) : { ...byStatus(status), charge: "uncertain" }
}

/** What is different on this server. */
const deviating = (rule: Rule, { profile }: Input, status: number | undefined, found: Found): Rule => {
  const fits = ({ message, metadata, statuses }: Deviation) =>
    status !== undefined &&
    statuses.includes(status) &&
    (message === undefined || message.test(found.message ?? "")) &&
    (metadata === undefined ||
      (metadata.value === undefined ? metadata.key in found.metadata : found.metadata[metadata.key] === metadata.value))
  const deviation = profile?.deviations.find(fits)
  return deviation === undefined ? rule : { ...rule, ...deviation }
}

const byMessage = (status: number | undefined, message: string | undefined): Rule | undefined =>
  status === undefined || message === undefined
    ? undefined
    : messages.find((rule) => rule.values.includes(status) && rule.pattern.test(message))

/** Some servers answer 200 and put the status into the body's code, as a number or as text. */
const effectiveStatus = (status: number | undefined, codes: ReadonlyArray<string>): number | undefined =>
  status !== undefined && status >= 300
    ? status
    : (codes.map(Number).find((code) => Number.isInteger(code) && code >= 400 && code < 600) ?? status)

type Fields = Readonly<Record<string, unknown>>
const isFields = (value: unknown): value is Fields => typeof value === "object" && value !== null
const text = (value: unknown): string | undefined => (typeof value === "string" && value !== "" ? value : undefined)

/** `{ error: {…} }`, `{ error: "…" }`, an array around it (Gemini), or flat (vLLM, gateways). */
const inBody = (input: Input): Found => {
  const body = Array.isArray(input.body) ? input.body[0] : input.body
  const outer: Fields = isFields(body) ? body : {}
  const error: Fields = isFields(outer.error) ? outer.error : outer
  const metadata: Fields = isFields(error.metadata) ? error.metadata : {}
  const words = [input.code ?? error.code, input.type ?? error.type, metadata.error_type, error.status]
  return {
    codes: words
      .filter((word) => typeof word === "string" || typeof word === "number")
      .map((word) => String(word).toLowerCase()),
    message: text(input.message) ?? text(error.message) ?? text(outer.error) ?? text(error.detail),
    param: text(error.param),
    metadata
  }
}

const describe = ({ headers, networkCode, status, text }: Input): string => {
  if (networkCode !== undefined && status === undefined) return `No answer from the provider (${networkCode})`
  const type = headers?.get("content-type")
  const shape = type === null || type === undefined ? "" : ` (${type}, ${Buffer.byteLength(text ?? "")} bytes read)`
  if (networkCode !== undefined) return `The answer cannot be read: ${networkCode}, HTTP status ${status}${shape}`
  return status === undefined
    ? "The call failed for an unknown reason"
    : `The provider answered with HTTP status ${status}${shape}`
}

/** How long the provider wants to be left alone; where no header says it, its words do, or the reset of the limit that is used up. */
const wishOf = ({ headers, now }: Input, rule: Rule, found: Found): number | undefined => {
  const asked = headers === undefined ? undefined : RateLimit.retryAfterMs(headers, now)
  if (asked !== undefined || rule.reason !== "rate_limited") return asked
  const said = found.message === undefined ? undefined : RateLimit.waitInWords(found.message)
  return said ?? (headers === undefined ? undefined : RateLimit.rateLimits(headers, "minute", now ?? 0)?.waitMs)
}
