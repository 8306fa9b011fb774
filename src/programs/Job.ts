/**
 * What is to be done per row: the agent, the row's identity, its source, the cadence.
 *
 * @since 0.1.0
 */
import { Either, ParseResult, Schema } from "effect"
import type { Keep } from "../services/Book.ts"
import * as Identity from "../services/Identity.ts"
import * as Retry from "../services/Retry.ts"
import { type RowSource, readCells } from "../services/RowSource.ts"
import type { Agent } from "./Agent.ts"
import type { Fallback } from "./Routes.ts"

/**
 * `id` names a row, uniquely in its source. `version` says which state of the row it is (`updatedAt`); without it a hash of the row's own fields does. `scope` is what
 * stored results are shared over: the job's name unless set, so that next week's run reuses unchanged rows. `where` chooses rows when the manifest is loaded.
 *
 * @since 0.1.0
 */
export interface JobOptions<Row, RowI, A, I> {
  readonly name: string
  readonly agent: Agent<Row, A, I>
  readonly row: Schema.Schema<Row, RowI>
  readonly id: (row: Row) => string | number
  readonly version?: (row: Row) => string | number
  readonly source: RowSource
  readonly where?: (row: Row, now: Date) => boolean
  readonly scope?: string
  /** Rows a page and a snapshot: default 100. */
  readonly chunkSize?: number
  /** How many snapshots stay: default all. */
  readonly keep?: Keep
  readonly retry?: Retry.RetryPolicy
  /** Answers equal requests of one run once, for at most this many; default 0, off. */
  readonly memo?: number
  /**
   * Whom to ask when the agent's own model cannot answer: it is down, its key or quota is refused, or a row has used up its tries. In this order; default
   * none. What they answer counts for this run only and is not stored for others.
   */
  readonly fallback?: ReadonlyArray<Fallback>
  /** The id that an answer says it is about: checked against the row's own; a mismatch is shown to the model once more. */
  readonly outputId?: (output: A) => string | number
}

/** A row ready to be stored in a manifest. @since 0.1.0 */
export interface Identified {
  readonly id: string
  readonly version: string
  readonly kept: boolean
}

/**
 * A job. `Row` is erased behind functions over the source's own records, so that programs need not carry it.
 *
 * @since 0.1.0
 */
export interface Job<Row, A, I = unknown> {
  readonly name: string
  readonly scope: string
  readonly agent: Agent<Row, A, I>
  readonly source: RowSource
  readonly chunkSize: number
  readonly keep: Keep
  readonly retry: Retry.RetryPolicy
  readonly memo: number
  readonly fallback: ReadonlyArray<Fallback>
  readonly outputId: ((output: A) => string | number) | undefined
  /** A source record as a row, or what does not fit and in which field. `text`: its cells are text, see {@link readCells}. */
  readonly decode: (record: unknown, text: boolean) => Either.Either<Row, Misfit>
  readonly identify: (row: Row, now: Date) => Identified
}

/** Why a record is no row of the job. @since 0.1.0 */
export interface Misfit {
  readonly field: string
  readonly message: string
}

/**
 * A job.
 *
 * @since 0.1.0
 */
export const make = <Row, RowI, A, I>(options: JobOptions<Row, RowI, A, I>): Job<Row, A, I> => {
  const encode = Schema.encodeSync(options.row)
  const contentOf = (row: Row) => Either.getOrThrow(Identity.stableHash(encode(row), 32))
  return {
    name: options.name,
    scope: options.scope ?? options.name,
    agent: options.agent,
    source: options.source,
    chunkSize: options.chunkSize ?? 100,
    keep: options.keep ?? "all",
    retry: options.retry ?? Retry.standard,
    memo: options.memo ?? 0,
    fallback: options.fallback ?? [],
    outputId: options.outputId,
    decode: decoder(options.row),
    identify: (row, now) => ({
      id: String(options.id(row)),
      version: String(options.version?.(row) ?? contentOf(row)),
      kept: options.where?.(row, now) ?? true
    })
  }
}

const isCells = Schema.is(Schema.Record({ key: Schema.String, value: Schema.String }))

const decoder = <Row, RowI>(schema: Schema.Schema<Row, RowI>) => {
  const cells = readCells(schema)
  const decode = Schema.decodeUnknownEither(schema, { errors: "first" })
  return (record: unknown, text: boolean): Either.Either<Row, Misfit> =>
    Either.mapLeft(decode(text && isCells(record) ? cells(record) : record), (error) => {
      const [issue] = ParseResult.ArrayFormatter.formatErrorSync(error)
      return { field: issue?.path.map(String).join(".") ?? "", message: issue?.message ?? error.message }
    })
}

/**
 * The same job with another source or model: what a door (the CLI) overrides.
 *
 * @since 0.1.0
 */
export const withOverrides = <Row, A, I>(
  job: Job<Row, A, I>,
  overrides: {
    readonly source?: RowSource
    readonly model?: string
    readonly scope?: string
    readonly chunkSize?: number
  }
): Job<Row, A, I> => ({
  ...job,
  source: overrides.source ?? job.source,
  scope: overrides.scope ?? job.scope,
  chunkSize: overrides.chunkSize ?? job.chunkSize,
  agent: overrides.model === undefined ? job.agent : job.agent.withModel(overrides.model)
})
