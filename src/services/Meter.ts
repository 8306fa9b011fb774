/**
 * The meter of one run: it carries out what admission decides. A call is sent only under a durable hold, and every way out of a call closes its hold: settled,
 * uncertain or released. Internal.
 *
 * @since 0.1.0
 */
import { Cause, type Clock, Deferred, Effect, Exit, Fiber, FiberId, Option, Predicate } from "effect"
import { type Action, type Event, type State, start, type Ticket, transition, wakeAt } from "./Admission.ts"
import type { Book, Fence, HoldRecord, Pause, Verdict } from "./Book.ts"
import { type End, endOf } from "./CallEnd.ts"
import { isAnswered, isCrowded, type LLMError, RunStopped, type StopReason, type StorageError } from "./Errors.ts"
import type { JournalShape } from "./Journal.ts"
import { type ChatAnswer, noTokens } from "./LLM.ts"
import * as MonotonicTime from "./MonotonicTime.ts"
import type * as Price from "./Price.ts"
import type * as Throttle from "./Throttle.ts"
import { Usd } from "./Usd.ts"

/**
 * One physical call that is to be made: where it belongs, the most that it can cost, what it counts for a limit of tokens a minute (`refunds`: only what it used), and how
 * its answer is billed.
 *
 * @since 0.1.0
 */
