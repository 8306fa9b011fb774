/**
 * What providers' words mean, as tables: a new word is a new line here. Classify reads them. Internal.
 *
 * @since 0.1.0
 */
import type { Category, Charge, LLMErrorReason, Scope } from "./Errors.ts"

/** `charge` is left out where the HTTP status tells it. `hint` stands in where the provider says nothing. @since 0.1.0 */
export interface Rule {
  readonly values: ReadonlyArray<string | number>
  readonly reason: LLMErrorReason
  readonly category: Category
  readonly scope: Scope
  readonly charge?: Charge
  readonly hint?: string
}

/** Codes that decide alone, whatever the status. @since 0.1.0 */
export const codes: ReadonlyArray<Rule> = [
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
  { reason: "refusal", category: "PERMANENT", scope: "row", values: ["refusal"] },
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

/** Where the words matter more than a vague code. Only with these statuses: an error's text can quote a row. @since 0.1.0 */
export const messages: ReadonlyArray<
  Omit<Rule, "values"> & { readonly pattern: RegExp; readonly values: ReadonlyArray<number> }
> = [
  {
    pattern:
      /maximum context length|context (length|window|size).{0,40}(exceed|too (long|large|small))|exceed.{0,60}context (length|window|size)/i,
    values: [400, 413, 422, 500],
    reason: "context_length",
    category: "PERMANENT",
    scope: "row"
  },
  // At its beginning only: what a row says stands further back.
  {
    pattern: /^(unrecognized request argument|unknown parameter|unsupported parameter)/i,
    values: [400, 422],
    reason: "bad_request",
    category: "PERMANENT",
    scope: "run"
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

/** Codes that say what a status would say; they matter where the status is 200. @since 0.1.0 */
export const vagueCodes: ReadonlyArray<Rule> = [
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

/** What belongs to the job and not to a row: refused once, refused for every row. @since 0.1.0 */
export const jobParams = new Set(
  "model max_tokens max_completion_tokens temperature response_format reasoning_effort service_tier".split(" ")
)

/** @since 0.1.0 */
export const statuses: ReadonlyArray<Rule> = [
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

/** Before the request was sent: surely not billed. After: nobody knows. @since 0.1.0 */
export const network: ReadonlyArray<Rule> = [
  {
    reason: "connection",
    category: "TRANSIENT",
    scope: "row",
    charge: "none",
    values: ["ECONNREFUSED", "EAI_AGAIN", "UND_ERR_CONNECT_TIMEOUT", "EMFILE", "ENFILE", "EADDRNOTAVAIL"]
  },
  { reason: "auth", category: "PERMANENT", scope: "run", charge: "none", values: ["UNAUTHORIZED"] },
  // A typo in the URL, or a DNS outage: a few more tries tell.
  { reason: "connection", category: "UNKNOWN", scope: "row", charge: "none", values: ["ENOTFOUND"] },
  // Certificates: https://nodejs.org/api/tls.html#x509-certificate-error-codes; others begin with CERT_.
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
      "CERT_NOT_YET_VALID",
      "DEPTH_ZERO_SELF_SIGNED_CERT",
      "SELF_SIGNED_CERT_IN_CHAIN",
      "UNABLE_TO_GET_ISSUER_CERT_LOCALLY",
      "UNABLE_TO_VERIFY_LEAF_SIGNATURE",
      "UNABLE_TO_GET_ISSUER_CERT",
      "UNABLE_TO_DECRYPT_CERT_SIGNATURE",
      "ERROR_IN_CERT_NOT_BEFORE_FIELD",
      "ERROR_IN_CERT_NOT_AFTER_FIELD",
      "UNABLE_TO_DECODE_ISSUER_PUBLIC_KEY",
      "PATH_LENGTH_EXCEEDED",
      "INVALID_CA",
      "INVALID_PURPOSE",
      "HOSTNAME_MISMATCH"
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

/** Nothing is known. @since 0.1.0 */
export const unknown: Rule = { values: [], reason: "unknown", category: "UNKNOWN", scope: "row", charge: "uncertain" }
/** A 3xx. @since 0.1.0 */
export const redirect: Rule = {
  values: [],
  reason: "bad_request",
  category: "PERMANENT",
  scope: "run",
  charge: "none",
  hint: "The provider answered with a redirect, which is not followed: check the base URL"
}
/** TLS that cannot be. @since 0.1.0 */
export const badCertificate: Rule = {
  values: [],
  reason: "connection",
  category: "PERMANENT",
  scope: "run",
  charge: "none"
}
/** A firewall's page in the place of a refusal. @since 0.1.0 */
export const blocked: Rule = { values: [], reason: "bad_request", category: "PERMANENT", scope: "row", charge: "none" }
/** A parameter that no row can have. @since 0.1.0 */
export const jobFault: Rule = { values: [], reason: "bad_request", category: "PERMANENT", scope: "run" }
/** Another 4xx. @since 0.1.0 */
export const wrongUrl: Rule = { values: [], reason: "bad_request", category: "PERMANENT", scope: "run", charge: "none" }
/** Another 5xx. @since 0.1.0 */
export const serverFault: Rule = {
  values: [],
  reason: "server_error",
  category: "TRANSIENT",
  scope: "row",
  charge: "uncertain"
}
