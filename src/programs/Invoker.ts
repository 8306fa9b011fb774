/**
 * The metered way to a model: what surrounds one question. Replay of an answer that was already paid for, memo, retry, breaker, admission, the provider. Built
 * once per run; an Agent needs it, so an unmetered call inside a run does not compile.
 *
 * @since 0.1.0
 */
import { Cause, Context, Deferred, Effect, Either, Exit, FiberId, Option, Schema } from "effect"
import type { CallRecord } from "../services/Book.ts"
import { isRateLimited, type LLMError, RunStopped, type StorageError } from "../services/Errors.ts"
import * as Identity from "../services/Identity.ts"
import { type ChatAnswer, type ChatRequest, answer as makeAnswer } from "../services/LLM.ts"
import type { Meter } from "../services/Meter.ts"
import * as Price from "../services/Price.ts"
import type * as Retry from "../services/Retry.ts"
import * as Telemetry from "../services/Telemetry.ts"
import type { TokenizerShape } from "../services/Tokenizer.ts"
import * as Usage from "../services/Usage.ts"
import { empty, isEmpty } from "./Judge.ts"
import * as Routes from "./Routes.ts"
import * as Tries from "./Tries.ts"

/**
 * Where a question belongs: the row, its epoch, and the question's number within the row (0, then one for each repair).
 *
 * @since 0.1.0
 */
export interface Turn {
  readonly seq: number
  readonly epoch: number
  readonly turn: number
}

/**
 * An answer with what its turn cost in this run, and whether it took a call in this epoch, be it one before a crash: `replay`: it stood in the book from an earlier
 * epoch; `memo`: an equal request was answered before. `fallback`: another model than the job's own answered.
 *
 * @since 0.1.0
 */
export interface Reply {
  readonly answer: ChatAnswer
  readonly usage: Usage.Usage
  readonly source: "call" | "replay" | "memo"
  readonly fallback: boolean
}

/** @since 0.1.0 */
export interface InvokerShape {
  readonly ask: (request: ChatRequest, turn: Turn) => Effect.Effect<Reply, LLMError | RunStopped | StorageError>
}

/**
 * The metered model.
 *
 * @since 0.1.0
 */
export class Invoker extends Context.Tag("longhaul/Invoker")<Invoker, InvokerShape>() {}

/** @since 0.1.0 */
export interface InvokerOptions {
  readonly routes: Routes.Routes
  readonly switch: Routes.Switch
  readonly meter: Meter
  /** What a request counts for a limit of tokens a minute. */
  readonly tokenizer: TokenizerShape
  readonly prices: ReadonlyArray<Price.PriceRow>
  /** The time by which a price row must have begun, in milliseconds since 1970. */
  readonly now: number
  readonly retry: Retry.RetryPolicy
  /** Answers equal requests of one run once, for at most this many requests. 0: off. */
  readonly memo: number
  /** Calls of rows that have no outcome yet, from the book. */
  readonly openCalls: ReadonlyArray<CallRecord>
  /** Rows run again whose older answers may still serve, each with its new epoch. */
  readonly reused: ReadonlyMap<number, number>
  /** One span for each call. */
  readonly spans: boolean
}

/**
 * The invoker of one run.
 *
 * @since 0.1.0
 */
