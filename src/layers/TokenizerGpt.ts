/**
 * OpenAI's own tokenizer (o200k), by the package `gpt-tokenizer`, which must be installed beside this library.
 *
 * @example
 * import * as TokenizerGpt from "longhaul/tokenizer"
 * const exact = TokenizerGpt.layer // counts as the models from gpt-4o on do
 *
 * @since 0.1.0
 */
import { countTokens } from "gpt-tokenizer/encoding/o200k_base"
import * as Tokenizer from "../services/Tokenizer.ts"

/** A row may hold the text of a control token; it counts as text. */
const asText = { disallowedSpecial: new Set<string>() }

/**
 * Counts by the encoding of gpt-4o and later.
 *
 * @since 0.1.0
 */
export const layer = Tokenizer.layer((text) => countTokens(text, asText))
