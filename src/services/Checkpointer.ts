/**
 * Numbered, immutable snapshots of a state, by id. A state is encoded through its Schema at the moment of the snapshot, so later changes cannot reach it,
 * and what cannot be encoded fails there, not at the resume.
 *
 * @example
 * import { Effect, Schema } from "effect"
 * import { Checkpointer } from "longhaul"
 * const Progress = Schema.Struct({ done: Schema.Array(Schema.Int) })
 * const program = Effect.gen(function* () {
 *   const checkpointer = yield* Checkpointer.Checkpointer
 *   yield* checkpointer.snapshot("job-1", Progress, { done: [1, 2] })
 *   return yield* checkpointer.resume("job-1", Progress) // Option.some({ version: 1, status: "RUNNING", state: { done: [1, 2] }, … })
 * })
 *
 * @since 0.1.0
 */
import { Clock, Context, Effect, Layer, Option, ParseResult, Schema } from "effect"
import type { CheckpointRecord, Keep } from "./Book.ts"
import type { StorageError } from "./Errors.ts"
import { deepFreeze } from "./Freeze.ts"
import { Journal, type JournalShape } from "./Journal.ts"

/** @since 0.1.0 */
export const CheckpointStatus = Schema.Literal("RUNNING", "SUSPENDED", "DONE")
/** @since 0.1.0 */
export type CheckpointStatus = typeof CheckpointStatus.Type

/**
 * One snapshot. `at` is in milliseconds since 1970, `metadata` small facts about it. Frozen.
 *
 * @since 0.1.0
 */
export interface Checkpoint<A> {
  readonly id: string
  readonly version: number
  readonly status: CheckpointStatus
  readonly state: A
  readonly metadata: Readonly<Record<string, string | number>>
  readonly at: number
}

/**
 * A state that its schema cannot encode, at snapshot; or a stored state that the schema does not take, at resume.
 *
 * @since 0.1.0
 */
export class CheckpointError extends Schema.TaggedError<CheckpointError>()("CheckpointError", {
  reason: Schema.Literal("encode", "decode"),
  id: Schema.String,
  message: Schema.String
}) {}

/** @since 0.1.0 */
export interface SnapshotOptions {
  readonly status?: CheckpointStatus
  readonly metadata?: Readonly<Record<string, string | number>>
  /** How many versions stay: all (default), or the latest n; a DONE version always stays. */
  readonly keep?: Keep
}

/** @since 0.1.0 */
export interface CheckpointerShape {
  readonly durable: boolean
  /** Writes the next version of `id` and returns it, durable. Concurrent snapshots of one id get distinct versions without a gap. */
  readonly snapshot: <A, I>(
    id: string,
    schema: Schema.Schema<A, I>,
    state: A,
    options?: SnapshotOptions
  ) => Effect.Effect<number, CheckpointError | StorageError>
  /** The latest version, if there is one. */
  readonly resume: <A, I>(
    id: string,
    schema: Schema.Schema<A, I>
  ) => Effect.Effect<Option.Option<Checkpoint<A>>, CheckpointError | StorageError>
  /** One version, if it is still there. */
  readonly get: <A, I>(
    id: string,
    version: number,
    schema: Schema.Schema<A, I>
  ) => Effect.Effect<Option.Option<Checkpoint<A>>, CheckpointError | StorageError>
  /** The versions that are there, ascending. */
  readonly listVersions: (id: string) => Effect.Effect<ReadonlyArray<number>, StorageError>
  /** Removes every version of `id`. What a run spent is in its book and stays. */
  readonly delete: (id: string) => Effect.Effect<void, StorageError>
}

/** @since 0.1.0 */
export class Checkpointer extends Context.Tag("longhaul/Checkpointer")<Checkpointer, CheckpointerShape>() {}

/**
 * The checkpointer in the journal's own database.
 *
 * @since 0.1.0
 */
export const layer: Layer.Layer<Checkpointer, never, Journal> = Layer.effect(
  Checkpointer,
  Effect.map(Journal, (journal) => make(journal))
)

const Metadata = Schema.Record({ key: Schema.String, value: Schema.Union(Schema.String, Schema.Number) })

const make = (journal: JournalShape): CheckpointerShape => ({
  durable: journal.durable,
  snapshot: (id, schema, state, options = {}) =>
    Effect.gen(function* () {
      const json = yield* toJson(id, schema, state)
      const metadata = yield* toJson(id, Metadata, options.metadata ?? {})
      const verdict = yield* journal.commit({
        _tag: "Snapshot",
        id,
        status: options.status ?? "RUNNING",
        state: json,
        metadata,
        keep: options.keep ?? "all",
        at: yield* Clock.currentTimeMillis
      })
      return verdict._tag === "Version" ? verdict.version : 0
    }),
  resume: (id, schema) => Effect.flatMap(journal.reads.checkpoint(id), (record) => read(schema, record)),
  get: (id, version, schema) => Effect.flatMap(journal.reads.checkpoint(id, version), (record) => read(schema, record)),
  listVersions: journal.reads.checkpoints,
  delete: (id) => Effect.asVoid(journal.commit({ _tag: "DropCheckpoints", id }))
})

const toJson = <A, I>(id: string, schema: Schema.Schema<A, I>, value: A): Effect.Effect<string, CheckpointError> =>
  Schema.encode(schema)(value).pipe(
    Effect.flatMap((encoded) => Effect.try(() => checkedJson(encoded))),
    Effect.mapError(
      (error) =>
        new CheckpointError({
          reason: "encode",
          id,
          message: `the state of ${id} cannot be stored: ${describe(error)}`
        })
    )
  )

/** What does not come back equal must not be written: `JSON.stringify` drops functions, turns NaN into null, a Date into text, a Map into `{}`. */
const checkedJson = (value: unknown): string => {
  const json = JSON.stringify(value)
  checkJson(value, "")
  return json
}

const checkJson = (value: unknown, path: string): void => {
  if (value === null || typeof value === "string" || typeof value === "boolean" || Number.isFinite(value)) return
  if (Array.isArray(value)) {
    for (const [i, item] of value.entries()) checkJson(item, `${path}[${i}]`)
    return
  }
  const isObject = typeof value === "object" && [Object.prototype, null].includes(Object.getPrototypeOf(value))
  if (!isObject) throw new TypeError(`at "${path}": ${String(value)} has no JSON form; give it one in the schema`)
  // A property that is undefined is absent, before as after.
  for (const [key, item] of Object.entries(value)) if (item !== undefined) checkJson(item, `${path}.${key}`)
}

const describe = (error: unknown): string => {
  if (ParseResult.isParseError(error)) return ParseResult.TreeFormatter.formatErrorSync(error)
  const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error
  return cause instanceof Error ? cause.message : String(cause)
}

const read = <A, I>(schema: Schema.Schema<A, I>, record: CheckpointRecord | undefined) =>
  record === undefined
    ? Effect.succeedNone
    : Effect.all({
        state: Schema.decode(Schema.parseJson(schema))(record.state),
        metadata: Schema.decode(Schema.parseJson(Metadata))(record.metadata)
      }).pipe(
        Effect.map(({ metadata, state }): Option.Option<Checkpoint<A>> => {
          const { at, id, status, version } = record
          return Option.some(deepFreeze({ id, version, status, state, metadata, at }))
        }),
        Effect.mapError(
          (error) =>
            new CheckpointError({
              reason: "decode",
              id: record.id,
              message: `version ${record.version} of ${record.id} does not fit the schema: ${describe(error)}`
            })
        )
      )
