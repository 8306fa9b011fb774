/** The meter call by call: what it writes, what it tells admission, and that no way out leaves a hold open. Whole runs are in programs/meter.test.ts. */
import { assert, describe, it } from "@effect/vitest"
import { Effect, Either, Exit, Fiber, Option, TestClock } from "effect"
import * as JournalMemory from "../../src/layers/JournalMemory.ts"
import type { Event } from "../../src/services/Admission.ts"
import type { Book, Op, Order, Verdict } from "../../src/services/Book.ts"
import { LLMError, RunStopped, type StopReason, StorageError } from "../../src/services/Errors.ts"
import { type JournalShape, make as makeJournal } from "../../src/services/Journal.ts"
import { answer, type ChatAnswer } from "../../src/services/LLM.ts"
import * as Meter from "../../src/services/Meter.ts"
import * as Price from "../../src/services/Price.ts"
import { Usd } from "../../src/services/Usd.ts"
import { bookOf, workerOf } from "../support/records.ts"

const fence = { runId: "run", worker: 1 }
const usage = { inputTokens: 7, cachedTokens: 0, cacheWriteTokens: 0, outputTokens: 3, reasoningTokens: 0 }
/** As an error has it; what it says of the cost is not asked. */
const reported = { ...usage, cost: Usd.zero }
const noTokens = { inputTokens: 0, cachedTokens: 0, cacheWriteTokens: 0, outputTokens: 0, reasoningTokens: 0 }
const known = (cost: number, excess?: string): Price.Bill => ({ _tag: "Known", usage, cost: Usd.nano(cost), excess })
const callOf = (parts: Partial<Meter.Call> = {}): Meter.Call => ({
  seq: 4,
  epoch: 2,
  turn: 1,
  attempt: 0,
  request: "request",
  model: "m",
  amount: Usd.nano(100),
  price: Price.free("m"),
  tokens: 50,
  refunds: false,
  steers: () => true,
  isStale: () => false,
  bill: () => known(60),
  ...parts
})
const good = answer({ text: "fine", model: "m2", usage, requestId: "req" })
const wrong = (parts: Partial<LLMError> = {}) =>
  new LLMError({
    reason: parts.reason ?? "server_error",
    category: parts.category ?? "TRANSIENT",
    scope: parts.scope ?? "row",
    charge: parts.charge ?? "uncertain",
    message: "it broke",
    ...(parts.status === undefined ? {} : { status: parts.status }),
    ...(parts.requestId === undefined ? {} : { requestId: parts.requestId }),
    ...(parts.usage === undefined ? {} : { usage: parts.usage })
  })

interface Setting {
  readonly book?: Partial<Book>
  /** What the journal says to an operation in the book's place. */
  readonly says?: (op: Op) => Verdict | StorageError | undefined
  /** What is read in the place of the book. */
  readonly reads?: (real: JournalShape["reads"]["book"]) => JournalShape["reads"]["book"]
}

const pause: Event = { _tag: "Pause", pause: { by: "operator", message: "paused by ada" } }

/** A meter over a real book in memory, with all that it wrote and all that it told admission. */
const metered = ({ book: parts = {}, reads = (book) => book, says = () => undefined }: Setting = {}) =>
  Effect.gen(function* () {
    const real = yield* makeJournal(JournalMemory.makeDriver())
    const ops: Array<Op> = []
    const journal: JournalShape = {
      ...real,
      reads: { ...real.reads, book: reads(real.reads.book) },
      append: (op, heard) => {
        ops.push(op)
        const said = says(op)
        if (said === undefined || said instanceof StorageError) real.append(op, heard)
        else heard?.(said)
      },
      commit: (op) =>
        Effect.suspend((): Effect.Effect<Verdict, StorageError> => {
          ops.push(op)
          const said = says(op)
          if (said === undefined) return real.commit(op)
          return said instanceof StorageError ? said : Effect.succeed(said)
        })
    }
    const book = bookOf("run", parts)
    yield* real.commit({ _tag: "Create", book })
    yield* real.commit({ _tag: "Claim", worker: workerOf("run"), dead: [], lost: Usd.zero })
    const clock = yield* Effect.clock
    const meter = Meter.make({ book, clock, fence, journal })
    const sent: Array<string> = []
    const send = (exit: Exit.Exit<ChatAnswer, LLMError>) => () => {
      sent.push("sent")
      return exit
    }
    const heard: Array<Exit.Exit<ChatAnswer, LLMError>> = []
    const call = (exit: Exit.Exit<ChatAnswer, LLMError>, ask = callOf()) =>
      meter.call(ask, send(exit), (end) => Effect.sync(() => void heard.push(end)))
    const money = Effect.map(real.reads.book("run"), (now) => ({
      spent: Number(now?.spent),
      uncertain: Number(now?.uncertain),
      held: Number(now?.held),
      calls: now?.calls
    }))
    return { call, heard, meter, money, ops, real, sent }
  })
