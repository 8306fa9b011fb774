/**
 * When a failed call is tried again. A `Schedule` over the error, so that a user's own policy is one line.
 *
 * @example
 * import { Schedule } from "effect"
 * import { Retry } from "longhaul"
 * const patient = Retry.policy({ attempts: 8, base: "2 seconds", longest: "2 minutes" })
 *
 * @since 0.1.0
 */
import { Duration, Schedule } from "effect"
import type { LLMError } from "./Errors.ts"

/** Decides by the error whether and when to try again. @since 0.1.0 */
export type RetryPolicy = Schedule.Schedule<unknown, LLMError>

/**
 * Exponential from `base` with jitter (0.8 to 1.2), never above `longest`, at least the provider's own wish, at most `attempts` calls in all. A PERMANENT error
 * is never tried again.
 *
 * @since 0.1.0
 */
export const policy = (options: {
  readonly attempts: number
  readonly base: Duration.DurationInput
  readonly longest: Duration.DurationInput
}): RetryPolicy =>
  Schedule.exponential(options.base, 2).pipe(
    Schedule.jittered,
    Schedule.union(Schedule.spaced(options.longest)),
    Schedule.zipRight(Schedule.identity<LLMError>()),
    Schedule.modifyDelay((error, delay) => Duration.max(delay, Duration.millis(error.retryAfterMs ?? 0))),
    Schedule.intersect(Schedule.recurs(options.attempts - 1)),
    Schedule.whileInput((error: LLMError) => error.category !== "PERMANENT")
  )

/**
 * Five calls in all, half a second to half a minute apart.
 *
 * @since 0.1.0
 */
export const standard: RetryPolicy = policy({ attempts: 5, base: "500 millis", longest: "30 seconds" })