export interface Call extends Omit<HoldRecord, keyof Fence | "n" | "price" | "at"> {
  readonly price: Price.PriceRow
  readonly tokens: number
  readonly refunds: boolean
  /** Whether it still goes where the run goes: only then what it meets says something of the run's speed. */
  readonly steers: () => boolean
  /** Whether it should not go any more, now that its turn has come. */
  readonly isStale: () => boolean
  readonly bill: (answer: ChatAnswer) => Price.Bill
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
  /** The time in milliseconds, by a clock that is never set back. */
  readonly now: () => number
  readonly dispatch: (event: Event) => void
  readonly stop: (reason: StopReason) => void
  /** Another process has taken the run over. */
  readonly fenced: () => void
  /** Completes with the reason once the run stops. */
  readonly stopped: Effect.Effect<StopReason>
  /** Lets waiting calls go when their time has come: to be forked for as long as the meter is used. */
  readonly ticking: Effect.Effect<never>
  /** Brackets the work on one row, see {@link Event}. */
  readonly row: <A, E, R>(seq: number, work: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>
  /**
   * Sends under a permit and a durable hold; `send` is not even called before, as a provider may begin its request when it is called. `heard` learns the end before
   * the hold is closed and the permit goes on. Interrupted while in flight, the call is aborted and stays uncertain; see {@link drained}. `undefined`: it was stale and
   * was not sent.
   */
  readonly call: (
    call: Call,
    send: () => Effect.Effect<ChatAnswer, LLMError>,
    heard: Heard
  ) => Effect.Effect<Paid | undefined, LLMError | RunStopped | StorageError>
}

/** @since 0.1.0 */
export interface MeterOptions {
  readonly clock: Clock.Clock
  readonly journal: JournalShape
  readonly book: Book
  readonly fence: Fence
  /** See `Budget`; default true. */
  readonly adaptive?: boolean
}

/**
 * A meter over the run's book.
 *
 * @since 0.1.0
 */
export const make = ({ adaptive = true, book, clock, fence, journal }: MeterOptions): Meter => {
  const now = () => MonotonicTime.at(clock)
  const { requestsPerMinute, tokensPerMinute } = book
  let state = start(book, { adaptive, requestsPerMinute, tokensPerMinute }, now())
  let nextTicket = 0
  let nextCall = 0
  let stopped = Deferred.unsafeMake<StopReason>(FiberId.none)
  const waiters = new Map<number, (grant: number) => void>()
  let crowdedSince: number | null = null
  let alarm = wakeAt(state)
  let bell = Deferred.unsafeMake<void>(FiberId.none)

  const dispatch = (event: Event): void => {
    const [next, actions] = transition(state, event, now())
    if (state.stop !== null && next.stop === null) stopped = Deferred.unsafeMake<StopReason>(FiberId.none)
    state = next
    for (const action of actions) perform(action)
    if (next.stop !== null) Deferred.unsafeDone(stopped, Effect.succeed(next.stop))
    if (wakeAt(state) !== alarm) Deferred.unsafeDone(bell, Effect.void)
  }

  const ticking: Effect.Effect<never> = Effect.forever(
    Effect.suspend(() => {
      alarm = wakeAt(state)
      bell = Deferred.unsafeMake<void>(FiberId.none)
      const rung = Deferred.await(bell)
      if (alarm === null) return rung
      const tick = Effect.sync(() => dispatch({ _tag: "Tick" }))
      return Effect.raceFirst(rung, Effect.delay(tick, Math.max(1, Math.ceil(alarm - now()))))
    })
  )

  const perform = (action: Action): void => {
    const resume = waiters.get(action.ticket.id)
    waiters.delete(action.ticket.id)
    resume?.(action._tag === "Grant" ? action.grant : 0)
  }

  /** Waits for the grant and gives its number; 0: denied. An interruption gives back what was already granted. */
  const admit = (ticket: Ticket): Effect.Effect<number> =>
    Effect.async<number>((resume) => {
      let granted = 0
      waiters.set(ticket.id, (grant) => {
        granted = grant
        resume(Effect.succeed(grant))
      })
      dispatch({ _tag: "Ask", ticket })
      return Effect.sync(() => {
        const waits = waiters.delete(ticket.id)
        if (waits) dispatch({ _tag: "Cancel", ticket })
        else if (granted > 0) dispatch({ _tag: "Released", amount: ticket.amount, sent: false })
      })
    })

  const stop = (reason: StopReason): void => dispatch({ _tag: "Stop", reason })
  const denied = Effect.suspend(() => {
    const reason = state.stop ?? { kind: "operator" as const, message: "the run stopped" }
    return Effect.fail(new RunStopped({ reason }))
  })

  /** The hold, durable; a refusal by the book is the truth and stops the run. `undefined`: the run was paused just now, or its pool has no room for the moment. */
  const hold = (call: Call, at: number): Effect.Effect<HoldRecord | undefined, RunStopped | StorageError> => {
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
      onFailure: (error): Effect.Effect<HoldRecord | undefined, RunStopped | StorageError> => broke(call, error),
      onSuccess: (verdict): Effect.Effect<HoldRecord | undefined, RunStopped | StorageError> => {
        if (verdict._tag === "Ok") {
          crowdedSince = null
          return Effect.succeed(record)
        }
        const isPaused = verdict._tag === "Refused" && verdict.reason === "paused"
        // Before the room is free again, or the next call would be let go at once.
        if (isPaused && state.paused === null) dispatch({ _tag: "Pause", pause: unheard })
        if (verdict._tag === "Refused" && (verdict.reason === "cap" || verdict.reason === "max_calls")) {
          return short(call, verdict.reason)
        }
        dispatch({ _tag: "Released", amount: call.amount, sent: false })
        if (isPaused) return Effect.succeed(undefined)
        if (verdict._tag === "Refused" && verdict.reason === "pool_busy") return crowdedOut(now())
        stop(refusal(verdict._tag === "Refused" ? verdict.reason : "fenced"))
        return denied
      }
    })
  }

  /** Calls of other runs hold what is left of the pool; when they have ended there may be room. */
  const crowdedOut = (at: number): Effect.Effect<undefined, RunStopped> => {
    crowdedSince ??= at
    if (at - crowdedSince < POOL_LIMIT_MS) return Effect.as(Effect.sleep(POOL_WAIT_MS), undefined)
    stop(refusal("pool_busy"))
    return denied
  }

  /** The database refuses: nothing was sent, and nothing more will be. */
  const broke = (call: Call, error: StorageError): Effect.Effect<never, StorageError> => {
    dispatch({ _tag: "Released", amount: call.amount, sent: false })
    stop({ kind: "storage", message: error.message })
    return Effect.fail(error)
  }

  /** The book has less room than was thought: its limits were set lower just now, and the call asks again; or another worker spends from it too. */
  const short = (call: Call, reason: "cap" | "max_calls"): Effect.Effect<undefined, RunStopped | StorageError> =>
    Effect.matchEffect(journal.reads.book(fence.runId), {
      onFailure: (error): Effect.Effect<undefined, RunStopped | StorageError> => broke(call, error),
      onSuccess: (now): Effect.Effect<undefined, RunStopped | StorageError> => {
        const isNew = now !== undefined && (now.cap !== state.cap || now.maxCalls !== state.maxCalls)
        // Before the room is free again, or the next call would be let go at once.
        if (isNew) dispatch({ _tag: "Limits", cap: now.cap, maxCalls: now.maxCalls })
        dispatch({ _tag: "Released", amount: call.amount, sent: false })
        if (isNew) return Effect.succeed(undefined)
        stop(refusal(reason))
        return denied
      }
    })

  const fenced = (): void => stop(refusal("fenced"))

  /** What a stale worker still learns of its own call may lower what the new one counts for it, and nothing else. */
  const late =
    (record: HoldRecord, end: Exclude<End, { readonly _tag: "uncertain" }>, at: number) => (verdict: Verdict) => {
      if (verdict._tag !== "Fenced") return
      fenced()
      const { n, runId, worker } = record
      const known =
        end._tag === "settled"
          ? { ...end.usage, cost: end.cost, answer: end.answer }
          : { ...noTokens, cost: Usd.zero, answer: null }
      const correction = { runId, worker, n, source: "late" as const, note: end.reason, at, ...known }
      journal.append({ _tag: "Correct", correction })
    }

  const close = (
    record: HoldRecord,
    end: End,
    at: number,
    steered: { readonly signal?: Throttle.Signal }
  ): Usd | null => {
    const { amount } = record
    switch (end._tag) {
      case "settled": {
        const { cost } = end
        journal.append({ _tag: "Settle", hold: record, close: { at, ...end } }, late(record, end, at))
        if (state.cap !== null && cost > amount) stop(breach(cost, amount))
        if (state.cap !== null && end.excess !== undefined) stop({ kind: "breach", message: end.excess })
        dispatch({ _tag: "Settled", amount, cost, ...steered })
        return cost
      }
      case "uncertain":
        journal.append({
          _tag: "Uncertain",
          hold: record,
          reason: end.reason,
          answer: end.answer,
          requestId: end.requestId,
          at
        })
        if (state.cap !== null && end.unpriced) stop({ kind: "unpriced", message: end.reason })
        dispatch({ _tag: "Uncertain", amount, ...steered })
        return null
      case "released":
        journal.append({ _tag: "Release", hold: record, reason: end.reason, sent: end.sent, at }, late(record, end, at))
        dispatch({ _tag: "Released", amount, sent: end.sent, ...steered })
        return null
    }
  }

  const metered = Effect.fnUntraced(function* (
    restore: Restore,
    ask: Call,
    send: () => Effect.Effect<ChatAnswer, LLMError>,
    heard: Heard
  ) {
    const { amount, attempt, seq, tokens } = ask
    let grant = 0
    let record: HoldRecord | undefined
    while (record === undefined) {
      grant = yield* restore(admit({ id: nextTicket++, seq, amount, attempt, tokens }))
      if (grant === 0) return yield* denied
      if (ask.isStale()) {
        dispatch({ _tag: "Released", amount, sent: false })
        return undefined
      }
      record = yield* hold(ask, clock.unsafeCurrentTimeMillis())
    }
    let sent = false
    const sending = Effect.suspend(() => {
      sent = true
      return send()
    })
    const exit = yield* Effect.exit(restore(sending))
    // Before the health hears of it, which may send the run elsewhere; and whatever breaks there, the hold is closed.
    const steers = ask.steers()
    const hearing = yield* Effect.exit(Effect.suspend(() => heard(exit)))
    const signal = { grant, retry: attempt > 0, end: speedOf(exit), unused: ask.refunds ? unusedOf(exit, tokens) : 0 }
    const cost = close(record, endOf(exit, sent, ask), clock.unsafeCurrentTimeMillis(), steers ? { signal } : {})
    yield* hearing
    const answer = yield* exit
    return { answer, cost }
  })
  const call: Meter["call"] = (ask, send, heard) =>
    Effect.uninterruptibleMask((restore) => metered(restore, ask, send, heard))

  return {
    fence,
    state: () => state,
    now,
    dispatch,
    stop,
    fenced,
    stopped: Effect.suspend(() => Deferred.await(stopped)),
    ticking,
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
      meter.stop({ kind: "interrupted", message: "interrupted; calls in flight were let finish" })
      const grace = yield* Effect.forkDaemon(Effect.interruptible(Effect.timeoutOption(Fiber.await(fiber), graceMs)))
      if (Option.isNone(yield* Fiber.join(grace))) yield* Fiber.interrupt(fiber)
      return yield* Effect.interrupt
    })
  )