const tags = (ops: ReadonlyArray<Op>) => ops.map((op) => op._tag)
const reasonOf = (meter: Meter.Meter) => meter.state().stop
const flown = ({ state }: Meter.Meter) => {
  const { calls, held, inFlight, spent, uncertain } = state()
  return { spent: Number(spent), uncertain: Number(uncertain), held: Number(held), calls, inFlight }
}

describe("A call", () => {
  it.scoped("goes under a durable hold and is settled with its answer", () =>
    Effect.gen(function* () {
      yield* TestClock.adjust(5)
      const { call, heard, meter, money, ops, sent } = yield* metered()
      assert.deepStrictEqual(yield* call(Exit.succeed(good)), { answer: good, cost: Usd.nano(60) })
      const [held, closed] = ops
      const record = {
        ...fence,
        n: 1,
        seq: 4,
        epoch: 2,
        turn: 1,
        attempt: 0,
        request: "request",
        model: "m",
        amount: Usd.nano(100),
        price: JSON.stringify(Price.free("m")),
        at: 5
      }
      assert.deepStrictEqual(held, { _tag: "Hold", hold: record })
      assert.strictEqual(closed?._tag, "Settle")
      if (closed?._tag !== "Settle") return
      assert.deepStrictEqual(closed.hold, record)
      const { answer: text, at, cost, finish, reason, requestId, usage: tokens } = closed.close
      assert.deepStrictEqual(
        { at, cost, finish, reason, requestId, tokens },
        { at: 5, cost: Usd.nano(60), finish: "stop", reason: "", requestId: "req", tokens: usage }
      )
      assert.deepStrictEqual(JSON.parse(text ?? ""), { text: "fine", finish: "stop", model: "m2" })
      assert.deepStrictEqual(heard, [Exit.succeed(good)])
      assert.lengthOf(sent, 1)
      assert.deepStrictEqual(yield* money, { spent: 60, uncertain: 0, held: 0, calls: 1 })
      assert.deepStrictEqual(flown(meter), { spent: 60, uncertain: 0, held: 0, calls: 1, inFlight: 0 })
      yield* call(Exit.succeed(good))
      assert.strictEqual(ops[2]?._tag === "Hold" ? ops[2].hold.n : 0, 2)
    })
  )

  /** What a call's end comes to: the last operation's tag and reason, and the money. */
  const ends = (exit: Exit.Exit<ChatAnswer, LLMError>, parts: Partial<Meter.Call> = {}, setting: Setting = {}) =>
    Effect.gen(function* () {
      const { call, meter, money, ops } = yield* metered(setting)
      const end = yield* Effect.exit(call(exit, callOf(parts)))
      const last = ops.at(-1)
      assert.strictEqual(meter.state().inFlight, 0)
      assert.strictEqual(meter.state().held, 0)
      const { held: _, ...rest } = yield* money
      return { end, last, money: rest, stop: meter.state().stop }
    })

  it.scoped("I10: whatever breaks, is closed by what may have been billed", () =>
    Effect.gen(function* () {
      for (const [error, tag, reason, money] of [
        [wrong(), "Uncertain", "server_error", { spent: 0, uncertain: 100, calls: 1 }],
        [
          wrong({ charge: "none", reason: "rate_limited" }),
          "Release",
          "rate_limited",
          { spent: 0, uncertain: 0, calls: 1 }
        ],
        [wrong({ charge: "known" }), "Uncertain", "server_error", { spent: 0, uncertain: 100, calls: 1 }],
        [
          wrong({ charge: "uncertain", usage: reported }),
          "Uncertain",
          "server_error",
          { spent: 0, uncertain: 100, calls: 1 }
        ]
      ] as const) {
        const found = yield* ends(Exit.fail(error))
        assert.deepStrictEqual(found.end, Exit.fail(error))
        assert.deepStrictEqual(found.money, money)
        assert.strictEqual(found.last?._tag, tag)
        const { last } = found
        assert.strictEqual(last?._tag === "Uncertain" || last?._tag === "Release" ? last.reason : "", reason)
        if (last?._tag === "Release") assert.isTrue(last.sent)
        assert.isNull(found.stop)
      }
    })
  )

  it.scoped("that failed with a usage is settled at it, without an answer or an end, by its reason", () =>
    Effect.gen(function* () {
      const error = wrong({ charge: "known", usage: reported, requestId: "req" })
      const asked: Array<ChatAnswer> = []
      const bill = (given: ChatAnswer) => {
        asked.push(given)
        return known(60)
      }
      const { last, money } = yield* ends(Exit.fail(error), { bill })
      assert.deepStrictEqual(money, { spent: 60, uncertain: 0, calls: 1 })
      assert.strictEqual(last?._tag, "Settle")
      if (last?._tag !== "Settle") return
      const { answer: text, finish, reason, requestId } = last.close
      assert.deepStrictEqual(
        { text, finish, reason, requestId },
        { text: null, finish: null, reason: "server_error", requestId: "req" }
      )
      assert.deepStrictEqual(asked, [answer({ text: "", model: "m", usage: reported })])
      const noUsage = { _tag: "Uncertain", reason: "no usage", unpriced: false } as const
      const unsure = yield* ends(Exit.fail(error), { bill: () => noUsage })
      assert.deepStrictEqual(unsure.money, { spent: 0, uncertain: 100, calls: 1 })
      const without = yield* ends(Exit.fail(wrong({ charge: "uncertain", requestId: "req" })))
      assert.strictEqual(without.last?._tag === "Uncertain" ? without.last.requestId : "", "req")
    })
  )

  it.scoped("I10: that breaks as nothing should is uncertain: a defect in sending, in billing, an interruption", () =>
    Effect.gen(function* () {
      const reasons: Array<string> = []
      const note = (last: Op | undefined) => reasons.push(last?._tag === "Uncertain" ? last.reason : "other")
      const billing = {
        bill: () => {
          throw new Error("no bill")
        }
      }
      for (const found of [
        yield* ends(Exit.die("broken")),
        yield* ends(Exit.succeed(good), billing),
        yield* ends(Exit.interrupt(Fiber.id(yield* Effect.fork(Effect.void))))
      ]) {
        note(found.last)
        assert.deepStrictEqual(found.money, { spent: 0, uncertain: 100, calls: 1 })
      }
      assert.deepStrictEqual(reasons, ["defect", "defect", "interrupted"])
    })
  )

  it.scoped("whose answer is empty is paid for but not kept; a refusal is kept", () =>
    Effect.gen(function* () {
      const kept = (parts: Parameters<typeof answer>[0]) =>
        Effect.map(ends(Exit.succeed(answer(parts))), ({ last }) => (last?._tag === "Settle" ? last.close : undefined))
      const empty = yield* kept({ text: " \n", model: "m", usage })
      assert.deepStrictEqual([empty?.answer, empty?.cost, empty?.requestId], [null, Usd.nano(60), null])
      const refusal = yield* kept({ text: "", model: "m", usage, refusal: "no" })
      assert.deepStrictEqual(JSON.parse(refusal?.answer ?? ""), { text: "", refusal: "no", finish: "stop", model: "m" })
    })
  )

  it.scoped("whose bill is not known counts at its hold; without a price it stops a run that has a cap", () =>
    Effect.gen(function* () {
      const unpriced = (yes: boolean): Price.Bill => ({ _tag: "Uncertain", reason: "no price", unpriced: yes })
      const uncapped = { book: { cap: null } }
      const one = yield* ends(Exit.succeed(good), { bill: () => unpriced(true) })
      assert.deepStrictEqual(one.end, Exit.succeed({ answer: good, cost: null }))
      assert.deepStrictEqual(one.money, { spent: 0, uncertain: 100, calls: 1 })
      assert.deepStrictEqual(one.stop, { kind: "unpriced", message: "no price" })
      assert.strictEqual(one.last?._tag === "Uncertain" ? one.last.requestId : "", "req")
      assert.isNotNull(one.last?._tag === "Uncertain" ? one.last.answer : null)
      assert.isNull((yield* ends(Exit.succeed(good), { bill: () => unpriced(false) })).stop)
      assert.isNull((yield* ends(Exit.succeed(good), { bill: () => unpriced(true) }, uncapped)).stop)
    })
  )

  it.scoped("billed above its hold, or longer than its limit, stops a run that has a cap", () =>
    Effect.gen(function* () {
      const uncapped = { book: { cap: null } }
      const stopOf = (bill: Price.Bill, setting: Setting = {}) =>
        Effect.map(ends(Exit.succeed(good), { bill: () => bill }, setting), ({ stop }) => stop)
      assert.isNull(yield* stopOf(known(100)))
      assert.deepStrictEqual(yield* stopOf(known(101)), {
        kind: "breach",
        message:
          "a call was billed $0.000000101, above its hold of $0.0000001: check the price table and the output limit"
      })
      assert.isNull(yield* stopOf(known(101), uncapped))
      assert.deepStrictEqual(yield* stopOf(known(60, "too long")), { kind: "breach", message: "too long" })
      assert.isNull(yield* stopOf(known(60, "too long"), uncapped))
    })
  )
})

