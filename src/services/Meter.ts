/**
 * The meter of one run: it carries out what admission decides. A call is sent only under a durable hold, and every way out of a call closes its hold: settled,
 * uncertain or released. Internal.
 *
 * @since 0.1.0
 */
import { Cause, type Clock, Deferred, Effect, Exit, Fiber, FiberId, Option } from "effect"
import { type Action, type Event, type State, start, type Ticket, transition } from "./Admission.ts"
import type { Book, Fence, HoldRecord, Settled } from "./Book.ts"
import { type LLMError, RunStopped, type StopReason, type StorageError } from "./Errors.ts"
import type { JournalShape } from "./Journal.ts"
import type { ChatAnswer, TokenUsage } from "./LLM.ts"
import * as Price from "./Price.ts"
import { Usd } from "./Usd.ts"

/** One physical call that is to be made: where it belongs, and the most that it can cost. @since 0.1.0 */
export interface Call extends Omit<HoldRecord, keyof Fence | "n" | "price" | "at"> {
  readonly price: Price.PriceRow
}

/** An answer with what it cost: null where the provider did not say, so that it counts at its hold. @since 0.1.0 */
export interface Paid {
  readonly answer: ChatAnswer
  readonly cost: Usd | null
}

/** Who learns how a call ended. @since 0.1.0 */
export type Heard = (exit: Exit.Exit<ChatAnswer, LLMError>) => Effect.Effect<void>

