/**
 * How a typed output is asked for and read back. Swappable: a server without constrained decoding takes another adapter than one with it.
 *
 * @example
 * import { OutputAdapter } from "longhaul"
 * const plain = OutputAdapter.text // the schema goes into the prompt, the one JSON object of the answer is read
 *
 * @since 0.1.0
 */
import { Either, JSONSchema, type Schema } from "effect"
import type { InputError } from "./Errors.ts"
import * as JsonText from "./JsonText.ts"
import type { ResponseFormat } from "./LLM.ts"
import * as StrictSchema from "./StrictSchema.ts"

/**
 * `schema` is what the provider or the prompt is told of the output, or why it cannot be told. `format` is what the provider is told, `instructions` what the system
 * prompt says besides, `read` finds the one JSON value in an answer or says why there is none. It never invents or completes data.
 *
 * @since 0.1.0
 */
export interface OutputAdapter {
  readonly mode: ResponseFormat["mode"]
  readonly schema: <A, I>(name: string, schema: Schema.Schema<A, I>) => Either.Either<object, InputError>
  readonly format: (name: string, schema: object) => ResponseFormat
  readonly instructions: (schema: object) => string | undefined
  readonly read: (text: string) => Either.Either<unknown, string>
}

const read = (text: string) => Either.map(JsonText.find(text), ({ value }) => value)

/**
 * The provider is held to the schema (`response_format: json_schema`, strict). The schema must fit the subset that allows it; one that does not is refused with
 * the field and the fix.
 *
 * @since 0.1.0
 */
export const jsonSchema: OutputAdapter = {
  mode: "json_schema",
  schema: StrictSchema.fromSchema,
  format: (name, schema) => ({ mode: "json_schema", name, schema, strict: true }),
  instructions: () => undefined,
  read
}

const loose: OutputAdapter["schema"] = (_, schema) => Either.right(toJsonSchema(schema))

/**
 * The provider is told the schema and not held to it: for one that strict mode cannot have (optional fields, maps).
 *
 * @since 0.1.0
 */
export const jsonSchemaLoose: OutputAdapter = {
  ...jsonSchema,
  schema: loose,
  format: (name, schema) => ({ mode: "json_schema", name, schema, strict: false })
}

/**
 * The provider is held to some JSON object; the schema stands in the prompt.
 *
 * @since 0.1.0
 */
export const jsonObject: OutputAdapter = {
  mode: "json_object",
  schema: loose,
  format: () => ({ mode: "json_object" }),
  instructions: (schema) => `Answer with one JSON object that fits this JSON schema: ${JSON.stringify(schema)}`,
  read
}

/**
 * Nothing is promised by the provider; the schema stands in the prompt.
 *
 * @since 0.1.0
 */
export const text: OutputAdapter = {
  mode: "text",
  schema: loose,
  format: () => ({ mode: "text" }),
  instructions: (schema) =>
    `Answer with one JSON object and nothing else. It must fit this JSON schema: ${JSON.stringify(schema)}`,
  read
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
