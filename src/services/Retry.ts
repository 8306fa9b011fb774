/**
 * When a failed call is tried again. A `Schedule` over the error, so that a user's own policy is one line, and a deadline over all tries of a turn.
 *
 * What is not here, because it is the provider's and not the row's: the wait that a provider asks for (a cool-down for all), an outage, and the share of retries among all calls
 * (see Throttle). Tries that a rate limit or an outage refused do not count.
 *
 * @example
 * import { Schedule } from "effect"
 * import { Retry } from "longhaul"
 * const patient = Retry.policy({ attempts: 8, base: "2 seconds", longest: "2 minutes" })
 * const own = Retry.make(Schedule.recurs(2), { deadline: "1 minute" })
 *
 * @since 0.1.0
 */
import { Duration, Schedule } from "effect"
import type { LLMError } from "./Errors.ts"

/**
 * `schedule` decides by the error whether and when to try again; it is not asked about a PERMANENT error, which is never tried again. No try begins once `deadlineMs` milliseconds have gone by in
 * calls and back-offs of one turn; waits in admission do not count.
 *
 * @since 0.1.0
 */
export interface RetryPolicy {
  readonly schedule: Schedule.Schedule<unknown, LLMError>
  readonly deadlineMs: number
}

const DEADLINE: Duration.DurationInput = "15 minutes"

/**
 * A policy of a schedule of one's own.
 *
 * @since 0.1.0
 */
export const make = (
  schedule: Schedule.Schedule<unknown, LLMError>,
  options: { readonly deadline?: Duration.DurationInput | undefined } = {}
): RetryPolicy => ({
  schedule,
  deadlineMs: Duration.toMillis(options.deadline ?? DEADLINE)
})

/**
 * Exponential from `base` with jitter (0.8 to 1.2), never above `longest`, at most `attempts` calls in all, within `deadline`
 * (default 15 minutes).
 *
 * @since 0.1.0
 */
export const policy = (options: {
  readonly attempts: number
  readonly base: Duration.DurationInput
  readonly longest: Duration.DurationInput
  readonly deadline?: Duration.DurationInput
}): RetryPolicy =>
  make(Schedule.intersect(backOff(options.base, options.longest), Schedule.recurs(options.attempts - 1)), options)

const backOff = (base: Duration.DurationInput, longest: Duration.DurationInput): Schedule.Schedule<unknown> =>
  Schedule.exponential(base, 2).pipe(Schedule.jittered, Schedule.union(Schedule.spaced(longest)))

/**
 * Five calls in all, half a second to half a minute apart.
 *
 * @since 0.1.0
 */
export const standard: RetryPolicy = policy({ attempts: 5, base: "500 millis", longest: "30 seconds" })

/**
 * Between tries that do not count: for ever, half a second to half a minute apart; the provider's wish is a cool-down for all. It ends when the provider answers, or
 * as an outage.
 *
 * @since 0.1.0
 */
export const uncounted: Schedule.Schedule<unknown, LLMError> = backOff("500 millis", "30 seconds")