describe("A call is not sent", () => {
  it.scoped("when it is stale by the time that its turn comes; its permit goes on", () =>
    Effect.gen(function* () {
      const { call, meter, ops, sent } = yield* metered()
      assert.isUndefined(yield* call(Exit.succeed(good), callOf({ isStale: () => true })))
      assert.deepStrictEqual([ops, sent], [[], []])
      assert.deepStrictEqual(flown(meter), { spent: 0, uncertain: 0, held: 0, calls: 0, inFlight: 0 })
    })
  )

  it.scoped("when the run stopped: the reason is the error's", () =>
    Effect.gen(function* () {
      const { call, meter, ops } = yield* metered()
      const reason: StopReason = { kind: "operator", message: "asked" }
      const waits = yield* Effect.fork(meter.stopped)
      yield* Effect.yieldNow()
      assert.isTrue(Option.isNone(yield* Fiber.poll(waits)))
      meter.stop(reason)
      assert.deepStrictEqual(yield* Fiber.join(waits), reason)
      assert.deepStrictEqual(yield* Effect.flip(call(Exit.succeed(good))), new RunStopped({ reason }))
      assert.deepStrictEqual(ops, [])
    })
  )

  for (const [what, said, reason] of [
    [
      "cap",
      { _tag: "Refused", reason: "cap" },
      { kind: "budget", message: "the book has no room under the cap: another worker spends from it too" }
    ],
    [
      "max_calls",
      { _tag: "Refused", reason: "max_calls" },
      { kind: "max_calls", message: "the book's limit of calls is reached" }
    ],
    ["fenced", { _tag: "Fenced" }, { kind: "fenced", message: "another process took this run over" }]
  ] as const) {
    it.scoped(`when the book refuses its hold (${what}): the run stops, and nothing is held`, () =>
      Effect.gen(function* () {
        const { call, meter, ops, sent } = yield* metered({ says: () => said })
        assert.deepStrictEqual(yield* Effect.flip(call(Exit.succeed(good))), new RunStopped({ reason }))
        assert.deepStrictEqual([tags(ops), sent, reasonOf(meter)], [["Hold"], [], reason])
        assert.deepStrictEqual(flown(meter), { spent: 0, uncertain: 0, held: 0, calls: 0, inFlight: 0 })
      })
    )
  }

  it.scoped("when its hold cannot be written: the run stops for the storage", () =>
    Effect.gen(function* () {
      const error = new StorageError({ reason: "full", message: "no space left" })
      const { call, meter, sent } = yield* metered({ says: () => error })
      assert.strictEqual(yield* Effect.flip(call(Exit.succeed(good))), error)
      assert.deepStrictEqual([sent, reasonOf(meter)], [[], { kind: "storage", message: "no space left" }])
      assert.deepStrictEqual(flown(meter), { spent: 0, uncertain: 0, held: 0, calls: 0, inFlight: 0 })
    })
  )

  it.scoped(
    "when who waits for it is interrupted: in the queue, it leaves it; just granted, it gives the permit back",
    () =>
      Effect.gen(function* () {
        const { call, meter, ops } = yield* metered()
        meter.dispatch(pause)
        const waits = yield* Effect.fork(call(Exit.succeed(good)))
        yield* Effect.yieldNow()
        yield* Fiber.interrupt(waits)
        meter.dispatch({ _tag: "Unpause" })
        assert.deepStrictEqual(flown(meter), { spent: 0, uncertain: 0, held: 0, calls: 0, inFlight: 0 })
        meter.dispatch(pause)
        const granted = yield* Effect.fork(call(Exit.succeed(good)))
        yield* Effect.yieldNow()
        meter.dispatch({ _tag: "Unpause" })
        assert.strictEqual(meter.state().inFlight, 1)
        yield* Fiber.interrupt(granted)
        assert.deepStrictEqual(flown(meter), { spent: 0, uncertain: 0, held: 0, calls: 0, inFlight: 0 })
        meter.dispatch(pause)
        const denied = yield* Effect.fork(call(Exit.succeed(good)))
        yield* Effect.yieldNow()
        meter.stop({ kind: "operator", message: "asked" })
        yield* Fiber.interrupt(denied)
        assert.deepStrictEqual(flown(meter), { spent: 0, uncertain: 0, held: 0, calls: 0, inFlight: 0 })
        assert.deepStrictEqual(ops, [])
      })
  )
})

