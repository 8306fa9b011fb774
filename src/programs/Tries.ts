/**
 * The tries of one turn: how many failed, how long they took, what the policy says of the next one. Internal to the Invoker.
 *
 * @since 0.1.0
 */
import { Effect, Schedule } from "effect"
import type { LLMError } from "../services/Errors.ts"
import * as Retry from "../services/Retry.ts"

/** @since 0.1.0 */
export type Driver = Schedule.ScheduleDriver<unknown, LLMError>

/** `ownMs`: the time that its calls and back-offs took. @since 0.1.0 */
export interface Tries {
  attempt: number
  begunAt: number
  ownMs: number
  failed: number
  /** Refusals for the rate while others were answered, and how many had been answered at the last one. */
  limited: number
  answered: number
  /** The provider's failures in a row before this turn's own. */
  before: number
  /** The drivers of the policy and of tries that do not count, made when they are needed. */
  readonly counted: Effect.Effect<Driver>
  readonly uncounted: Effect.Effect<Driver>
  readonly reset: () => void
  /** Failures since the policy began anew. */
  readonly streak: () => number
}

/**
 * The tries of a turn that was asked `attempt` times before.
 *
 * @since 0.1.0
 */
export const make = (retry: Retry.RetryPolicy, attempt: number): Tries => {
  const counted = madeLate(retry.schedule)
  let counts = 0
  const tries: Tries = {
    attempt,
    begunAt: 0,
    ownMs: 0,
    failed: 0,
    limited: 0,
    answered: Number.POSITIVE_INFINITY,
    before: 0,
    counted: counted.driver,
    uncounted: madeLate(Retry.uncounted).driver,
    reset: () => {
      counted.forget()
      tries.ownMs = 0
      tries.answered = Number.POSITIVE_INFINITY
      counts = tries.failed
    },
    streak: () => tries.failed - counts
  }
  return tries
}

/** A driver that is made when it is first asked for: most turns need none. */
const madeLate = (schedule: Schedule.Schedule<unknown, LLMError>) => {
  let made: Driver | undefined
  const driver: Effect.Effect<Driver> = Effect.suspend(() =>
    made === undefined
      ? Effect.tap(Schedule.driver(schedule), (one) => Effect.sync(() => (made = one)))
      : Effect.succeed(made)
  )
  return {
    driver,
    forget: () => {
      made = undefined
    }
  }
}
