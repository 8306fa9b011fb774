/**
 * What a row's result was made with, as short digests of its parts, so that a later change can be named: the prompt, the schema, the model, the parameters, the row's own
 * content. Whether anything changed says the row's key; this says what.
 *
 * @since 0.1.0
 */
import type { Part } from "./Errors.ts"
import { sha256 } from "./Identity.ts"
import type { ChatRequest } from "./LLM.ts"

/** In the order of their digests. */
const parts = ["prompt", "schema", "model", "parameters", "content"] as const

/** What a request does not say of itself. @since 0.1.0 */
export interface Context {
  readonly promptVersion: string
  /** How the answer is read: the decode side of the output schema. */
  readonly reading: string
  /** The version of the row. */
  readonly version: string
}

/**
 * The digests of all parts, 8 hex digits each, joined by dots.
 *
 * @since 0.1.0
 */
export const of = (request: ChatRequest, { promptVersion, reading, version }: Context): string => {
  const { effort, format, maxOutputTokens, messages, model, temperature, tier } = request
  return [
    digest([promptVersion, messages]),
    digestOnce(format, () => digest([format, reading])),
    digest(model),
    digest([maxOutputTokens, temperature, effort, tier]),
    digest(version)
  ].join(".")
}

const digest = (value: unknown): string => sha256(JSON.stringify(value)).slice(0, 8)

/** An agent has one format and one way of reading for all its rows. */
const digests = new WeakMap<object, string>()
const digestOnce = (format: object, make: () => string): string => {
  const known = digests.get(format) ?? make()
  digests.set(format, known)
  return known
}

/**
 * What changed between two recipes.
 *
 * @since 0.1.0
 */
export const changes = (before: string, now: string): ReadonlyArray<Part> => {
  const [old, fresh] = [before.split("."), now.split(".")]
  if (old.length !== parts.length || fresh.length !== parts.length) return ["other"]
  return parts.filter((_, i) => old[i] !== fresh[i])
}