describe("A hold that the book refuses", () => {
  const order = (order: Order): Op => ({ _tag: "Order", runId: "run", by: "ada", order, at: 1 })
  const none = { spent: 0, uncertain: 0, held: 0, calls: 0, inFlight: 0 }

  it.scoped(
    "because the run was paused just now: the call waits, with nothing held, and is sent once the pause is over",
    () =>
      Effect.gen(function* () {
        for (const known of [undefined, pause]) {
          const { call, meter, ops, real, sent } = yield* metered()
          yield* real.commit(order({ _tag: "Pause", by: "operator", message: "paused by ada" }))
          const waits = yield* Effect.fork(call(Exit.succeed(good)))
          if (known !== undefined) yield* Effect.sync(() => meter.dispatch(known))
          yield* TestClock.adjust(1)
          assert.deepStrictEqual([sent, flown(meter)], [[], none])
          const message = known === undefined ? "paused" : "paused by ada"
          assert.deepStrictEqual(meter.state().paused, { by: "operator", message })
          yield* real.commit(order({ _tag: "Unpause" }))
          meter.dispatch({ _tag: "Unpause" })
          assert.deepStrictEqual(yield* Fiber.join(waits), { answer: good, cost: Usd.nano(60) })
          assert.lengthOf(sent, 1)
          assert.strictEqual(meter.state().stop, null)
          // Its number is that of its second hold: numbers are never used again.
          const holds = ops.flatMap((op) => (op._tag === "Hold" ? [op.hold.n] : []))
          assert.deepStrictEqual(holds, known === undefined ? [1, 2] : [1])
        }
      })
  )

  it.scoped("because a limit was set lower just now: the call asks again under the new one", () =>
    Effect.gen(function* () {
      for (const [set, stop] of [
        [{ cap: Usd.nano(99) }, "the cap of $0.000000099 is reached"],
        [{ maxCalls: 0 }, "the limit of 0 calls is reached"]
      ] as const) {
        const { call, meter, real, sent } = yield* metered()
        yield* real.commit(order({ _tag: "Set", ...set }))
        assert.strictEqual((yield* Effect.flip(call(Exit.succeed(good))))._tag, "RunStopped")
        assert.include(reasonOf(meter)?.message, stop)
        assert.deepStrictEqual([sent, flown(meter)], [[], none])
      }
    })
  )

  it.scoped("although its limits are as they were: another worker spends from it, and the run stops", () =>
    Effect.gen(function* () {
      for (const [reason, message] of [
        ["cap", "the book has no room under the cap: another worker spends from it too"],
        ["max_calls", "the book's limit of calls is reached"]
      ] as const) {
        for (const reads of [undefined, () => () => Effect.succeed(undefined)]) {
          const says = (op: Op): Verdict | undefined => (op._tag === "Hold" ? { _tag: "Refused", reason } : undefined)
          const { call, meter, sent } = yield* metered({ says, ...(reads === undefined ? {} : { reads }) })
          assert.strictEqual((yield* Effect.flip(call(Exit.succeed(good))))._tag, "RunStopped")
          assert.strictEqual(reasonOf(meter)?.message, message)
          assert.deepStrictEqual([sent, flown(meter)], [[], none])
        }
      }
    })
  )

  it.scoped("and that cannot be read then: the run stops for the storage", () =>
    Effect.gen(function* () {
      const broken = new StorageError({ reason: "failed", message: "gone" })
      const says = (op: Op): Verdict | undefined =>
        op._tag === "Hold" ? { _tag: "Refused", reason: "cap" } : undefined
      const { call, meter } = yield* metered({ says, reads: () => () => broken })
      assert.strictEqual(yield* Effect.flip(call(Exit.succeed(good))), broken)
      assert.deepStrictEqual(reasonOf(meter), { kind: "storage", message: "gone" })
      assert.deepStrictEqual(flown(meter), none)
    })
  )

  it.scoped("because the run was given up, or for a fence: it stops for that", () =>
    Effect.gen(function* () {
      for (const [verdict, kind] of [
        [{ _tag: "Refused", reason: "cancelled" }, "cancelled"],
        [{ _tag: "Fenced" }, "fenced"]
      ] as const) {
        const { call, meter } = yield* metered({ says: (op) => (op._tag === "Hold" ? verdict : undefined) })
        yield* Effect.flip(call(Exit.succeed(good)))
        assert.strictEqual(reasonOf(meter)?.kind, kind)
        if (kind === "cancelled") assert.strictEqual(reasonOf(meter)?.message, "the run was cancelled")
      }
    })
  )
})

