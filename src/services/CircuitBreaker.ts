/**
 * The health of one provider, shared by its runs: a breaker that opens after failures in a row, the cool-down that a provider asked for, and what it says of its
 * limits.
 *
 * Only TRANSIENT and UNKNOWN failures count, so bad rows never open it; a rate limit does not count either: it has its own cool-down. While it is open,
 * admission waits; nothing fails because of it.
 *
 * @example
 * import { CircuitBreaker } from "longhaul"
 * const patient = CircuitBreaker.layer({ outageMs: 3_600_000 }) // waits an hour for the provider before the run is suspended
 *
 * @since 0.1.0
 */
import { Clock, Context, Effect, type Fiber, FiberId, Layer } from "effect"
import type { Provider } from "./Admission.ts"
import { CircuitOpen, isAnswered, isRateLimited, type LLMError } from "./Errors.ts"
import type { LLMShape, RateLimits } from "./LLM.ts"
import * as MonotonicTime from "./MonotonicTime.ts"
import type { Learned } from "./Throttle.ts"

/**
 * `threshold` failures in a row open it for `coolMs` milliseconds; each failed probe doubles that, up to `maxCoolMs`. After `outageMs` without a success the runs
 * are told that it is an outage; a provider that was never reached at all gets `unreachableMs`, as its address may be wrong. A provider that asks for more time
 * than `outageMs` has an outage at once.
 *
 * @since 0.1.0
 */
export interface BreakerOptions {
  readonly threshold: number
  readonly coolMs: number
  readonly maxCoolMs: number
  readonly outageMs: number
  readonly unreachableMs: number
}

/** @since 0.1.0 */
export const defaults: BreakerOptions = {
  threshold: 10,
  coolMs: 5_000,
  maxCoolMs: 60_000,
  outageMs: 600_000,
  unreachableMs: 30_000
}

/**
 * The options of the providers that are first used under it; {@link defaults} unless a layer says otherwise.
 *
 * @since 0.1.0
 */
export class Breaker extends Context.Reference<Breaker>()("longhaul/Breaker", {
  defaultValue: (): BreakerOptions => defaults
}) {}

/**
 * Other options than {@link defaults}.
 *
 * @since 0.1.0
 */
export const layer = (options: Partial<BreakerOptions>): Layer.Layer<never> =>
  Layer.succeed(Breaker, { ...defaults, ...options })

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

const counts = (error: LLMError) => error.category !== "PERMANENT" && !isRateLimited(error)

/** What a run is told. Times in milliseconds by the monotonic clock. @since 0.1.0 */
export interface Listener {
  readonly provider: (provider: Provider, open: CircuitOpen | undefined) => void
  readonly cooling: (until: number) => void
  readonly learned: (limits: Learned) => void
  /** No call can succeed for a long time, or, as `provider`, at all. */
  readonly outage: (kind: "outage" | "provider", message: string) => void
}

/** @since 0.1.0 */
export interface Health {
  readonly state: () => State
  /** How many calls it answered. */
  readonly answered: () => number
  /** `limits`: what the answer said of them. */
  readonly succeeded: (limits: RateLimits | undefined) => Effect.Effect<void>
  readonly failed: (error: LLMError) => Effect.Effect<void>
  /** Subscribes, and is told at once what it should know; the result unsubscribes. */
  readonly listen: (listener: Listener) => () => void
}

const known = new WeakMap<LLMShape, Map<string, Health>>()

/**
 * The health of a provider: one value for all runs of this process that use it. A model that serves as a fallback has one of its own: it may answer while the
 * provider's first model does not.
 *
 * @since 0.1.0
 */
export const of = (llm: LLMShape, options: BreakerOptions = defaults, model = ""): Health => {
  const models = known.get(llm) ?? new Map<string, Health>()
  known.set(llm, models)
  const found = models.get(model) ?? make(llm, options)
  models.set(model, found)
  return found
}

/** How long a provider is left alone that says 429 and not for how long, from the third such answer on; each further one doubles it. */
const FIRST_COOL = 1_000

/** A job whose first requests are all refused is stopped before it has failed every row. */
const MOST_REFUSED = 10

