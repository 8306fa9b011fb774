/**
 * How many tokens a request has, as an estimate: for forecasts and for a provider's limit of tokens a minute. Never for money: holds rest on a true bound, see
 * `Price.inputBound`.
 *
 * @example
 * import { Tokenizer } from "longhaul"
 * const own = Tokenizer.layer((text) => text.split(" ").length)
 *
 * @since 0.1.0
 */
import { Context, Layer } from "effect"
import type { ChatRequest } from "./LLM.ts"

/** @since 0.1.0 */
export interface TokenizerShape {
  /** The input tokens of a request, the frame around its messages included. */
  readonly estimate: (request: ChatRequest) => number
}

/** What each message and the whole cost besides their text (the chat format's own tokens). */
const MESSAGE = 3
const REPLY = 3

/**
 * A tokenizer by a function that counts the tokens of a text.
 *
 * @since 0.1.0
 */
export const make = (count: (text: string) => number): TokenizerShape => {
  const schemas = new WeakMap<object, number>()
  const schemaTokens = (schema: object): number => {
    const tokens = schemas.get(schema) ?? count(JSON.stringify(schema))
    schemas.set(schema, tokens)
    return tokens
  }
  return {
    estimate: ({ format, messages }) =>
      messages.reduce((sum, { content }) => sum + MESSAGE + count(content), REPLY) +
      (format.mode === "json_schema" ? schemaTokens(format.schema) : 0)
  }
}

/**
 * The tokenizer in force: without a layer three bytes are taken for a token, which is high for prose and low for identifiers.
 *
 * @since 0.1.0
 */
export class Tokenizer extends Context.Reference<Tokenizer>()("longhaul/Tokenizer", {
  defaultValue: (): TokenizerShape => make((text) => Math.ceil(Buffer.byteLength(text) / 3))
}) {}

/**
 * A tokenizer by a function that counts the tokens of a text.
 *
 * @since 0.1.0
 */
export const layer = (count: (text: string) => number): Layer.Layer<never> => Layer.succeed(Tokenizer, make(count))
