/**
 * The end of one row: its result, or its failure as data.
 *
 * @since 0.1.0
 */
import { type Either, Schema } from "effect"
import { Failure } from "./Failure.ts"
import { Usage } from "./Usage.ts"

/**
 * What an agent made of a row. `output` is the model's text, `parsed` its typed form. `partial`: the text could not be read after all repairs, so `parsed` is
 * absent and the text is kept. `usage` is what this row's calls cost; zero where the result came from the store.
 *
 * @since 0.1.0
 */
export interface AgentResult<A> {
  readonly output: string
  readonly parsed: A | undefined
  readonly usage: Usage
  readonly partial: boolean
  readonly promptVersion: string
}

/**
 * `Right` a result, `Left` a failure.
 *
 * @since 0.1.0
 */
export type Outcome<A> = Either.Either<AgentResult<A>, Failure>

/** How a result is stored. */
export const AgentResult = <A, I>(parsed: Schema.Schema<A, I>) =>
  Schema.Struct({
    output: Schema.String,
    parsed: Schema.UndefinedOr(parsed),
    usage: Usage,
    partial: Schema.Boolean,
    promptVersion: Schema.String
  })

/** How the end of a row is stored: a result or a failure. @since 0.1.0 */
export const Stored = <A, I>(parsed: Schema.Schema<A, I>) => Schema.Union(Failure, AgentResult(parsed))