describe("A stop that is lifted", () => {
  it.scoped("is told no more: who asks then waits for the next one", () =>
    Effect.gen(function* () {
      const { meter } = yield* metered()
      const first: StopReason = { kind: "budget", message: "no room" }
      const early = yield* Effect.fork(meter.stopped)
      yield* Effect.yieldNow()
      meter.stop(first)
      assert.deepStrictEqual(yield* Fiber.join(early), first)
      // A limit that gives no more room lifts nothing.
      meter.dispatch({ _tag: "Limits", maxConcurrency: 3 })
      assert.deepStrictEqual(yield* meter.stopped, first)
      meter.dispatch({ _tag: "Limits", cap: null })
      const late = yield* Effect.fork(meter.stopped)
      yield* Effect.yieldNow()
      assert.isTrue(Option.isNone(yield* Fiber.poll(late)))
      meter.dispatch({ _tag: "Tick" })
      const second: StopReason = { kind: "operator", message: "asked" }
      meter.stop(second)
      assert.deepStrictEqual(yield* Fiber.join(late), second)
    })
  )
})

describe("A worker that was taken over", () => {
  const stale = (exit: Exit.Exit<ChatAnswer, LLMError>) =>
    Effect.gen(function* () {
      const fencing = (op: Op): Verdict | undefined =>
        op._tag === "Settle" || op._tag === "Release" ? { _tag: "Fenced" } : undefined
      yield* TestClock.setTime(9)
      const { call, meter, ops } = yield* metered({ says: fencing })
      yield* Effect.exit(call(exit))
      return { last: ops.at(-1), stop: reasonOf(meter), tags: tags(ops) }
    })
  const fencedOff = { kind: "fenced", message: "another process took this run over" } as const
  const base = { ...fence, n: 1, source: "late", at: 9 } as const

  it.scoped("stops, and says late what its call cost, or that it cost nothing", () =>
    Effect.gen(function* () {
      const settled = yield* stale(Exit.succeed(good))
      assert.deepStrictEqual(settled.stop, fencedOff)
      assert.strictEqual(settled.last?._tag, "Correct")
      if (settled.last?._tag === "Correct") {
        const { answer: text, ...correction } = settled.last.correction
        assert.deepStrictEqual(correction, { ...base, note: "", cost: Usd.nano(60), ...usage })
        assert.strictEqual(JSON.parse(text ?? "{}").text, "fine")
      }
      const released = yield* stale(Exit.fail(wrong({ charge: "none", reason: "rate_limited" })))
      assert.deepStrictEqual(released.last, {
        _tag: "Correct",
        correction: { ...base, note: "rate_limited", cost: Usd.zero, ...noTokens, answer: null }
      })
      const unsure = yield* stale(Exit.fail(wrong()))
      assert.deepStrictEqual([unsure.tags, unsure.stop], [["Hold", "Uncertain"], null])
    })
  )

  it.scoped("a verdict that is none of that changes nothing", () =>
    Effect.gen(function* () {
      const { call, meter, ops } = yield* metered()
      yield* call(Exit.succeed(good))
      assert.deepStrictEqual([tags(ops), reasonOf(meter)], [["Hold", "Settle"], null])
      meter.fenced()
      assert.deepStrictEqual(reasonOf(meter), fencedOff)
    })
  )
})

