/**
 * Time that a clock set anew does not change. What waits are compared by; records have the date's time. Internal.
 *
 * @since 0.1.0
 */
import { type Clock, Effect } from "effect"

/**
 * Milliseconds by a clock, from a beginning of its own.
 *
 * @since 0.1.0
 */
export const at = (clock: Clock.Clock): number => Number(clock.unsafeCurrentTimeNanos()) / 1e6

/**
 * The same, by the clock in force.
 *
 * @since 0.1.0
 */
export const now: Effect.Effect<number> = Effect.map(Effect.clock, at)
