/**
 * Where a run's calls go: the job's provider and model, and the job's fallback for when it cannot answer. Internal.
 *
 * The run goes to the first route that is not away. A route is away for good when no call of the run can succeed there (key, quota, model, a long outage), and for some
 * minutes when its breaker opens and another one is there. A row that one route has given up on goes on to the next one by itself.
 *
 * @since 0.1.0
 */
import { Effect, Either, type Scope } from "effect"
import type { Provider } from "../services/Admission.ts"
import * as CircuitBreaker from "../services/CircuitBreaker.ts"
import { type CircuitOpen, type LLMError, RunRefused, type StopReason } from "../services/Errors.ts"
import { type ChatRequest, type LLMShape, request as makeRequest, type ResponseFormat } from "../services/LLM.ts"
import type { Meter } from "../services/Meter.ts"
import * as OutputAdapter from "../services/OutputAdapter.ts"

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

/** Times in milliseconds by the run's monotonic clock. @since 0.1.0 */
export interface Routes {
  /** In the order of the job. */
  readonly all: ReadonlyArray<Route>
  /** Where the run goes now. */
  readonly current: () => Route
  readonly isAway: (route: Route) => boolean
  /** Nothing goes there until then (`Infinity`: for good); false: there is no other one. */
  readonly leave: (route: Route, until: number) => boolean
  /** The first one that can be asked now and is none of these. */
  readonly next: (spent: ReadonlySet<Route>) => Route | undefined
  /** When one that is none of these comes back. */
  readonly backAt: (spent: ReadonlySet<Route>) => number | undefined
}

/** A longer cool-down is not waited for where another route is there, in milliseconds. */
const LONG_WAIT = 30_000
/** How long a route is left alone whose breaker opened, while another one answers. */
const AWAY = 300_000

/**
 * The routes of a run, or the name of the provider that is not there.
 *
 * @since 0.1.0
 */
export const make = (
  llm: LLMShape,
  fallback: ReadonlyArray<Fallback>,
  breaker: CircuitBreaker.BreakerOptions,
  now: () => number
): Either.Either<Routes, RunRefused> => {
  const shapes = [llm, ...(llm.others ?? [])]
  const routes = fallback.map(({ model, provider }) => {
    const shape = provider === undefined ? llm : shapes.find((one) => one.provider === provider)
    return shape === undefined
      ? Either.left(unknownProvider(provider ?? "", shapes))
      : Either.right({ llm: shape, health: CircuitBreaker.of(shape, breaker, model), asked: asker(llm, shape, model) })
  })
  const first: Route = { llm, health: CircuitBreaker.of(llm, breaker), asked: (request) => request }
  return Either.map(Either.all(routes), (others) => over(first, others, now))
}

const unknownProvider = (name: string, shapes: ReadonlyArray<LLMShape>) =>
  new RunRefused({
    reason: "bad_fallback",
    message: `the job's fallback names provider ${name}, which is not there: it may be ${shapes.map((shape) => shape.provider).join(", ")} (LLM.several holds more than one)`
  })

/** One request for each of the run's, so that it is hashed once. A tier is the first provider's word. */
const asker = (first: LLMShape, llm: LLMShape, model: string): Route["asked"] => {
  const known = new WeakMap<ChatRequest, ChatRequest>()
  return (request) => {
    const found = known.get(request)
    if (found !== undefined) return found
    const { tier, ...rest } = request
    const kept = llm === first && tier !== undefined ? { ...rest, tier } : rest
    const asked = makeRequest({ ...inMode(kept, llm.outputMode ?? "json_schema"), model })
    known.set(request, asked)
    return asked
  }
}

/** A server without schemas is told of it in the prompt. */
const inMode = (request: ChatRequest, mode: ResponseFormat["mode"]): ChatRequest => {
  const { format } = request
  if (format.mode !== "json_schema" || mode === "json_schema") return request
  const adapter = OutputAdapter.of(mode)
  const [system, ...rest] = request.messages
  const instructions = adapter.instructions(format.schema) ?? ""
  const messages =
    system?.role === "system"
      ? [{ ...system, content: `${system.content}\n\n${instructions}` }, ...rest]
      : [{ role: "system" as const, content: instructions }, ...request.messages]
  return { ...request, messages, format: adapter.format(format.name, format.schema) }
}

