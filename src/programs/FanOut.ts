/**
 * Running many effects at once: order kept, width bounded, nothing dropped.
 *
 * `concurrency` is only how many items of *this* fan-out are started at a time. How many calls are in flight is decided in one place, the run's
 * admission, whose permit covers a call and nothing else; so fan-outs nest to any depth, cannot exceed it, and cannot deadlock on it.
 *
 * @example
 * import { Effect } from "effect"
 * import { FanOut } from "longhaul"
 * const lengths = FanOut.gatherBounded(
 *   ["a", "bb"].map((text) => Effect.succeed(text.length)),
 *   { concurrency: 8, mode: "failFast" }
 * )
 *
 * @since 0.1.0
 */
import { Array, Cause, Effect, Either, Schema } from "effect"
import * as Failure from "../services/Failure.ts"

/**
 * A fan-out that cannot be trusted. `arity`: other results came back than were asked for (fewer, more, or in another order). `concurrency`: the
 * width is no positive integer.
 *
 * @since 0.1.0
 */
export class FanOutError extends Schema.TaggedError<FanOutError>()("FanOutError", {
  reason: Schema.Literal("arity", "concurrency"),
  message: Schema.String
}) {}

/**
 * How effects are run together: results in the order of the effects. The default is `Effect.forEach`.
 *
 * @since 0.1.0
 */
export type Gather = <A, E, R>(
  effects: ReadonlyArray<Effect.Effect<A, E, R>>,
  concurrency: number | "unbounded"
) => Effect.Effect<ReadonlyArray<A>, E, R>

/** @since 0.1.0 */
export interface BestEffort<E> {
  readonly concurrency: number
  readonly mode: "bestEffort"
  /** How an item's typed error becomes its failure; default `Failure.fromUnknown`. */
  readonly toFailure?: (error: E) => Failure.Failure
  readonly gather?: Gather
}

/** @since 0.1.0 */
export interface FailFast {
  readonly concurrency: number
  readonly mode: "failFast"
  readonly gather?: Gather
}

/**
 * Runs the effects, at most `concurrency` at a time; results are in input order.
 *
 * `bestEffort`: every item runs; one that fails or dies is a `Failure` in its own place. `failFast`: after the first failure no further item starts,
 * the items that have started finish (an answer that is on its way is paid for), then that first failure, in time, is raised as it was. In both,
 * interruption interrupts all and is never a `Failure`.
 *
 * @since 0.1.0
 */
export function gatherBounded<A, E, R>(
  effects: Iterable<Effect.Effect<A, E, R>>,
  options: BestEffort<E>
): Effect.Effect<ReadonlyArray<Either.Either<A, Failure.Failure>>, FanOutError, R>
export function gatherBounded<A, E, R>(
  effects: Iterable<Effect.Effect<A, E, R>>,
  options: FailFast
): Effect.Effect<ReadonlyArray<A>, E | FanOutError, R>
export function gatherBounded<A, E, R>(
  effects: Iterable<Effect.Effect<A, E, R>>,
  options: BestEffort<E> | FailFast
): Effect.Effect<ReadonlyArray<A | Either.Either<A, Failure.Failure>>, E | FanOutError, R> {
  const { concurrency } = options
  if (!Number.isSafeInteger(concurrency) || concurrency < 1) {
    const message = `concurrency is ${concurrency}: use an integer of 1 or more`
    return Effect.fail(new FanOutError({ reason: "concurrency", message }))
  }
  return options.mode === "bestEffort" ? bestEffort(effects, options) : failFast(effects, options)
}

/**
 * What runs one row: an agent, or anything of its shape.
 *
 * @since 0.1.0
 */
export interface Runner<in Row, out A, out E, out R> {
  readonly run: (row: Row) => Effect.Effect<A, E, R>
}

/**
 * Runs each agent on its row, as {@link gatherBounded} does.
 *
 * @since 0.1.0
 */
export function runAgents<Row, A, E, R>(
  pairs: Iterable<readonly [Runner<Row, A, E, R>, Row]>,
  options: BestEffort<E>
): Effect.Effect<ReadonlyArray<Either.Either<A, Failure.Failure>>, FanOutError, R>
export function runAgents<Row, A, E, R>(
  pairs: Iterable<readonly [Runner<Row, A, E, R>, Row]>,
  options: FailFast
): Effect.Effect<ReadonlyArray<A>, E | FanOutError, R>
export function runAgents<Row, A, E, R>(
  pairs: Iterable<readonly [Runner<Row, A, E, R>, Row]>,
  options: BestEffort<E> | FailFast
): Effect.Effect<ReadonlyArray<A | Either.Either<A, Failure.Failure>>, E | FanOutError, R> {
  // suspended: a `run` that throws is that row's defect, and only when its turn comes
  const effects = Array.fromIterable(pairs).map(([agent, row]) => Effect.suspend(() => agent.run(row)))
  return options.mode === "bestEffort" ? gatherBounded(effects, options) : gatherBounded(effects, options)
}