export const make = (options: InvokerOptions): InvokerShape => {
  const { meter, routes } = options
  const past = pastOf(options.openCalls, options.reused)
  const memo = new Map<string, Reply>()
  const flights = new Map<string, Effect.Effect<void>>()
  const priceOf = priceFinder(options)
  /** Cuts a back-off short when the run stops. */
  const stopped = Effect.flatMap(meter.stopped, (reason) => new RunStopped({ reason }))

  const physical = ({ llm }: Routes.Route, request: ChatRequest) => {
    if (!options.spans) return llm.generate(request)
    const span = Telemetry.callSpan(llm, request)
    return llm.generate(request).pipe(
      Effect.tap((answer) => Effect.annotateCurrentSpan(Telemetry.answered(answer))),
      Effect.tapError(({ reason }) => Effect.annotateCurrentSpan("error.type", reason)),
      Effect.withSpan(span.name, span.options)
    )
  }

  /** The run and the provider's health hear how a call ended before its permit and its money go to the next one. */
  const heard =
    (route: Routes.Route, model: string, tries: Tries.Tries) =>
    (exit: Exit.Exit<ChatAnswer, LLMError>): Effect.Effect<void> => {
      Telemetry.called(route.llm, model, meter.now() - tries.begunAt, exit)
      // An empty answer is the row's trouble, not the provider's: it answered.
      if (Exit.isSuccess(exit)) return route.health.succeeded(exit.value.limits)
      const error = Option.getOrUndefined(Cause.failureOption(exit.cause))
      if (error === undefined) return Effect.void
      // It answered: the model wrote what does not fit.
      if (isSpoiled(error)) return route.health.succeeded(undefined)
      return error.scope === "run"
        ? Effect.sync(() => options.switch.leave(route, Routes.stopOf(error)))
        : route.health.failed(error)
    }

  /** Counted only where there is a limit: a tokenizer takes its time. */
  const tokensOf = ({ llm }: Routes.Route, request: ChatRequest): number => {
    if (meter.state().throttle.tokens.perMinute === null) return 0
    const estimate = options.tokenizer.estimate(request)
    const input = Number.isFinite(estimate) && estimate >= 0 ? estimate : Price.inputBound(request)
    return llm.countsOutputLimit === true ? Math.max(input, request.maxOutputTokens) : input + request.maxOutputTokens
  }

  /** One physical call; `undefined`: it was not sent, as the run goes elsewhere by now. An empty answer fails here, after it was settled, so that it is tried again. */
  const once = Effect.fnUntraced(function* (route: Routes.Route, request: ChatRequest, turn: Turn, tries: Tries.Tries) {
    const { priceFactor = 1 } = route.llm
    const price = yield* priceOf(request.model, priceFactor)
    const call = {
      ...turn,
      attempt: tries.attempt,
      request: yield* placedHash(route, request),
      model: request.model,
      amount: Price.hold(price, request, request.tier ?? route.llm.standardTier),
      price,
      tokens: tokensOf(route, request),
      refunds: route.llm.countsOutputLimit !== true,
      steers: () => route === routes.current(),
      isStale: () => routes.isAway(route),
      bill: (answer: ChatAnswer) => Price.bill(price, request, answer, (model) => priceOf.find(model, priceFactor))
    }
    const send = () => {
      tries.begunAt = meter.now()
      return physical(route, request)
    }
    const paid = yield* meter.call(call, send, heard(route, request.model, tries))
    if (paid === undefined) return undefined
    const { answer, cost } = paid
    if (cost !== null) Telemetry.paid(route.llm, request.model, cost)
    const usage = cost === null || answer.usage === undefined ? Usage.zero : Usage.make({ ...answer.usage, cost })
    if (isEmpty(answer, request)) return yield* empty
    const reply: Reply = { answer, usage, source: "call", fallback: route !== routes.all[0] }
    return reply
  })

  /** The same model may stand behind two routes, and what one answered is not the other's. */
  const placedHash = (route: Routes.Route, request: ChatRequest) =>
    Effect.map(requestHash(request), (hash) => (route === routes.all[0] ? hash : `${hash}@${route.llm.provider}`))

  const sleep = (driver: Tries.Driver, error: LLMError) => Effect.raceFirst(Effect.option(driver.next(error)), stopped)
  const patiently = (tries: Tries.Tries, error: LLMError) =>
    Effect.as(
      Effect.flatMap(tries.uncounted, (driver) => sleep(driver, error)),
      true
    )

  /** Waits for the next try of a turn; false: there is none. */
  const again = Effect.fnUntraced(function* (error: LLMError, route: Routes.Route, tries: Tries.Tries) {
    if (error.category === "PERMANENT") return false
    if (routes.isAway(route)) return true
    const { health } = route
    const begun = meter.now()
    tries.ownMs += begun - tries.begunAt
    if (isRateLimited(error)) {
      // Others were answered meanwhile: then it is the row, or a row that no minute has room for.
      const isOwn = health.answered() > tries.answered
      tries.answered = health.answered()
      if ((isOwn || error.charge !== "none") && ++tries.limited >= MOST_FAILED) return false
      return yield* patiently(tries, error)
    }
    // While the provider is down the wait is admission's, or this row's own where the run goes elsewhere; what was tried does not count.
    if (health.state().provider === "down") {
      tries.reset()
      return route === routes.current() || (yield* patiently(tries, error))
    }
    if (tries.streak() === 0) tries.before = Math.max(0, health.state().failures - 1)
    tries.failed++
    if (tries.failed >= (isSpoiled(error) ? MOST_SPOILED : MOST_FAILED)) return false
    const counted = Option.isSome(yield* sleep(yield* tries.counted, error))
    tries.ownMs += meter.now() - begun
    if (counted) return tries.ownMs < options.retry.deadlineMs
    // Others fail as well and none was answered since: that looks like the provider, and the breaker will tell.
    if (health.state().failures - tries.before <= tries.streak()) return false
    return yield* patiently(tries, error)
  })

  /** Tries until an answer, a lasting error on every route, or the stop of the run. */
  const insist = Effect.fnUntraced(function* (request: ChatRequest, turn: Turn, before: number) {
    const tries = Tries.make(options.retry, before)
    const spent = new Set<Routes.Route>()
    let last: LLMError | undefined
    let asked: Routes.Route | undefined
    while (true) {
      options.switch.refresh()
      const route = routes.next(spent)
      if (route === undefined) {
        // The routes that are left are away: for good, so that this is the row's end, or for some minutes, or the run stops.
        const back = routes.backAt(spent) ?? Number.POSITIVE_INFINITY
        if (back === Number.POSITIVE_INFINITY && last !== undefined) return yield* last
        yield* Effect.raceFirst(Effect.sleep(Math.min(MOST_WAIT, Math.max(1, back - meter.now()))), stopped)
        continue
      }
      // What failed elsewhere says nothing of this one.
      if (route !== asked) tries.reset()
      asked = route
      const tried = yield* eitherLLMError(once(route, route.asked(request), turn, tries))
      if (Either.isRight(tried)) {
        if (tried.right !== undefined) return tried.right
        continue
      }
      tries.attempt++
      const error = tried.left
      if (error.scope === "run") {
        // The route was left, or with the last one the run.
        if (meter.state().stop !== null) return yield* new RunStopped({ reason: Routes.stopOf(error) })
      } else if (!(yield* again(error, route, tries))) {
        spent.add(route)
        last = error
      }
    }
  })

  /** Of rows that ask the same at one time one is answered, and the others by its answer. */
  const remembered = <E>(hash: string, seq: number, before: number, own: Effect.Effect<Reply, E>): typeof own =>
    Effect.uninterruptibleMask((restore) =>
      Effect.suspend(() => {
        const known = memo.get(hash)
        // A turn that was called before, in a process that died of it, did take a call.
        const source = before > 0 ? "call" : "memo"
        if (known !== undefined) return Effect.succeed<Reply>({ ...known, usage: Usage.zero, source })
        const flight = flights.get(hash)
        if (flight !== undefined)
          return Effect.zipRight(apart(seq, restore(flight)), restore(remembered(hash, seq, before, own)))
        if (memo.size >= options.memo) return restore(own)
        const landed = Deferred.unsafeMake<void>(FiberId.none)
        flights.set(hash, Deferred.await(landed))
        return restore(own).pipe(
          Effect.tap((reply) => Effect.sync(() => memo.set(hash, reply))),
          Effect.ensuring(
            Effect.sync(() => {
              flights.delete(hash)
              Deferred.unsafeDone(landed, Effect.void)
            })
          )
        )
      })
    )

  /** A row that waits for another one's answer gives no room back, so for admission it is not there. */
  const apart = (seq: number, wait: Effect.Effect<void>): Effect.Effect<void> =>
    Effect.suspend(() => {
      meter.dispatch({ _tag: "Leave", seq })
      return Effect.ensuring(
        wait,
        Effect.sync(() => meter.dispatch({ _tag: "Enter", seq }))
      )
    })

  const ask: InvokerShape["ask"] = Effect.fnUntraced(function* (request, turn) {
    const before = past.get(placeOf(turn))
    if (before !== undefined) {
      for (const route of routes.all) {
        const hash = yield* placedHash(route, route.asked(request))
        const paid = before.answers.get(hash)
        before.answers.delete(hash)
        if (paid !== undefined) return { ...paid, fallback: route !== routes.all[0] }
      }
    }
    const calls = before?.calls ?? 0
    const own = insist(request, turn, calls)
    return yield* options.memo > 0 ? remembered(yield* requestHash(request), turn.seq, calls, own) : own
  })
  if (!options.spans) return { ask }
  return {
    ask: (request, turn) =>
      Effect.withSpan(ask(request, turn), "longhaul.turn", {
        attributes: { "longhaul.row.seq": turn.seq, "longhaul.turn": turn.turn },
        captureStackTrace: false
      })
  }
}

