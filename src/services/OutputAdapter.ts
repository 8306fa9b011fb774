/**
 * How a typed output is asked for and read back. Swappable: a server without constrained decoding takes another adapter than one with it.
 *
 * @example
 * import { OutputAdapter } from "longhaul"
 * const plain = OutputAdapter.text // the schema goes into the prompt, the first JSON object of the answer is read
 *
 * @since 0.1.0
 */
import { Either, JSONSchema, type Schema } from "effect"
import type { ResponseFormat } from "./LLM.ts"

/**
 * `format` is what the provider is told, `instructions` what the system prompt says besides, `read` finds the JSON value in an answer or says why there is none.
 * It never invents or completes data.
 *
 * @since 0.1.0
 */
export interface OutputAdapter {
  readonly mode: ResponseFormat["mode"]
  readonly format: (name: string, schema: object) => ResponseFormat
  readonly instructions: (schema: object) => string | undefined
  readonly read: (text: string) => Either.Either<unknown, string>
}

/**
 * The provider is held to the schema (`response_format: json_schema`).
 *
 * @since 0.1.0
 */
export const jsonSchema: OutputAdapter = {
  mode: "json_schema",
  format: (name, schema) => ({ mode: "json_schema", name, schema }),
  instructions: () => undefined,
  read: (text) => parse(text)
}

/**
 * The provider is held to some JSON object; the schema stands in the prompt.
 *
 * @since 0.1.0
 */
export const jsonObject: OutputAdapter = {
  mode: "json_object",
  format: () => ({ mode: "json_object" }),
  instructions: (schema) => `Answer with one JSON object that fits this JSON schema: ${JSON.stringify(schema)}`,
  read: (text) => parse(text)
}

/**
 * Nothing is promised by the provider; the schema stands in the prompt, and fences or prose around the JSON are taken off.
 *
 * @since 0.1.0
 */
export const text: OutputAdapter = {
  mode: "text",
  format: () => ({ mode: "text" }),
  instructions: (schema) =>
    `Answer with one JSON object and nothing else. It must fit this JSON schema: ${JSON.stringify(schema)}`,
  read: (answer) =>
    Either.orElse(parse(answer), () => parse(answer.slice(answer.indexOf("{"), answer.lastIndexOf("}") + 1)))
}

/**
 * The adapter of a mode.
 *
 * @since 0.1.0
 */
export const of = (mode: ResponseFormat["mode"]): OutputAdapter =>
  mode === "json_schema" ? jsonSchema : mode === "json_object" ? jsonObject : text

/**
 * The JSON schema of an output schema's encoded side, as a provider is sent it.
 *
 * @since 0.1.0
 */
export const toJsonSchema = <A, I>(schema: Schema.Schema<A, I>): object => {
  const { $schema: _, ...rest } = { $schema: "", ...JSONSchema.make(schema) }
  return rest
}

const parse = (text: string): Either.Either<unknown, string> =>
  Either.try({
    try: (): unknown => JSON.parse(text),
    catch: (error) => `the answer is not JSON: ${error instanceof Error ? error.message : String(error)}`
  })