describe("Who hears of a call's end", () => {
  it.scoped("hears before the hold is closed; what breaks there breaks the call, but closes the hold", () =>
    Effect.gen(function* () {
      const { meter, money, ops } = yield* metered()
      let before: ReadonlyArray<string> = []
      const hears = () =>
        Effect.suspend(() => {
          before = tags(ops)
          return Effect.dieMessage("deaf")
        })
      const exit = yield* Effect.exit(meter.call(callOf(), () => Exit.succeed(good), hears))
      assert.isTrue(Exit.isFailure(exit))
      assert.deepStrictEqual([before, tags(ops)], [["Hold"], ["Hold", "Settle"]])
      assert.deepStrictEqual(yield* money, { spent: 60, uncertain: 0, held: 0, calls: 1 })
      const throws = yield* Effect.exit(
        meter.call(
          callOf(),
          () => Exit.succeed(good),
          () => {
            throw new Error("deaf")
          }
        )
      )
      assert.isTrue(Exit.isFailure(throws))
      assert.strictEqual(meter.state().inFlight, 0)
    })
  )

  it.scoped("hears before it is asked whether the call still steers: it was asked while the hold was open", () =>
    Effect.gen(function* () {
      const { meter } = yield* metered()
      const order: Array<string> = []
      const steers = () => {
        order.push("steers")
        return true
      }
      yield* meter.call(
        callOf({ steers }),
        () => Exit.succeed(good),
        () => Effect.sync(() => void order.push("heard"))
      )
      assert.deepStrictEqual(order, ["steers", "heard"])
    })
  )
})