const make = (llm: LLMShape, options: BreakerOptions): Health => {
  let state = closed
  let answers = 0
  let everReached = false
  /** Requests refused as wrong before the first one was answered: then it is the job that is wrong. */
  let refused: number | undefined = 0
  let coolUntil = 0
  let learned: Learned = {}
  /** 429s since the last success: how many, when the first and the last of them came. */
  let limited = { times: 0, since: 0, last: 0 }
  let cooling: Fiber.RuntimeFiber<void> | undefined
  const listeners = new Set<Listener>()

  const circuitOpen = (error: LLMError) =>
    new CircuitOpen({ message: `${llm.provider} is failing: ${error.message}`, cause: error })
  const tellOutage = (message: string, kind: "outage" | "provider" = "outage"): void => {
    for (const listener of [...listeners]) listener.outage(kind, message)
  }

  const tell = (before: State): void => {
    if (state.provider === before.provider) return
    const open = state.cause === undefined ? undefined : circuitOpen(state.cause)
    for (const listener of [...listeners]) listener.provider(state.provider, open)
  }

  const occur = (event: Event): Effect.Effect<void> =>
    Effect.suspend(() => {
      const before = state
      state = transition(options, before, event)
      tell(before)
      return state.provider === "down" && before.provider !== "down" ? startCooling(state) : Effect.void
    })

  const startCooling = (opened: State): Effect.Effect<void> =>
    // It is begun where a call is closed, which nothing may interrupt.
    Effect.map(Effect.forkDaemon(Effect.interruptible(cool(opened))), (fiber) => {
      cooling = fiber
    })

  /** What was never reached may be a wrong address: that is found out soon. */
  const patience = (cause: LLMError): number =>
    !everReached && cause.reason === "connection" && cause.charge === "none" ? options.unreachableMs : options.outageMs

  const cool = (opened: State): Effect.Effect<void> =>
    Effect.gen(function* () {
      yield* Effect.sleep(opened.coolMs)
      // It closed meanwhile, and may have opened anew, with a wait of its own.
      if (state !== opened && (state.provider !== "down" || state.openedAt !== opened.openedAt)) return
      const now = yield* MonotonicTime.now
      const { cause, openedAt } = state
      if (cause !== undefined && now - openedAt >= patience(cause)) tellOutage(circuitOpen(cause).message)
      yield* occur({ _tag: "Cooled" })
    })

  /** A wish to wait concerns every caller of the provider; the longest wins. */
  const coolDown = (ms: number, now: number): Effect.Effect<void> =>
    Effect.map(Clock.currentTimeMillis, (wall) => {
      if (ms > options.outageMs) {
        tellOutage(`${llm.provider} asks to wait until ${new Date(Math.min(wall + ms, LAST_DATE)).toISOString()}`)
        return
      }
      // Also where it is no number.
      if (!(now + ms > coolUntil)) return
      coolUntil = now + ms
      for (const listener of [...listeners]) listener.cooling(coolUntil)
    })

  const crowded = (error: LLMError, now: number): Effect.Effect<void> => {
    // One that came long after the last is no part of it.
    const isNew = limited.times === 0 || now - limited.last > options.maxCoolMs + (error.retryAfterMs ?? 0)
    limited = isNew ? { times: 1, since: now, last: now } : { ...limited, times: limited.times + 1, last: now }
    if (now - limited.since >= options.outageMs) {
      tellOutage(`${llm.provider} takes no more calls: ${error.message}`)
      return Effect.void
    }
    // Calls that were under way when it began say nothing new.
    const blind = limited.times > 2 && now >= coolUntil
    const ms = error.retryAfterMs ?? (blind ? Math.min(FIRST_COOL * 2 ** (limited.times - 3), options.maxCoolMs) : 0)
    return ms > 0 ? coolDown(ms, now) : Effect.void
  }

  const learn = ({ requestsPerMinute, tokensPerMinute, waitMs }: RateLimits): Effect.Effect<void> =>
    Effect.suspend(() => {
      if (requestsPerMinute !== learned.requestsPerMinute || tokensPerMinute !== learned.tokensPerMinute) {
        learned = { requestsPerMinute, tokensPerMinute }
        for (const listener of [...listeners]) listener.learned(learned)
      }
      return waitMs === undefined
        ? Effect.void
        : Effect.flatMap(MonotonicTime.now, (now) => coolDown(Math.min(waitMs, options.outageMs), now))
    })

  const answered: Effect.Effect<void> = Effect.suspend(() => {
    answers++
    everReached = true
    if (limited.times > 0) limited = { times: 0, since: 0, last: 0 }
    return state.failures === 0 && state.provider === "up" ? Effect.void : occur({ _tag: "Succeeded" })
  })

  const refuse = (error: LLMError): void => {
    if (refused === undefined || error.reason !== "bad_request" || error.status === undefined) return
    refused++
    if (refused === MOST_REFUSED) tellOutage(`${llm.provider} refuses every request: ${error.message}`, "provider")
  }

  return {
    state: () => state,
    answered: () => answers,
    succeeded: (limits) =>
      Effect.suspend(() => {
        refused = undefined
        return limits === undefined ? answered : Effect.zipRight(learn(limits), answered)
      }),
    failed: (error) =>
      Effect.flatMap(MonotonicTime.now, (now) => {
        // Whatever it said, it was there.
        if (error.status !== undefined) everReached = true
        refuse(error)
        if (isAnswered(error)) return answered
        if (isRateLimited(error)) return crowded(error, now)
        const wish = error.category === "PERMANENT" ? undefined : error.retryAfterMs
        const failing = occur({ _tag: "Failed", error, at: now })
        return wish === undefined ? failing : Effect.zipRight(coolDown(wish, now), failing)
      }),
    listen: (listener) => {
      listeners.add(listener)
      // Nobody was there when it cooled down: the next call finds out.
      if (state.provider === "down" && cooling === undefined) state = { ...state, provider: "probing" }
      if (state.provider !== "up") listener.provider(state.provider, undefined)
      listener.cooling(coolUntil)
      listener.learned(learned)
      return () => {
        listeners.delete(listener)
        if (listeners.size > 0 || cooling === undefined) return
        // A timer without anybody to tell would only keep the process alive.
        cooling.unsafeInterruptAsFork(FiberId.none)
        cooling = undefined
      }
    }
  }
}

/** The last day that a date can say. */
const LAST_DATE = 8.64e15
