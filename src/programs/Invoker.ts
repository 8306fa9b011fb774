/**
 * The metered way to a model: what surrounds one question. Replay of an answer that was already paid for, memo, retry, breaker, admission, the provider. Built
 * once per run; an Agent needs it, so an unmetered call inside a run does not compile.
 *
 * @since 0.1.0
 */
import { Cause, Context, Deferred, Effect, Either, Exit, FiberId, Option, Schedule, Schema } from "effect"
import type { CallRecord } from "../services/Book.ts"
import type { Health } from "../services/CircuitBreaker.ts"
import { LLMError, RunStopped, type StopReason, type StorageError } from "../services/Errors.ts"
import * as Identity from "../services/Identity.ts"
import { type ChatAnswer, type ChatRequest, type LLMShape, answer as makeAnswer } from "../services/LLM.ts"
import type { Meter } from "../services/Meter.ts"
import * as Price from "../services/Price.ts"
import type { RetryPolicy } from "../services/Retry.ts"
import * as Usage from "../services/Usage.ts"

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
 * epoch; `memo`: an equal request was answered before.
 *
 * @since 0.1.0
 */
export interface Reply {
  readonly answer: ChatAnswer
  readonly usage: Usage.Usage
  readonly source: "call" | "replay" | "memo"
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
  readonly llm: LLMShape
  readonly meter: Meter
  readonly health: Health
  readonly prices: ReadonlyArray<Price.PriceRow>
  /** The time by which a price row must have begun, in milliseconds since 1970. */
  readonly now: number
  readonly retry: RetryPolicy
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
  const { health, llm, meter } = options
  const past = pastOf(options.openCalls, options.reused)
  const memo = new Map<string, ChatAnswer>()
  const flights = new Map<string, Effect.Effect<void>>()
  const priceOf = priceFinder(options)
  /** Cuts a back-off short when the run stops. */
  const stopped = Effect.flatMap(meter.stopped, (reason) => new RunStopped({ reason }))

  const physical = (request: ChatRequest) =>
    options.spans
      ? Effect.withSpan(llm.generate(request), "longhaul.call", {
          attributes: { model: request.model },
          captureStackTrace: false
        })
      : llm.generate(request)

  /** The run and the provider's health hear how a call ended before its permit and its money go to the next one. */
  const heard = (exit: Exit.Exit<ChatAnswer, LLMError>): Effect.Effect<void> => {
    // An empty answer is the row's trouble, not the provider's: it answered.
    if (Exit.isSuccess(exit)) return health.succeeded
    const error = Option.getOrUndefined(Cause.failureOption(exit.cause))
    if (error === undefined) return Effect.void
    return error.scope === "run" ? Effect.sync(() => meter.stop(providerStop(error))) : health.failed(error)
  }

  /** One physical call; an empty answer fails here, after it was settled, so that it is tried again. */
  const once = (request: ChatRequest, hash: string, turn: Turn, attempt: number, price: Price.PriceRow) =>
    Effect.flatMap(
      meter.call(
        { attempt, request: hash, model: request.model, amount: Price.hold(price, request), price, ...turn },
        () => physical(request),
        heard
      ),
      ({ answer, cost }): Effect.Effect<Reply, LLMError> => {
        const usage = cost === null || answer.usage === undefined ? Usage.zero : Usage.make({ ...answer.usage, cost })
        return isEmpty(answer) ? Effect.fail(empty) : Effect.succeed({ answer, usage, source: "call" })
      }
    )

  /** Tries until an answer, a lasting error, the end of the policy, or the stop of the run. */
  const insist = Effect.fnUntraced(function* (request: ChatRequest, hash: string, turn: Turn, attempts: number) {
    const price = yield* priceOf(request.model)
    let driver: Option.Option<Schedule.ScheduleDriver<unknown, LLMError>> = Option.none()
    for (let attempt = attempts; ; attempt++) {
      const tried = yield* eitherLLMError(once(request, hash, turn, attempt, price))
      if (Either.isRight(tried)) return tried.right
      const error = tried.left
      if (error.scope === "run") return yield* new RunStopped({ reason: providerStop(error) })
      // While the provider is down the wait is admission's, and the try does not count.
      if (error.category !== "PERMANENT" && health.state().provider === "down") continue
      const schedule = Option.isSome(driver) ? driver.value : yield* Schedule.driver(options.retry)
      driver = Option.some(schedule)
      yield* Effect.raceFirst(
        Effect.mapError(schedule.next(error), () => error),
        stopped
      )
    }
  })