describe("What a call's end says of the speed", () => {
  const paced = { tokensPerMinute: 6_000 }
  /** When the next call may go: a call of 50 tokens takes 500 ms, less what is given back, 10 ms a token. */
  const nextAt = (exit: Exit.Exit<ChatAnswer, LLMError>, parts: Partial<Meter.Call>) =>
    Effect.gen(function* () {
      const { call, meter } = yield* metered({ book: paced })
      yield* Effect.exit(call(exit, callOf(parts)))
      return meter.state().throttle.tokens.nextAt - meter.now()
    })

  it.scoped("gives back the tokens that were not used, if the provider counts so and said how many", () =>
    Effect.gen(function* () {
      assert.strictEqual(yield* nextAt(Exit.succeed(good), { refunds: true }), 100)
      assert.strictEqual(yield* nextAt(Exit.succeed(good), { refunds: false }), 500)
      assert.strictEqual(yield* nextAt(Exit.succeed(good), { refunds: true, tokens: 5 }), 50)
      assert.strictEqual(yield* nextAt(Exit.succeed(good), { refunds: true, steers: () => false }), 500)
      const silent = Exit.succeed(answer({ text: "fine", model: "m", usage: undefined }))
      assert.strictEqual(yield* nextAt(silent, { refunds: true }), 500)
      assert.strictEqual(yield* nextAt(Exit.fail(wrong()), { refunds: true }), 500)
      const nonsense = answer({ text: "fine", model: "m", usage: { ...usage, inputTokens: Number.NaN } })
      assert.strictEqual(yield* nextAt(Exit.succeed(nonsense), { refunds: true }), 500)
    })
  )

  /** Two calls in flight, of which the first ends so: whether it counted as one too many, and what retries it earned. */
  const heardAs = (exit: Exit.Exit<ChatAnswer, LLMError>, parts: Partial<Meter.Call> = {}) =>
    Effect.gen(function* () {
      const { meter } = yield* metered()
      const never = () => Effect.never
      yield* Effect.fork(meter.call(callOf(), never, () => Effect.void))
      yield* Effect.yieldNow()
      const drop: Event = { _tag: "Rerouted" }
      if (parts.attempt !== undefined) meter.dispatch(drop)
      yield* Effect.exit(
        meter.call(
          callOf(parts),
          () => exit,
          () => Effect.void
        )
      )
      return { refused: meter.state().throttle.refused, retries: meter.state().throttle.retries }
    })

  it.scoped("too many at once, or an answer, or nothing", () =>
    Effect.gen(function* () {
      const refused = (exit: Exit.Exit<ChatAnswer, LLMError>, parts: Partial<Meter.Call> = {}) =>
        Effect.map(heardAs(exit, parts), (found) => found.refused)
      assert.strictEqual(yield* refused(Exit.fail(wrong({ reason: "rate_limited", charge: "none" }))), 1)
      assert.strictEqual(yield* refused(Exit.fail(wrong({ reason: "overloaded" }))), 1)
      assert.strictEqual(yield* refused(Exit.fail(wrong())), 0)
      assert.strictEqual(yield* refused(Exit.succeed(good)), 0)
      assert.strictEqual(yield* refused(Exit.die("broken")), 0)
      const elsewhere = { steers: () => false }
      assert.strictEqual(yield* refused(Exit.fail(wrong({ reason: "overloaded" })), elsewhere), 0)
    })
  )

  it.scoped("a retry that is answered gives its place back, also if the answer is that this row cannot be", () =>
    Effect.gen(function* () {
      const retries = (exit: Exit.Exit<ChatAnswer, LLMError>) =>
        Effect.map(heardAs(exit, { attempt: 1 }), (found) => found.retries)
      assert.strictEqual(yield* retries(Exit.succeed(good)), 10)
      const cannot = wrong({ category: "PERMANENT", reason: "bad_request", charge: "none", status: 400 })
      assert.strictEqual(yield* retries(Exit.fail(cannot)), 10)
      assert.strictEqual(yield* retries(Exit.fail(wrong())), 9)
      assert.strictEqual(yield* retries(Exit.die("broken")), 9)
    })
  )
})

