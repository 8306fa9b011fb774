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
import { LLMError } from "./Errors.ts"
import {
  badCertificate,
  blocked,
  codes,
  jobFault,
  jobParams,
  messages,
  network,
  type Rule,
  redirect,
  serverFault,
  statuses,
  unknown,
  vagueCodes,
  wrongUrl
} from "./ErrorTables.ts"
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

const index = (rules: ReadonlyArray<Rule>) =>
  new Map(rules.flatMap((rule) => rule.values.map((value) => [value, rule] as const)))
const rulesOf = {
  codes: index(codes),
  vagueCodes: index(vagueCodes),
  statuses: index(statuses),
  network: index(network)
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

/** The rule, and whether a code or its words decided it. */
const decide = (input: Input, status: number | undefined, found: Found): readonly [Rule, boolean] => {
  const among = (rules: ReadonlyMap<string | number, Rule>) =>
    found.codes.map((code) => rules.get(code)).find((rule) => rule !== undefined)
  const decisive = among(rulesOf.codes)
  if (decisive !== undefined) return [decisive, true]
  const isRefused = status === 400 || status === 422
  if (isRefused && jobParams.has(found.param ?? "")) return [jobFault, true]
  const said = byMessage(status, found.message)
  if (said !== undefined) return [said, true]
  const vague = among(rulesOf.vagueCodes)
  if (vague !== undefined) return [vague, false]
  if (status === undefined || input.networkCode !== undefined) return [byNetwork(input.networkCode ?? ""), false]
  // A page in the place of a refusal is a firewall's, which dislikes what the row says.
  if (status === 403 && isPage(input)) return [blocked, false]
  // Behind a 200 a model may have run, whatever the code in the body would mean as a status.
  return [status === input.status ? byStatus(status) : { ...byStatus(status), charge: "uncertain" }, false]
}

const byNetwork = (code: string): Rule =>
  rulesOf.network.get(code) ?? (/^(ERR_SSL_|ERR_TLS_|CERT_)/.test(code) ? badCertificate : unknown)

const isPage = ({ body, headers }: Input): boolean =>
  body === undefined && /html/i.test(headers?.get("content-type") ?? "")

/** What is different on this server. */
const deviating = (
  [rule, isDecided]: readonly [Rule, boolean],
  { profile }: Input,
  status: number | undefined,
  found: Found
): Rule => {
  const fits = ({ message, metadata, reason, statuses }: Deviation) =>
    status !== undefined &&
    statuses.includes(status) &&
    // A status alone says less than a code; who was billed is another question.
    (!isDecided || reason === undefined || message !== undefined || metadata !== undefined) &&
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
  // FastAPI and Mistral: a list of what is wrong, each with its place.
  const details = [error.detail, isFields(error.message) ? error.message.detail : undefined].flatMap((list) =>
    Array.isArray(list) ? list.filter(isFields) : []
  )
  const [detail] = details
  const place = detail !== undefined && Array.isArray(detail.loc) ? detail.loc[1] : undefined
  return {
    codes: words
      .filter((word) => typeof word === "string" || typeof word === "number")
      .map((word) => String(word).toLowerCase()),
    message: text(input.message) ?? text(error.message) ?? text(outer.error) ?? text(error.detail) ?? text(detail?.msg),
    // `response_format.json_schema.name` belongs to response_format.
    param: text(error.param ?? place)?.split(/[.[]/)[0],
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
