/**
 * The limits of one run and the meter's reading. A budget binds to the first run that uses it: two runs never share a cap by accident.
 *
 * @example
 * import { Budget } from "longhaul"
 * const budget = Budget.layer({ maxCostUsd: 50, maxConcurrency: 8 })
 *
 * @since 0.1.0
 */
import { Context, Effect, Either, Layer } from "effect"
import type { State } from "./Admission.ts"
import type { Limits, Pool } from "./Book.ts"
import { RunRefused } from "./Errors.ts"
import { Usd } from "./Usd.ts"

/**
 * What an operator says. What is left out comes from the run's record, for a new run `maxConcurrency` is 8; there is no default cap: a new run needs
 * `maxCostUsd` or `noCap: true`.
 *
 * @since 0.1.0
 */
export interface BudgetOptions {
  /** The most that the run may cost over its whole life, in US dollars, inclusive. */
  readonly maxCostUsd?: number | undefined
  /**
   * A cap that the runs of one database share besides their own: what all runs that name this `id` may cost together, in US dollars. A run is in the pool that it was begun in, for good; the latest
   * amount counts.
   */
  readonly pool?: { readonly id: string; readonly maxCostUsd: number } | undefined
  /** Runs without a cap. */
  readonly noCap?: boolean | undefined
  /** The most calls that the run may send over its whole life. */
  readonly maxCalls?: number | undefined
  /** The most calls in flight at once. */
  readonly maxConcurrency?: number | undefined
  /** The most requests, and tokens, that begin within a minute; without them what the provider says of its limits holds. */
  readonly requestsPerMinute?: number | undefined
  readonly tokensPerMinute?: number | undefined
  /** Fewer calls at once where the provider takes no more, below `maxConcurrency`; default true. */
  readonly adaptive?: boolean | undefined
}

/**
 * What the meter says, in nano-dollars; all zero before a run is bound. `remaining` is null without a cap.
 *
 * @since 0.1.0
 */
export interface Reading {
  readonly spent: Usd
  readonly uncertain: Usd
  readonly held: Usd
  readonly remaining: Usd | null
  readonly calls: number
  readonly inFlight: number
}

/** @since 0.1.0 */
export interface BudgetShape {
  readonly limits: Either.Either<Limits, RunRefused>
  readonly pool: Either.Either<Pick<Pool, "id" | "cap"> | undefined, RunRefused>
  /** Fewer calls at once where the provider takes no more; unlike the limits it is not kept in the run's record. */
  readonly adaptive: boolean
  /** Binds the budget to a run; a second run is refused. Binding the same run again is allowed: a resume in the same process. */
  readonly bind: (runId: string) => Effect.Effect<void, RunRefused>
  /** Where the run's meter reports its state. Internal. */
  readonly report: (state: () => State) => void
  readonly reading: Effect.Effect<Reading>
}

/**
 * The budget of the run that it is provided to.
 *
 * @since 0.1.0
 */
export class Budget extends Context.Tag("longhaul/Budget")<Budget, BudgetShape>() {}

/**
 * A budget. Build one per run.
 *
 * @since 0.1.0
 */
export const layer = (options: BudgetOptions): Layer.Layer<Budget> => Layer.sync(Budget, () => make(options))

/**
 * A budget as a value.
 *
 * @since 0.1.0
 */
export const make = (options: BudgetOptions): BudgetShape => {
  let bound: string | undefined
  let state: (() => State) | undefined
  return {
    limits: parse(options),
    pool: poolOf(options),
    adaptive: options.adaptive ?? true,
    bind: (runId) =>
      Effect.suspend(() => {
        if (bound !== undefined && bound !== runId) {
          const message = `this budget belongs to run ${bound}: give run ${runId} a Budget.layer of its own`
          return Effect.fail(new RunRefused({ reason: "budget_in_use", message }))
        }
        bound = runId
        return Effect.void
      }),
    report: (read) => {
      state = read
    },
    reading: Effect.sync(() => (state === undefined ? nothing : readingOf(state())))
  }
}

const nothing: Reading = Object.freeze({
  spent: Usd.zero,
  uncertain: Usd.zero,
  held: Usd.zero,
  remaining: null,
  calls: 0,
  inFlight: 0
})

const readingOf = ({ calls, cap, held, inFlight, spent, uncertain }: State): Reading =>
  Object.freeze({
    spent,
    uncertain,
    held,
    remaining: cap === null ? null : Usd.nano(Math.max(0, cap - spent - uncertain - held)),
    calls,
    inFlight
  })

const parse = (options: BudgetOptions): Either.Either<Limits, RunRefused> => {
  const { maxCalls, maxConcurrency, maxCostUsd, noCap, requestsPerMinute, tokensPerMinute } = options
  if (maxCostUsd !== undefined && noCap === true) return bad(`a cap of $${maxCostUsd} and "no cap" exclude each other`)
  const cap = maxCostUsd === undefined ? undefined : Usd.fromDollars(maxCostUsd)
  if (maxCostUsd !== undefined && cap === undefined) return bad(noAmount(maxCostUsd))
  if (maxCalls !== undefined && !isCount(maxCalls))
    return bad(`maxCalls must be a whole number from 0, not ${maxCalls}`)
  if (maxConcurrency !== undefined && !(isCount(maxConcurrency) && maxConcurrency > 0)) {
    return bad(`maxConcurrency must be a whole number from 1, not ${maxConcurrency}`)
  }
  for (const name of ["requestsPerMinute", "tokensPerMinute"] as const) {
    const perMinute = options[name]
    if (perMinute !== undefined && !(isCount(perMinute) && perMinute > 0))
      return bad(`${name} must be a whole number from 1, not ${perMinute}`)
  }
  return Either.right({
    cap: noCap === true ? null : cap,
    maxCalls,
    maxConcurrency,
    requestsPerMinute,
    tokensPerMinute
  })
}

const poolOf = ({ pool }: BudgetOptions): BudgetShape["pool"] => {
  if (pool === undefined) return Either.right(undefined)
  const cap = Usd.fromDollars(pool.maxCostUsd)
  return cap === undefined ? bad(noAmount(pool.maxCostUsd)) : Either.right({ id: pool.id, cap })
}

const noAmount = (dollars: number) => `a cap must be an amount in dollars from 0 to 9,000,000, not ${dollars}`
const isCount = (n: number): boolean => Number.isSafeInteger(n) && n >= 0
const bad = (message: string) => Either.left(new RunRefused({ reason: "bad_limit", message }))