/** A turn does not fail more often than this in one process, outages aside: each of these calls may have been billed. */
const MOST_FAILED = 20
/** How long a row looks away at most, in milliseconds, while no route is there. */
const MOST_WAIT = 60_000
/** An answer that is empty, or that the server itself found not to fit, is bought once more and not again. */
const MOST_SPOILED = 2

/** The fault of what the model wrote, and not of the way or the provider. */
const isSpoiled = ({ charge, reason, status }: LLMError): boolean =>
  reason === "invalid_response" && (charge === "known" || (status !== undefined && status >= 400))

/**
 * A failed call as data; the stop of the run and a broken book stay errors.
 *
 * @since 0.1.0
 */
export const eitherLLMError = <A, R>(
  call: Effect.Effect<A, LLMError | RunStopped | StorageError, R>
): Effect.Effect<Either.Either<A, LLMError>, RunStopped | StorageError, R> =>
  call.pipe(
    Effect.map((value): Either.Either<A, LLMError> => Either.right(value)),
    Effect.catchTag("LLMError", (error) => Effect.succeed(Either.left(error)))
  )

/**
 * The hash of a request as rendered: the same request has the same hash in every process.
 *
 * @since 0.1.0
 */
export const requestHash = (request: ChatRequest): Effect.Effect<string> =>
  Effect.suspend(() => {
    const known = hashes.get(request)
    if (known !== undefined) return Effect.succeed(known)
    const { format } = request
    const short = format.mode === "json_schema" ? { ...format, schema: schemaHash(format.schema) } : format
    return Effect.map(Effect.orDie(Identity.stableHash({ ...request, format: short }, 32)), (hash) => {
      hashes.set(request, hash)
      return hash
    })
  })

