/**
 * How servers that speak OpenAI's chat completions differ from it, as data: what they are asked for, what their errors mean, what their answers say.
 *
 * @example
 * import { Profile } from "longhaul"
 * const found = Profile.forUrl("https://openrouter.ai/api/v1").name // "openrouter"
 * const own: Profile.Profile = { ...Profile.profiles.compatible, name: "ours", outputLimit: "max_tokens" }
 *
 * @since 0.1.0
 */
import { Record } from "effect"
import type { Category, Charge, LLMErrorReason, Scope } from "./Errors.ts"
import type { ResponseFormat } from "./LLM.ts"

/**
 * What an error means on this server, where it differs: for these HTTP statuses, and where given only if the message or a value in the error's `metadata` fits. What it
 * leaves out stays as it is everywhere.
 *
 * @since 0.1.0
 */
export interface Deviation {
  readonly statuses: ReadonlyArray<number>
  readonly message?: RegExp
  readonly metadata?: { readonly key: string; readonly value?: string }
  readonly reason?: LLMErrorReason
  readonly category?: Category
  readonly scope?: Scope
  readonly charge?: Charge
}

/**
 * `outputMode`: the best way that works for a typed output. `constraints`: whether a schema may hold limits on numbers and lengths (they are always checked here).
 * `outputLimit`: the name of the output limit. `requestsPer`: what `x-ratelimit-limit-requests` counts. `countsOutputLimit`: a limit of tokens a minute counts the
 * output limit when a call begins. `standardTier`: what is asked for where no tier is, as a project may have a dearer one by default. `isAlias`: the model in an answer is another name for what
 * was asked. `costInUsage`: `usage.cost` is the bill, in dollars. `timeoutMs`: how long a call may take. `priceFactor`: how many times the table's price everything
 * costs.
 *
 * @since 0.1.0
 */
export interface Profile {
  readonly name: string
  readonly host: RegExp | undefined
  readonly outputMode: ResponseFormat["mode"]
  readonly constraints: boolean
  readonly outputLimit: "max_completion_tokens" | "max_tokens"
  readonly requestsPer: "minute" | "day"
  readonly countsOutputLimit: boolean
  readonly standardTier: string | undefined
  readonly isAlias: boolean
  readonly costInUsage: boolean
  readonly timeoutMs: number
  readonly priceFactor: number
  readonly deviations: ReadonlyArray<Deviation>
}

const compatible: Profile = {
  name: "compatible",
  host: undefined,
  outputMode: "json_schema",
  constraints: true,
  outputLimit: "max_completion_tokens",
  requestsPer: "minute",
  countsOutputLimit: false,
  standardTier: undefined,
  isAlias: false,
  costInUsage: false,
  timeoutMs: 120_000,
  priceFactor: 1,
  deviations: []
}

/**
 * The servers that are known, by name; `compatible` is what an unknown one is taken for. Sources: their own documentation, their issue trackers and source
 * code, read 2026-11.
 *
 * @since 0.1.0
 */
export const profiles = {
  compatible,
  // help.openai.com 5955604: the larger of the output limit and the estimated request counts, whatever is used.
  openai: {
    ...compatible,
    name: "openai",
    host: /^api\.openai\.com$/,
    countsOutputLimit: true,
    standardTier: "default"
  },
  // OpenAI's data residency page: 10 % more for models released since 2026-03-05; taken for all, as a cap must not be too high.
  openaiRegional: {
    ...compatible,
    name: "openaiRegional",
    host: /^(us|eu|au|in|jp)\.api\.openai\.com$/,
    countsOutputLimit: true,
    standardTier: "default",
    priceFactor: 1.1
  },
  // learn.microsoft.com: 200, 400 and 408 may be billed, 401 and 429 never; a model is asked for by the name of its deployment.
  azure: {
    ...compatible,
    name: "azure",
    host: /(^|\.)(openai\.azure\.com|cognitiveservices\.azure\.com|services\.ai\.azure\.com)$/,
    constraints: false,
    countsOutputLimit: true,
    isAlias: true,
    deviations: [{ statuses: [400, 408], charge: "uncertain" }]
  },
  // openrouter.ai/docs, errors and limits: too many calls at once for the balance is a 402 that passes; a moderated row is a 403 with its reasons.
  openrouter: {
    ...compatible,
    name: "openrouter",
    host: /(^|\.)openrouter\.ai$/,
    outputLimit: "max_tokens",
    costInUsage: true,
    deviations: [
      {
        statuses: [402],
        metadata: { key: "limit_source", value: "openrouter_in_flight_budget" },
        reason: "rate_limited",
        category: "TRANSIENT",
        scope: "row"
      },
      { statuses: [400], message: / is not a valid model ID$/, reason: "model_not_found", scope: "run" },
      { statuses: [403], metadata: { key: "reasons" }, reason: "content_filter", scope: "row" },
      { statuses: [403], metadata: { key: "patterns" }, reason: "content_filter", scope: "row" }
    ]
  },
  // console.groq.com/docs: requests are limited by the day; 422 may pass when tried again.
  groq: {
    ...compatible,
    name: "groq",
    host: /(^|\.)groq\.com$/,
    requestsPer: "day",
    deviations: [{ statuses: [422], reason: "invalid_response", category: "UNKNOWN" }]
  },
  // api-docs.deepseek.com: JSON mode only.
  deepseek: {
    ...compatible,
    name: "deepseek",
    host: /(^|\.)deepseek\.com$/,
    outputMode: "json_object",
    outputLimit: "max_tokens",
    // It sends blank lines for up to ten minutes while it is busy.
    timeoutMs: 660_000,
    deviations: [{ statuses: [400], message: /^Model Not Exist$/, reason: "model_not_found", scope: "run" }]
  },
  mistral: { ...compatible, name: "mistral", host: /(^|\.)mistral\.ai$/, outputLimit: "max_tokens" },
  // ai.google.dev, OpenAI compatibility: unknown fields are refused.
  gemini: {
    ...compatible,
    name: "gemini",
    host: /(^|\.)generativelanguage\.googleapis\.com$/,
    constraints: false,
    deviations: [
      { statuses: [400], message: /^API key (not valid|expired)/, reason: "auth", scope: "run" },
      { statuses: [400], message: /^Invalid JSON payload received\. Unknown name/, scope: "run" }
    ]
  },
  vllm: { ...compatible, name: "vllm", host: undefined },
  // Only max_tokens is known to it (ollama, openai/openai.go); a model that does not fit into memory is a 500 for every row.
  ollama: {
    ...compatible,
    name: "ollama",
    host: undefined,
    outputLimit: "max_tokens",
    deviations: [
      {
        statuses: [500],
        message: /requires more (system )?memory|not enough memory/i,
        reason: "model_not_found",
        category: "PERMANENT",
        scope: "run"
      }
    ]
  },
  llamacpp: { ...compatible, name: "llamacpp", host: undefined, outputLimit: "max_tokens" },
  lmstudio: { ...compatible, name: "lmstudio", host: undefined, outputLimit: "max_tokens" }
} as const satisfies Readonly<Record<string, Profile>>

/** @since 0.1.0 */
export type Name = keyof typeof profiles

/** @since 0.1.0 */
export const names = Record.keys(profiles)

/**
 * The profile of a server by its address: by its host, Ollama by its port 11434 as well; else `compatible`.
 *
 * @since 0.1.0
 */
export const forUrl = (baseUrl: string): Profile => {
  const { hostname, port } = new URL(baseUrl)
  if (port === "11434") return profiles.ollama
  return Object.values<Profile>(profiles).find(({ host }) => host?.test(hostname) === true) ?? compatible
}
