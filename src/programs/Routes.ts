/**
 * Where a run's calls go: the job's provider and model, and the job's fallback for when it cannot answer. Internal.
 *
 * @since 0.1.0
 */
import { Effect, Either, type Scope } from "effect"
import type { Provider } from "../services/Admission.ts"
import * as CircuitBreaker from "../services/CircuitBreaker.ts"
import { type CircuitOpen, type LLMError, RunRefused, type StopReason } from "../services/Errors.ts"
import { type ChatRequest, type LLMShape, request as makeRequest } from "../services/LLM.ts"
import type { Meter } from "../services/Meter.ts"

/**
 * Another model, and the name of the provider that has it: one of those that the LLM layer holds, by default the first.
 *
 * @since 0.1.0
 */
export interface Fallback {
  readonly model: string
  readonly provider?: string
}

/** One provider and model. @since 0.1.0 */
export interface Route {
  readonly llm: LLMShape
  readonly health: CircuitBreaker.Health
  /** The question as it is put to this route. */
  readonly asked: (request: ChatRequest) => ChatRequest
}

/** @since 0.1.0 */
export interface Routes {
  /** In the order of the job. */
  readonly all: ReadonlyArray<Route>
  /** The first that can be asked now, from this place on if there is any; `index` is its place. */
  readonly choose: (from: number) => { readonly route: Route; readonly index: number }
  /** A call there ended; only then it may be tried anew while it is not known to answer. */
  readonly ended: (route: Route) => void
  /** Whether there is another one behind this place. */
  readonly hasMore: (index: number) => boolean
  /** No call of this run can succeed there any more; false: nothing else is left. */
  readonly leave: (route: Route) => boolean
  readonly isLeft: (route: Route) => boolean
  /** Whether any of them answers. */
  readonly provider: () => Provider
}

/**
 * The routes of a run, or the name of the provider that is not there.
 *
 * @since 0.1.0
 */
export const make = (
  llm: LLMShape,
  fallback: ReadonlyArray<Fallback>,
  breaker: CircuitBreaker.BreakerOptions
): Either.Either<Routes, RunRefused> => {
  const shapes = [llm, ...(llm.others ?? [])]
  const routes = fallback.map(({ model, provider }) => {
    const shape = provider === undefined ? llm : shapes.find((one) => one.provider === provider)
    return shape === undefined
      ? Either.left(unknownProvider(provider ?? "", shapes))
      : Either.right(routeOf(shape, breaker, model))
  })
  return Either.map(Either.all(routes), (others) => over(routeOf(llm, breaker), others))
}

const unknownProvider = (name: string, shapes: ReadonlyArray<LLMShape>) =>
  new RunRefused({
    reason: "bad_fallback",
    message: `the job's fallback names provider ${name}, which is not there: it may be ${shapes.map((shape) => shape.provider).join(", ")} (LLM.several holds more than one)`
  })

const routeOf = (llm: LLMShape, breaker: CircuitBreaker.BreakerOptions, model?: string): Route => ({
  llm,
  health: CircuitBreaker.of(llm, breaker, model),
  asked: (request) => (model === undefined ? request : makeRequest({ ...request, model }))
})

const over = (first: Route, others: ReadonlyArray<Route>): Routes => {
  const all = [first, ...others]
  const left = new Set<Route>()
  const probed = new Set<Route>()
  const stateOf = (route: Route): Provider => (left.has(route) ? "down" : route.health.state().provider)
  const isLeft = (route: Route) => left.has(route)
  return {
    all,
    choose: (from) => {
      if (others.length === 0) return { route: first, index: 0 }
      const live = all.map((route, index) => ({ route, index })).filter(({ route }) => !left.has(route))
      const later = live.filter(({ index }) => index >= from)
      const mayAnswer = (route: Route) =>
        stateOf(route) === "up" || (stateOf(route) === "probing" && !probed.has(route))
      // With nothing that may answer, admission waits.
      const chosen = later.find(({ route }) => mayAnswer(route)) ?? later[0] ?? live[0] ?? { route: first, index: 0 }
      if (stateOf(chosen.route) === "probing") probed.add(chosen.route)
      return chosen
    },
    ended: (route) => void probed.delete(route),
    hasMore: (index) => all.some((route, i) => i > index && !left.has(route)),
    leave: (route) => {
      left.add(route)
      return left.size < all.length
    },
    isLeft,
    provider: () => {
      const states = all.map(stateOf)
      return states.includes("up") ? "up" : states.includes("probing") ? "probing" : "down"
    }
  }
}

/** What a run is told of its providers. @since 0.1.0 */
export interface Told {
  readonly provider: (provider: Provider, open: CircuitOpen | undefined) => void
  readonly left: (message: string) => void
}

/**
 * No call of this run can succeed on a route: the next one takes over, or the run stops.
 *
 * @since 0.1.0
 */
export const leave = (routes: Routes, meter: Meter, route: Route, reason: StopReason): void => {
  if (routes.leave(route)) meter.dispatch({ _tag: "Provider", provider: routes.provider() })
  else meter.stop(reason)
}

/**
 * Why a run stops on an error that concerns all its rows.
 *
 * @since 0.1.0
 */
export const stopOf = (error: LLMError): StopReason => ({ kind: "provider", message: error.message })

/**
 * Hands the providers' health on to the run's admission, and lets waiting calls go in time, for as long as the scope is open.
 *
 * @since 0.1.0
 */
export const watch = (routes: Routes, meter: Meter, told: Told): Effect.Effect<void, never, Scope.Scope> =>
  Effect.gen(function* () {
    yield* Effect.forkScoped(meter.ticking)
    for (const [index, route] of routes.all.entries()) {
      const unsubscribe = route.health.listen({
        provider: (_, open) => {
          const provider = routes.provider()
          if (provider === meter.state().provider) return
          meter.dispatch({ _tag: "Provider", provider })
          told.provider(provider, open)
        },
        cooling: (until) => meter.dispatch({ _tag: "Cool", until }),
        learned: (limits) => {
          if (index === 0) meter.dispatch({ _tag: "Learned", limits })
        },
        outage: (message) => {
          if (routes.isLeft(route)) return
          leave(routes, meter, route, { kind: "outage", message })
          if (meter.state().stop === null) told.left(message)
        }
      })
      yield* Effect.addFinalizer(() => Effect.sync(unsubscribe))
    }
  })