/** @since 0.1.0 */
export interface Meter {
  readonly fence: Fence
  readonly state: () => State
  readonly dispatch: (event: Event) => void
  readonly stop: (reason: StopReason) => void
  /** Completes with the reason once the run stops. */
  readonly stopped: Effect.Effect<StopReason>
  /** Brackets the work on one row, see {@link Event}. */
  readonly row: <A, E, R>(seq: number, work: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>
  /**
   * Sends under a permit and a durable hold; `send` is not even called before, as a provider may begin its request when it is called. `heard` learns the end before
   * the hold is closed and the permit goes on. Interrupted while in flight, the call is aborted and stays uncertain; see {@link drained}.
   */
  readonly call: (
    call: Call,
    send: () => Effect.Effect<ChatAnswer, LLMError>,
    heard: Heard
  ) => Effect.Effect<Paid, LLMError | RunStopped | StorageError>
}

/** @since 0.1.0 */
export interface MeterOptions {
  readonly clock: Clock.Clock
  readonly journal: JournalShape
  readonly book: Book
  readonly fence: Fence
}

/**
 * A meter over the run's book.
 *
 * @since 0.1.0
 */
export const make = ({ book, clock, fence, journal }: MeterOptions): Meter => {
  let state = start(book)
  let nextTicket = 0
  let nextCall = 0
  const stopped = Deferred.unsafeMake<StopReason>(FiberId.none)
  const waiters = new Map<number, (granted: boolean) => void>()

  const dispatch = (event: Event): void => {
    const [next, actions] = transition(state, event)
    state = next
    for (const action of actions) perform(action)
    if (next.stop !== null) Deferred.unsafeDone(stopped, Effect.succeed(next.stop))
  }

  const perform = (action: Action): void => {
    const resume = waiters.get(action.ticket.id)
    waiters.delete(action.ticket.id)
    resume?.(action._tag === "Grant")
  }

  /** Waits for the grant; false: denied. An interruption gives back what was already granted. */
  const admit = (ticket: Ticket): Effect.Effect<boolean> =>
    Effect.async<boolean>((resume) => {
      let granted = false
      waiters.set(ticket.id, (go) => {
        granted = go
        resume(Effect.succeed(go))
      })
      dispatch({ _tag: "Ask", ticket })
      return Effect.sync(() => {
        const waits = waiters.delete(ticket.id)
        if (waits) dispatch({ _tag: "Cancel", ticket })
        else if (granted) dispatch({ _tag: "Released", amount: ticket.amount, sent: false })
      })
    })

  const stop = (reason: StopReason): void => dispatch({ _tag: "Stop", reason })
  const denied = Effect.suspend(() => {
    const reason = state.stop ?? { kind: "operator" as const, message: "the run stopped" }
    return Effect.fail(new RunStopped({ reason }))
  })

  /** The hold, durable; a refusal by the book is the truth and stops the run. */
  const hold = (call: Call, at: number): Effect.Effect<HoldRecord, RunStopped | StorageError> => {
    nextCall++
    const record: HoldRecord = {
      n: nextCall,
      seq: call.seq,
      epoch: call.epoch,
      turn: call.turn,
      attempt: call.attempt,
      request: call.request,
      model: call.model,
      amount: call.amount,
      price: priceText(call.price),
      at,
      ...fence
    }
    return Effect.matchEffect(journal.commit({ _tag: "Hold", hold: record }), {
      onFailure: (error): Effect.Effect<HoldRecord, RunStopped | StorageError> => {
        dispatch({ _tag: "Released", amount: call.amount, sent: false })
        stop({ kind: "storage", message: error.message })
        return Effect.fail(error)
      },
      onSuccess: (verdict): Effect.Effect<HoldRecord, RunStopped | StorageError> => {
        if (verdict._tag === "Ok") return Effect.succeed(record)
        dispatch({ _tag: "Released", amount: call.amount, sent: false })
        stop(refusal(verdict._tag === "Refused" ? verdict.reason : "fenced"))
        return denied
      }
    })
  }

  const close = (record: HoldRecord, price: Price.PriceRow, end: End, at: number): Usd | null => {
    const { amount } = record
    switch (end._tag) {
      case "settled": {
        const cost = Price.cost(price, end.usage)
        journal.append({ _tag: "Settle", hold: record, close: { cost, at, ...end } })
        if (cost > amount) stop(breach(cost, amount))
        dispatch({ _tag: "Settled", amount, cost })
        return cost
      }
      case "uncertain":
        journal.append({ _tag: "Uncertain", hold: record, reason: end.reason, answer: end.answer, at })
        dispatch({ _tag: "Uncertain", amount })
        return null
      case "released":
        journal.append({ _tag: "Release", hold: record, reason: end.reason, sent: end.sent, at })
        dispatch({ _tag: "Released", amount, sent: end.sent })
        return null
    }
  }

  const metered = Effect.fnUntraced(function* (
    restore: Restore,
    ask: Call,
    send: () => Effect.Effect<ChatAnswer, LLMError>,
    heard: Heard
  ) {
    const granted = yield* restore(admit({ id: nextTicket++, seq: ask.seq, amount: ask.amount }))
    if (!granted) return yield* denied
    const record = yield* hold(ask, clock.unsafeCurrentTimeMillis())
    let sent = false
    const sending = Effect.suspend(() => {
      sent = true
      return send()
    })
    const exit = yield* Effect.exit(restore(sending))
    yield* heard(exit)
    const cost = close(record, ask.price, endOf(exit, sent), clock.unsafeCurrentTimeMillis())
    const answer = yield* exit
    return { answer, cost }
  })
  const call: Meter["call"] = (ask, send, heard) =>
    Effect.uninterruptibleMask((restore) => metered(restore, ask, send, heard))

  return {
    fence,
    state: () => state,
    dispatch,
    stop,
    stopped: Deferred.await(stopped),
    row: (seq, work) =>
      Effect.uninterruptibleMask((restore) =>
        Effect.suspend(() => {
          dispatch({ _tag: "Enter", seq })
          return Effect.ensuring(
            restore(work),
            Effect.sync(() => dispatch({ _tag: "Leave", seq }))
          )
        })
      ),
    call
  }
}

/**
 * Runs work on a meter so that an interruption drains it: the run stops, calls in flight finish and settle, rows not started stay pending. After `graceMs`
 * milliseconds what is still under way is aborted. The work gets a fiber of its own, once a run and not once a call: that would cost as much as the rest.
 *
 * @since 0.1.0
 */
export const drained = <A, E, R>(meter: Meter, graceMs: number, work: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.uninterruptibleMask((restore) =>
    Effect.gen(function* () {
      const fiber = yield* Effect.forkDaemon(Effect.interruptible(work))
      const waited = yield* Effect.exit(restore(Fiber.await(fiber)))
      if (Exit.isSuccess(waited)) return yield* waited.value
      meter.stop({ kind: "operator", message: "interrupted; calls in flight were let finish" })
      const grace = yield* Effect.forkDaemon(Effect.interruptible(Effect.timeoutOption(Fiber.await(fiber), graceMs)))
      if (Option.isNone(yield* Fiber.join(grace))) yield* Fiber.interrupt(fiber)
      return yield* Effect.interrupt
    })
  )

type Restore = <A, E, R>(effect: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>

/** How a call ended, for the book. */
type End =
  | ({ readonly _tag: "settled" } & Omit<Settled, "cost" | "at">)
  | { readonly _tag: "uncertain"; readonly reason: string; readonly answer: string | null }
  | { readonly _tag: "released"; readonly reason: string; readonly sent: boolean }

const endOf = (exit: Exit.Exit<ChatAnswer, LLMError>, sent: boolean): End => {
  if (Exit.isSuccess(exit)) return answered(exit.value)
  if (!sent) return { _tag: "released", reason: "not sent", sent: false }
  const failure = Cause.failureOption(exit.cause)
  if (Option.isNone(failure)) {
    return { _tag: "uncertain", reason: Cause.isInterrupted(exit.cause) ? "interrupted" : "defect", answer: null }
  }
  const { charge, reason, usage } = failure.value
  if (charge === "none") return { _tag: "released", reason, sent: true }
  if (charge === "known" && usage !== undefined && isSound(usage)) {
    return { _tag: "settled", usage, reason, answer: null, finish: null, requestId: failure.value.requestId ?? null }
  }
  return { _tag: "uncertain", reason, answer: null }
}

/** No call has a thousand million tokens; above it a cost would not be exact. */
const isCount = (n: unknown): boolean => typeof n === "number" && Number.isSafeInteger(n) && n >= 0 && n <= 1e9

/** Whole counts, whose parts do not pass the whole; what else a provider of the user's own may say is no bill, and the hold counts. */
const isSound = ({ cachedTokens, cacheWriteTokens, inputTokens, outputTokens, reasoningTokens }: TokenUsage): boolean =>
  [cachedTokens, cacheWriteTokens, inputTokens, outputTokens, reasoningTokens].every(isCount) &&
  cachedTokens + cacheWriteTokens <= inputTokens

const answered = (answer: ChatAnswer): End => {
  // An empty answer is paid for but not accepted: a resumed run asks again.
  const accepted = answer.text.trim() !== "" || answer.refusal !== undefined
  const text = accepted ? encodeAnswer(answer) : null
  return answer.usage === undefined || !isSound(answer.usage)
    ? { _tag: "uncertain", reason: "no usage", answer: text }
    : {
        _tag: "settled",
        usage: answer.usage,
        reason: "",
        answer: text,
        finish: answer.finish,
        requestId: answer.requestId ?? null
      }
}

/** The answer as it stands in the book. */
const encodeAnswer = (answer: ChatAnswer): string =>
  JSON.stringify({ text: answer.text, refusal: answer.refusal, finish: answer.finish, model: answer.model })

const priceText = (price: Price.PriceRow): string => `${price.model}@${price.from}`

const breach = (cost: Usd, amount: Usd): StopReason => ({
  kind: "breach",
  message: `a call was billed ${Usd.format(cost)}, above its hold of ${Usd.format(amount)}: check the price table and the output limit`
})

const refusal = (reason: string): StopReason => {
  if (reason === "cap")
    return { kind: "budget", message: "the book has no room under the cap: another worker spends from it too" }
  if (reason === "max_calls") return { kind: "max_calls", message: "the book's limit of calls is reached" }
  return { kind: "fenced", message: "another process took this run over" }
}