  /** Of rows that ask the same at one time one is answered, and the others by its answer. */
  const remembered = <E>(hash: string, seq: number, own: Effect.Effect<Reply, E>): Effect.Effect<Reply, E> =>
    Effect.uninterruptibleMask((restore) =>
      Effect.suspend(() => {
        const known = memo.get(hash)
        if (known !== undefined) return Effect.succeed<Reply>({ answer: known, usage: Usage.zero, source: "memo" })
        const flight = flights.get(hash)
        if (flight !== undefined)
          return Effect.zipRight(apart(seq, restore(flight)), restore(remembered(hash, seq, own)))
        if (memo.size >= options.memo) return restore(own)
        const landed = Deferred.unsafeMake<void>(FiberId.none)
        flights.set(hash, Deferred.await(landed))
        return restore(own).pipe(
          Effect.tap((reply) => Effect.sync(() => memo.set(hash, reply.answer))),
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

  return {
    ask: Effect.fnUntraced(function* (request, turn) {
      const hash = yield* requestHash(request)
      const before = past.get(placeOf(turn))
      const paid = before?.answers.get(hash)
      if (before !== undefined && paid !== undefined) {
        before.answers.delete(hash)
        return paid
      }
      const own = insist(request, hash, turn, before?.calls ?? 0)
      return yield* options.memo > 0 ? remembered(hash, turn.seq, own) : own
    })
  }
}

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
  source: call.epoch === epoch ? "call" : "replay"
})

const usageOf = (call: CallRecord): Usage.Usage => (call.state === "settled" ? Usage.make(call) : Usage.zero)

const StoredAnswer = Schema.parseJson(
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

const priceFinder = ({ now, prices, meter }: InvokerOptions) => {
  const found = new Map<string, Price.PriceRow>()
  return (model: string): Effect.Effect<Price.PriceRow, RunStopped> =>
    Effect.suspend(() => {
      const known = found.get(model) ?? Option.getOrUndefined(Price.find(prices, model, now))
      if (known !== undefined) {
        found.set(model, known)
        return Effect.succeed(known)
      }
      if (meter.state().cap === null) return Effect.succeed(Price.free(model))
      meter.stop({ kind: "provider", message: unpriced(model) })
      return Effect.fail(new RunStopped({ reason: { kind: "provider", message: unpriced(model) } }))
    })
}

/**
 * What an operator reads when a model has no price under a cap.
 *
 * @since 0.1.0
 */
export const unpriced = (model: string): string =>
  `model ${model} has no price, so a cap cannot be held: give its price with Price.layer, or run without a cap`

/** No row can succeed: the run stops and the row stays pending. */
const providerStop = (error: LLMError): StopReason => ({ kind: "provider", message: error.message })

/**
 * A failure in the shape of a success: it is billed, and another try gives the same. `undefined`: the answer can be read.
 *
 * @since 0.1.0
 */
export const judge = (answer: ChatAnswer): LLMError | undefined => {
  if (answer.refusal !== undefined) return billed("refusal", "PERMANENT", "the model refused to answer")
  if (answer.finish === "content_filter")
    return billed("content_filter", "PERMANENT", "the content filter cut the answer")
  if (answer.finish === "length") {
    return billed("truncated", "PERMANENT", "the answer was cut at the output limit: raise maxOutputTokens")
  }
  return undefined
}

const billed = (reason: LLMError["reason"], category: LLMError["category"], message: string) =>
  new LLMError({ reason, category, scope: "row", charge: "known", message })

const isEmpty = (answer: ChatAnswer): boolean => answer.text.trim() === "" && judge(answer) === undefined

/** Billed too, but another try may bring more. */
const empty = billed("invalid_response", "TRANSIENT", "the answer is empty")