type Restore = <A, E, R>(effect: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>

/** What a call's end says of the speed: too many at once, or not. */
const speedOf = (exit: Exit.Exit<ChatAnswer, LLMError>): Throttle.Signal["end"] => {
  if (Exit.isSuccess(exit)) return "answered"
  const error = Option.getOrUndefined(Cause.failureOption(exit.cause))
  if (error === undefined) return "failed"
  return isAnswered(error) ? "answered" : isCrowded(error) ? "crowded" : "failed"
}

/** The tokens that a call counted for and did not use; what is not known is taken for used. */
const unusedOf = (exit: Exit.Exit<ChatAnswer, LLMError>, counted: number): number => {
  const usage = Exit.isSuccess(exit) ? exit.value.usage : undefined
  if (!Predicate.isRecord(usage)) return 0
  const { inputTokens, outputTokens } = usage
  return Math.max(0, counted - inputTokens - outputTokens) || 0
}

/** How a call ended, for the book. */
/** How often a call asks for room in the pool, and for how long: longer than a call may take, in milliseconds. */
const POOL_WAIT_MS = 250
const POOL_LIMIT_MS = 1_200_000

/** The whole row, so that a bill can be checked, or priced anew, long after the table changed. */
const priceText = (price: Price.PriceRow): string => {
  const text = priceTexts.get(price) ?? JSON.stringify(price)
  priceTexts.set(price, text)
  return text
}
const priceTexts = new WeakMap<Price.PriceRow, string>()

const breach = (cost: Usd, amount: Usd): StopReason => ({
  kind: "breach",
  message: `a call was billed ${Usd.format(cost)}, above its hold of ${Usd.format(amount)}: check the price table and the output limit`
})

/** Until who gave the order is read. */
const unheard: Pause = { by: "operator", message: "paused" }

const refusal = (reason: string): StopReason => {
  if (reason === "cancelled") return { kind: "cancelled", message: "the run was cancelled" }
  if (reason === "cap")
    return { kind: "budget", message: "the book has no room under the cap: another worker spends from it too" }
  if (reason === "pool_busy")
    return {
      kind: "budget",
      message: "other runs hold what is left of the cap that this one shares: resume them, or raise it"
    }
  if (reason === "pool") return { kind: "budget", message: "the cap that this run shares with others is reached" }
  if (reason === "max_calls") return { kind: "max_calls", message: "the book's limit of calls is reached" }
  return { kind: "fenced", message: "another process took this run over" }
}
