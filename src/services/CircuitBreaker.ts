/**
 * The health of one provider, shared by its runs: a breaker that opens after failures in a row, and the cool-down that a provider asked for.
 *
 * Only TRANSIENT and UNKNOWN failures count, so bad rows never open it; a rate limit does not count either: it has its own cool-down. While it is open,
 * admission waits; nothing fails because of it.
 *
 * @since 0.1.0
 */
import { Clock, Effect } from "effect"
import type { Provider } from "./Admission.ts"
import { CircuitOpen, type LLMError } from "./Errors.ts"
import type { LLMShape } from "./LLM.ts"

/**
 * `threshold` failures in a row open it for `coolMs` milliseconds; each failed probe doubles that, up to `maxCoolMs`. After `outageMs` without a success the runs
 * are told that it is an outage.
 *
 * @since 0.1.0
 */
export interface BreakerOptions {
  readonly threshold: number
  readonly coolMs: number
  readonly maxCoolMs: number
  readonly outageMs: number
}

/** @since 0.1.0 */
export const defaults: BreakerOptions = { threshold: 10, coolMs: 5_000, maxCoolMs: 60_000, outageMs: 600_000 }

/** @since 0.1.0 */
export interface State {
  readonly provider: Provider
  readonly failures: number
  readonly coolMs: number
  readonly openedAt: number
  readonly cause: LLMError | undefined
}

/** @since 0.1.0 */
export type Event =
  | { readonly _tag: "Succeeded" }
  | { readonly _tag: "Failed"; readonly error: LLMError; readonly at: number }
  | { readonly _tag: "Cooled" }

/** A closed breaker. @since 0.1.0 */
export const closed: State = { provider: "up", failures: 0, coolMs: 0, openedAt: 0, cause: undefined }

/**
 * The machine. Pure.
 *
 * @since 0.1.0
 */
export const transition = (options: BreakerOptions, state: State, event: Event): State => {
  switch (event._tag) {
    case "Succeeded":
      return closed
    case "Cooled":
      return state.provider === "down" ? { ...state, provider: "probing" } : state
    case "Failed":
      if (!counts(event.error)) return state
      if (state.provider === "probing") {
        return { ...state, provider: "down", coolMs: Math.min(state.coolMs * 2, options.maxCoolMs) }
      }
      if (state.failures + 1 < options.threshold || state.provider === "down")
        return { ...state, failures: state.failures + 1 }
      return {
        provider: "down",
        failures: state.failures + 1,
        coolMs: options.coolMs,
        openedAt: event.at,
        cause: event.error
      }
  }
}

const counts = (error: LLMError) => error.category !== "PERMANENT" && error.reason !== "rate_limited"

/** What a run is told. @since 0.1.0 */
export interface Listener {
  readonly provider: (provider: Provider, open: CircuitOpen | undefined) => void
  readonly cooling: (cooling: boolean) => void
  readonly outage: (open: CircuitOpen) => void
}

/** @since 0.1.0 */
export interface Health {
  readonly state: () => State
  readonly succeeded: Effect.Effect<void>
  readonly failed: (error: LLMError) => Effect.Effect<void>
  /** Subscribes; the result unsubscribes. */
  readonly listen: (listener: Listener) => () => void
}

const known = new WeakMap<LLMShape, Health>()

/**
 * The health of a provider: one value for all runs of this process that use it.
 *
 * @since 0.1.0
 */
export const of = (llm: LLMShape, options: BreakerOptions = defaults): Health => {
  const found = known.get(llm) ?? make(llm, options)
  known.set(llm, found)
  return found
}

const make = (llm: LLMShape, options: BreakerOptions): Health => {
  let state = closed
  let coolUntil = 0
  let cooling = false
  const listeners = new Set<Listener>()

  const circuitOpen = (error: LLMError) =>
    new CircuitOpen({ message: `${llm.provider} is failing: ${error.message}`, cause: error })

  const tell = (before: State): void => {
    if (state.provider === before.provider) return
    const open = state.cause === undefined ? undefined : circuitOpen(state.cause)
    for (const listener of listeners) listener.provider(state.provider, open)
  }

  const occur = (event: Event): Effect.Effect<void> =>
    Effect.suspend(() => {
      const before = state
      state = transition(options, before, event)
      tell(before)
      return state.provider === "down" && before.provider !== "down"
        ? Effect.forkDaemon(cool(state.coolMs))
        : Effect.void
    })

  const cool = (ms: number): Effect.Effect<void> =>
    Effect.gen(function* () {
      yield* Effect.sleep(ms)
      const now = yield* Clock.currentTimeMillis
      if (state.cause !== undefined && now - state.openedAt >= options.outageMs) {
        const open = circuitOpen(state.cause)
        for (const listener of listeners) listener.outage(open)
      }
      yield* occur({ _tag: "Cooled" })
    })

  const tellCooling = (now: boolean): void => {
    cooling = now
    for (const listener of listeners) listener.cooling(now)
  }

  /** A wish to wait concerns every caller of the provider; the longest wins. */
  const coolDown = (ms: number, now: number): Effect.Effect<void> => {
    if (now + ms <= coolUntil) return Effect.void
    coolUntil = now + ms
    tellCooling(true)
    const until = coolUntil
    const warm = Effect.sync(() => {
      if (coolUntil === until) tellCooling(false)
    })
    return Effect.asVoid(Effect.forkDaemon(Effect.delay(warm, ms)))
  }

  return {
    state: () => state,
    succeeded: Effect.suspend(() => (state.failures === 0 ? Effect.void : occur({ _tag: "Succeeded" }))),
    failed: (error) =>
      Effect.flatMap(Clock.currentTimeMillis, (at) =>
        Effect.zipRight(
          occur({ _tag: "Failed", error, at }),
          error.retryAfterMs === undefined ? Effect.void : coolDown(error.retryAfterMs, at)
        )
      ),
    listen: (listener) => {
      listeners.add(listener)
      if (state.provider !== "up") listener.provider(state.provider, undefined)
      if (cooling) listener.cooling(true)
      return () => void listeners.delete(listener)
    }
  }
}