describe("A row", () => {
  it.scoped("is under way for as long as its work is, however it ends", () =>
    Effect.gen(function* () {
      const { meter } = yield* metered()
      const rows = () => [...meter.state().rows].map(([seq]) => seq)
      assert.deepStrictEqual(yield* meter.row(3, Effect.sync(rows)), [3])
      assert.deepStrictEqual(rows(), [])
      assert.deepStrictEqual(yield* Effect.either(meter.row(3, Effect.fail("no"))), Either.left("no"))
      assert.deepStrictEqual(rows(), [])
      const fiber = yield* Effect.fork(meter.row(3, Effect.never))
      yield* Effect.yieldNow()
      assert.deepStrictEqual(rows(), [3])
      yield* Fiber.interrupt(fiber)
      assert.deepStrictEqual(rows(), [])
    })
  )
})

describe("The clock of a meter", () => {
  it.scoped("lets a call go when its time has come, and goes on for the next", () =>
    Effect.gen(function* () {
      const { call, meter, sent } = yield* metered({ book: { requestsPerMinute: 60 } })
      yield* Effect.fork(meter.ticking)
      yield* Effect.yieldNow()
      yield* Effect.fork(
        Effect.all(
          [1, 2, 3].map((seq) => call(Exit.succeed(good), callOf({ seq }))),
          { concurrency: 3 }
        )
      )
      yield* TestClock.adjust(0)
      assert.lengthOf(sent, 1)
      yield* TestClock.adjust(999)
      assert.lengthOf(sent, 1)
      yield* TestClock.adjust(1)
      assert.lengthOf(sent, 2)
      yield* TestClock.adjust(1_000)
      assert.lengthOf(sent, 3)
    })
  )

  it.scoped("follows a cool-down that comes while it waits, and a later one", () =>
    Effect.gen(function* () {
      const { call, meter, sent } = yield* metered()
      yield* Effect.fork(meter.ticking)
      yield* Effect.yieldNow()
      meter.dispatch({ _tag: "Cool", until: 1_000.5 })
      yield* Effect.fork(call(Exit.succeed(good)))
      yield* TestClock.adjust(500)
      meter.dispatch({ _tag: "Cool", until: 1_500.5 })
      yield* TestClock.adjust(1_000)
      assert.lengthOf(sent, 0)
      yield* TestClock.adjust(1)
      assert.lengthOf(sent, 1)
    })
  )
})

describe("An interruption", () => {
  it.scoped("drains the work: the run stops, what is under way ends, and then the interruption goes on", () =>
    Effect.gen(function* () {
      const { meter } = yield* metered()
      let ended = ""
      const ends = (how: string) =>
        Effect.sync(() => {
          ended = how
        })
      const work = Effect.sleep(100).pipe(
        Effect.zipRight(ends("finished")),
        Effect.onInterrupt(() => ends("aborted"))
      )
      for (const [grace, end] of [
        [200, "finished"],
        [50, "aborted"]
      ] as const) {
        ended = ""
        const fiber = yield* Effect.fork(Meter.drained(meter, grace, work))
        yield* Effect.yieldNow()
        const interrupting = yield* Effect.fork(Fiber.interrupt(fiber))
        yield* TestClock.adjust(49)
        assert.strictEqual(ended, "")
        yield* TestClock.adjust(100)
        assert.strictEqual(ended, end)
        assert.isTrue(Exit.isInterrupted(yield* Fiber.join(interrupting)))
      }
      assert.deepStrictEqual(reasonOf(meter), {
        kind: "interrupted",
        message: "interrupted; calls in flight were let finish"
      })
    })
  )

  it.scoped("that does not come leaves the work's own end", () =>
    Effect.gen(function* () {
      const { meter } = yield* metered()
      assert.strictEqual(yield* Meter.drained(meter, 10, Effect.succeed(1)), 1)
      assert.strictEqual(yield* Effect.flip(Meter.drained(meter, 10, Effect.fail("no"))), "no")
      assert.isNull(reasonOf(meter))
    })
  )
})