/** A request is frozen, and hashed twice: for the row's key, and when it is asked. */
const hashes = new WeakMap<ChatRequest, string>()
/** A schema is one object for all rows of an agent. */
const schemaHashes = new WeakMap<object, string>()
const schemaHash = (schema: object): string => {
  const hash = schemaHashes.get(schema) ?? Either.getOrThrow(Identity.stableHash(schema))
  schemaHashes.set(schema, hash)
  return hash
}

const placeOf = ({ epoch, seq, turn }: Turn) => `${seq}/${epoch}/${turn}`

interface Past {
  calls: number
  readonly answers: Map<string, Reply>
}

/** What the book says of each turn that has no outcome yet: how often it was asked, and the answers that came. */
const pastOf = (calls: ReadonlyArray<CallRecord>, reused: ReadonlyMap<number, number>): ReadonlyMap<string, Past> => {
  const past = new Map<string, Past>()
  for (const call of calls) {
    const epoch = reused.get(call.seq) ?? call.epoch
    const place = placeOf({ ...call, epoch })
    const found = past.get(place) ?? { calls: 0, answers: new Map() }
    past.set(place, found)
    if (call.epoch === epoch) found.calls++
    if (call.answer !== null) found.answers.set(call.request, replyOf(call, epoch))
  }
  return past
}

const replyOf = (call: CallRecord, epoch: number): Reply => ({
  answer: decodeAnswer(call),
  usage: usageOf(call),
  // A call of this epoch was counted when it was sent.
  source: call.epoch === epoch ? "call" : "replay",
  fallback: false
})

const usageOf = (call: CallRecord): Usage.Usage => (call.state === "settled" ? Usage.make(call) : Usage.zero)

/** An answer as it stands in the book. @since 0.1.0 */
export const StoredAnswer = Schema.parseJson(
  Schema.Struct({
    text: Schema.String,
    refusal: Schema.optional(Schema.String),
    finish: Schema.String,
    model: Schema.String
  })
)
const decodeStored = Schema.decodeUnknownSync(StoredAnswer)

const decodeAnswer = (call: CallRecord): ChatAnswer => {
  const { finish, model, refusal, text } = decodeStored(call.answer)
  return makeAnswer({ text, model, usage: undefined, finish, refusal, requestId: call.requestId ?? undefined })
}

/** The price row of a model; without one a run under a cap stops. `find` looks for the price of a model that answered. */
const priceFinder = ({ now, prices, meter }: InvokerOptions) => {
  const found = new Map<string, Price.PriceRow | undefined>()
  const find = (model: string, factor: number): Price.PriceRow | undefined => {
    const key = `${factor} ${model}`
    if (!found.has(key)) {
      const listed = Option.getOrUndefined(Price.find(prices, model, now))
      const row = listed === undefined || Price.problem(listed) !== undefined ? undefined : listed
      found.set(key, row === undefined || factor === 1 ? row : Price.times(row, factor))
    }
    return found.get(key)
  }
  const priceOf = (model: string, factor: number): Effect.Effect<Price.PriceRow, RunStopped> =>
    Effect.suspend(() => {
      const known = find(model, factor)
      if (known !== undefined) return Effect.succeed(known)
      if (meter.state().cap === null) return Effect.succeed(Price.free(model))
      const reason = { kind: "unpriced" as const, message: unpriced(model) }
      meter.stop(reason)
      return Effect.fail(new RunStopped({ reason }))
    })
  return Object.assign(priceOf, { find })
}

/**
 * What an operator reads when a model has no price under a cap.
 *
 * @since 0.1.0
 */
export const unpriced = (model: string): string =>
  `model ${model} has no price, so a cap cannot be held: give its price with Price.layer, or run without a cap`