const over = (first: Route, others: ReadonlyArray<Route>, now: () => number): Routes => {
  const all = [first, ...others]
  const away = new Map<Route, number>()
  const isAway = (route: Route) => (away.get(route) ?? 0) > now()
  const next = (spent: ReadonlySet<Route>) => all.find((route) => !isAway(route) && !spent.has(route))
  return {
    all,
    current: () => next(new Set()) ?? first,
    isAway,
    leave: (route, until) => {
      away.set(route, until)
      if (all.some((one) => !isAway(one))) return true
      // Better one that may be ill than none.
      for (const [one, back] of away) if (back !== Number.POSITIVE_INFINITY) away.delete(one)
      return all.some((one) => !isAway(one))
    },
    next,
    backAt: (spent) => {
      const times = all.flatMap((route) => (spent.has(route) ? [] : [away.get(route) ?? 0]))
      const back = Math.min(...times)
      return back === Number.POSITIVE_INFINITY ? undefined : back
    }
  }
}

/** What a run is told of its providers. @since 0.1.0 */
export interface Told {
  readonly provider: (provider: Provider, open: CircuitOpen | undefined) => void
  readonly left: (message: string) => void
}

/** Keeps a run's admission in step with the route that it goes to. @since 0.1.0 */
export interface Switch {
  /** No call of this run can succeed there: the next one takes over, or the run stops. */
  readonly leave: (route: Route, reason: StopReason) => void
  /** One that was away may be back. */
  readonly refresh: () => void
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
export const watch = (routes: Routes, meter: Meter, told: Told): Effect.Effect<Switch, never, Scope.Scope> =>
  Effect.gen(function* () {
    yield* Effect.forkScoped(meter.ticking)
    let active = routes.current()
    const subscriptions = new Map<Route, () => void>()
    const subscribe = (route: Route): void => {
      subscriptions.get(route)?.()
      subscriptions.set(route, route.health.listen(listenerOf(route)))
    }

    const refresh = (): void => {
      if (routes.all.length === 1 || routes.current() === active) return
      active = routes.current()
      meter.dispatch({ _tag: "Rerouted" })
      // What it is told anew is what the new one says of itself.
      subscribe(active)
    }
    const leaveUntil = (route: Route, until: number, reason: StopReason): void => {
      if (routes.isAway(route) && until !== Number.POSITIVE_INFINITY) return
      if (routes.leave(route, until)) {
        refresh()
        told.left(reason.message)
      } else meter.stop(reason)
    }
    const listenerOf = (route: Route): CircuitBreaker.Listener => ({
      provider: (provider, open) => {
        if (route !== active) return
        const others = new Set([route])
        if (provider === "down" && routes.next(others) !== undefined) {
          leaveUntil(route, meter.now() + AWAY, { kind: "outage", message: open?.message ?? "the provider is failing" })
          return
        }
        meter.dispatch({ _tag: "Provider", provider })
        told.provider(provider, open)
      },
      cooling: (until) => {
        if (route !== active) return
        const ms = until - meter.now()
        if (ms > LONG_WAIT && routes.next(new Set([route])) !== undefined) {
          const message = `${route.llm.provider} asks to wait for ${Math.ceil(ms / 1000)} s`
          leaveUntil(route, until, { kind: "outage", message })
        } else meter.dispatch({ _tag: "Cool", until })
      },
      learned: (limits) => {
        if (route === active) meter.dispatch({ _tag: "Learned", limits })
      },
      outage: (kind, message) => leaveUntil(route, Number.POSITIVE_INFINITY, { kind, message })
    })

    for (const route of routes.all) subscribe(route)
    yield* Effect.addFinalizer(() =>
      Effect.sync(() => {
        for (const unsubscribe of subscriptions.values()) unsubscribe()
      })
    )
    return { leave: (route, reason) => leaveUntil(route, Number.POSITIVE_INFINITY, reason), refresh }
  })
