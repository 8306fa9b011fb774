/**
 * Finished results by key, shared between runs: what was paid for once is not asked again. A failure, a defect or an interruption is never stored.
 *
 * @example
 * import { Effect, Schema } from "effect"
 * import { Store } from "longhaul"
 * const cached = Effect.gen(function* () {
 *   const store = yield* Store.Store
 *   return yield* store.getOrSet("idem:0123", Schema.Number, Effect.succeed(42)) // the producer runs once
 * })
 *
 * @since 0.1.0
 */
import { Context, Deferred, Effect, FiberId, Layer, Option, Schema } from "effect"
import type { StorageError } from "./Errors.ts"
import { Journal, type JournalShape } from "./Journal.ts"

/**
 * Values are stored as JSON of the schema's encoded side. A stored value that the schema no longer takes is a miss, counted in `stale`, and is overwritten
 * by the next result; otherwise the first writer wins.
 *
 * @since 0.1.0
 */
export interface StoreShape {
  readonly durable: boolean
  /** The values that are there; keys that are not, or whose value is stale, are absent. */
  readonly getMany: <A, I>(
    keys: ReadonlyArray<string>,
    schema: Schema.Schema<A, I>
  ) => Effect.Effect<ReadonlyMap<string, A>, StorageError>
  /**
   * The stored value, or the producer's, stored. Of callers of one key at one time one runs its producer and the others get what it stored; if it fails or
   * is interrupted, nothing is stored and the next of them runs its own.
   */
  readonly getOrSet: <A, I, E, R>(
    key: string,
    schema: Schema.Schema<A, I>,
    producer: Effect.Effect<A, E, R>
  ) => Effect.Effect<A, E | StorageError, R>
  /** Encoded values, in a batch; sorted by key they cost least. The first writer wins, unless they `replace`: a deliberate re-run. */
  readonly putMany: (entries: ReadonlyArray<readonly [key: string, json: string]>, replace?: boolean) => void
  /** How many stored values no longer fitted their schema. */
  readonly stale: Effect.Effect<number>
}

/** @since 0.1.0 */
export class Store extends Context.Tag("longhaul/Store")<Store, StoreShape>() {}

/**
 * The store in the journal's own database.
 *
 * @since 0.1.0
 */
export const layer: Layer.Layer<Store, never, Journal> = Layer.effect(
  Store,
  Effect.map(Journal, (journal) => make(journal))
)

const make = (journal: JournalShape): StoreShape => {
  let stale = 0
  const flights = new Map<string, Deferred.Deferred<void>>()

  const decode = <A, I>(schema: Schema.Schema<A, I>) => {
    const decoder = Schema.decodeUnknownOption(Schema.parseJson(schema))
    return (json: string): Option.Option<A> => {
      const value = decoder(json)
      if (Option.isNone(value)) stale++
      return value
    }
  }

  const getMany: StoreShape["getMany"] = (keys, schema) =>
    Effect.map(journal.reads.values(keys), (stored) => {
      const decodeOne = decode(schema)
      return new Map(
        Array.from(stored).flatMap(([key, json]) =>
          Option.match(decodeOne(json), { onNone: () => [], onSome: (value) => [[key, value] as const] })
        )
      )
    })

  const put = (key: string, json: string, replace: boolean) =>
    Effect.asVoid(journal.commit({ _tag: "Put", entries: [[key, json]], replace }))

  const produce = <A, I, E, R>(key: string, schema: Schema.Schema<A, I>, producer: Effect.Effect<A, E, R>) =>
    Effect.gen(function* () {
      const stored = (yield* journal.reads.values([key])).get(key)
      const found = stored === undefined ? Option.none() : decode(schema)(stored)
      if (Option.isSome(found)) return found.value
      const value = yield* producer
      yield* put(key, yield* Effect.orDie(Schema.encode(Schema.parseJson(schema))(value)), stored !== undefined)
      return value
    })

  const alone = <A, E, R>(key: string, work: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
    Effect.uninterruptibleMask((restore) =>
      Effect.suspend(() => {
        const flight = flights.get(key)
        if (flight !== undefined) return Effect.zipRight(restore(Deferred.await(flight)), restore(alone(key, work)))
        const own = Deferred.unsafeMake<void>(FiberId.none)
        flights.set(key, own)
        const land = Effect.sync(() => {
          flights.delete(key)
          Deferred.unsafeDone(own, Effect.void)
        })
        return Effect.ensuring(restore(work), land)
      })
    )

  return {
    durable: journal.durable,
    getMany,
    getOrSet: (key, schema, producer) => alone(key, produce(key, schema, producer)),
    putMany: (entries, replace = false) => {
      if (entries.length > 0) journal.append({ _tag: "Put", entries, replace })
    },
    stale: Effect.sync(() => stale)
  }
}