/** The results of exactly these effects, in their order, or an `arity` error: a gather that loses, doubles or reorders results is found out. */
const gatherStrict = <A, E, R>(
  effects: ReadonlyArray<Effect.Effect<A, E, R>>,
  concurrency: number | "unbounded",
  gather: Gather = forEach
): Effect.Effect<ReadonlyArray<A>, E | FanOutError, R> =>
  Effect.flatMap(
    gather(
      effects.map((effect, index) => Effect.map(effect, (value) => ({ index, value }))),
      concurrency
    ),
    (slots): Effect.Effect<ReadonlyArray<A>, FanOutError> =>
      slots.length === effects.length && slots.every((slot, index) => slot.index === index)
        ? Effect.succeed(slots.map((slot) => slot.value))
        : Effect.fail(new FanOutError({ reason: "arity", message: arityMessage(effects.length, slots.length) }))
  )

const forEach: Gather = (effects, concurrency) => Effect.forEach(effects, (effect) => effect, { concurrency })

const arityMessage = (asked: number, got: number) =>
  asked === got ? `${got} results came back, but not in the order asked` : `${asked} results asked, ${got} came back`

const bestEffort = <A, E, R>(effects: Iterable<Effect.Effect<A, E, R>>, options: BestEffort<E>) => {
  const toFailure = options.toFailure ?? Failure.fromUnknown
  const item = (effect: Effect.Effect<A, E, R>) =>
    Effect.matchCauseEffect(effect, {
      onSuccess: (value) => Effect.succeed(Either.right(value)),
      onFailure: (cause): Effect.Effect<Either.Either<A, Failure.Failure>> => {
        const reason = primary(cause)
        if (reason._tag === "Fail") return Effect.sync(() => Either.left(toFailure(reason.error)))
        if (reason._tag === "Die") return Effect.succeed(Either.left(Failure.fromUnknown(reason.defect)))
        return Effect.failCause(Cause.stripFailures(cause))
      }
    })
  return gatherStrict(Array.fromIterable(effects).map(item), options.concurrency, options.gather)
}

const failFast = <A, E, R>(effects: Iterable<Effect.Effect<A, E, R>>, options: FailFast) =>
  Effect.suspend(() => {
    let first: Cause.Cause<E> | undefined
    const keepFirst = (cause: Cause.Cause<E>): Effect.Effect<ReadonlyArray<A>, E> => {
      // interruption is no item's failure: it ends the fan-out as it ends any effect
      if (primary(cause)._tag === "Interrupt") return Effect.failCause(cause)
      first ??= cause
      return Effect.succeed([])
    }
    // a slot holds the item's value, or nothing if it failed or was not started
    const item = (effect: Effect.Effect<A, E, R>) =>
      Effect.suspend((): Effect.Effect<ReadonlyArray<A>, E, R> => {
        if (first !== undefined) return Effect.succeed([])
        return Effect.matchCauseEffect(effect, { onSuccess: (value) => Effect.succeed([value]), onFailure: keepFirst })
      })
    const slots = gatherStrict(Array.fromIterable(effects).map(item), options.concurrency, options.gather)
    return Effect.flatMap(
      slots,
      (slots): Effect.Effect<ReadonlyArray<A>, E> =>
        first === undefined ? Effect.succeed(slots.flat()) : Effect.failCause(first)
    )
  })

/** What ended an effect, see {@link primary}. @since 0.1.0 */
export type Reason<E> =
  | { readonly _tag: "Fail"; readonly error: E }
  | { readonly _tag: "Die"; readonly defect: unknown }
  | { readonly _tag: "Interrupt" }
  | { readonly _tag: "Empty" }

/**
 * Why an item ended. Not `Cause.isInterrupted`: an item whose own inner fan-out fails has a cause with its interrupted siblings beside the failure,
 * and an interrupted item whose finalizer dies has a defect after the interruption. So: what came first, and side by side the failure.
 *
 * @since 0.1.0
 */
export const primary = <E>(cause: Cause.Cause<E>): Reason<E> =>
  Cause.match<Reason<E>, E>(cause, {
    onEmpty: { _tag: "Empty" },
    onFail: (error) => ({ _tag: "Fail", error }),
    onDie: (defect) => ({ _tag: "Die", defect }),
    onInterrupt: () => ({ _tag: "Interrupt" }),
    onSequential: (left, right) => (left._tag === "Empty" ? right : left),
    onParallel: (left, right) => (weight[left._tag] >= weight[right._tag] ? left : right)
  })

const weight = { Fail: 3, Die: 2, Interrupt: 1, Empty: 0 } as const
