/**
 * Eight workers on one cap, whatever the order in which answers, commits and cancellations come: fast-check's scheduler chooses it. The same property is asked of a
 * budget that is only checked before a call and charged after it, and must fail there.
 */
import { assert, describe, it } from "@effect/vitest"
import { Effect, Fiber, type Scope } from "effect"
import fc from "fast-check"
import * as JournalMemory from "../../src/layers/JournalMemory.ts"
import { LLMError } from "../../src/services/Errors.ts"
import { type Driver, make as makeJournal } from "../../src/services/Journal.ts"
import { answer, type ChatAnswer, noTokens } from "../../src/services/LLM.ts"
import * as Meter from "../../src/services/Meter.ts"
import * as Price from "../../src/services/Price.ts"
import { Usd } from "../../src/services/Usd.ts"
import { bookOf, workerOf } from "./backends.ts"

const CAP = 400
const CONCURRENCY = 5
const WORKERS = 8

/** One call as the provider sees it: what it bills, at most the `amount`, and how it ends. */
interface Ask {
  readonly amount: number
  readonly part: number
  readonly end: "answered" | "silent" | "broken" | "refused" | "defect"
}

/** What a worker does, one call after another; it is cancelled at a random instant if `cancelled`. */
interface Script {
  readonly asks: ReadonlyArray<Ask>
  readonly cancelled: boolean
}

const costOf = ({ amount, part }: Ask): number => Math.floor(amount * part)
const error = (parts: Pick<LLMError, "reason" | "charge">) =>
  new LLMError({ category: "TRANSIENT", scope: "row", message: "scripted", ...parts })

/** A provider that bills as soon as it has a request, whatever becomes of its answer, which comes when the scheduler says so. */
const providerOf = (scheduler: fc.Scheduler) => {
  const counts = { bill: 0, inFlight: 0, most: 0, sent: 0 }
  const come = (ask: Ask): Effect.Effect<ChatAnswer, LLMError> => {
    switch (ask.end) {
      case "answered":
        return Effect.succeed(answer({ text: "fine", model: "m", usage: noTokens, cost: Usd.nano(costOf(ask)) }))
      case "silent":
        return Effect.succeed(answer({ text: "fine", model: "m", usage: undefined }))
      case "broken":
        return Effect.fail(error({ reason: "connection", charge: "uncertain" }))
      case "refused":
        return Effect.fail(error({ reason: "rate_limited", charge: "none" }))
      case "defect":
        return Effect.dieMessage("scripted")
    }
  }
  const send = (ask: Ask): Effect.Effect<ChatAnswer, LLMError> =>
    Effect.suspend(() => {
      counts.sent++
      counts.most = Math.max(counts.most, ++counts.inFlight)
      if (ask.end !== "refused") counts.bill += costOf(ask)
      const answered = Effect.promise(() => scheduler.schedule(Promise.resolve(), `answer ${ask.end}`))
      return Effect.ensuring(
        Effect.zipRight(answered, come(ask)),
        Effect.sync(() => counts.inFlight--)
      )
    })
  return { counts, send }
}

/** What stands between workers and provider: `counted` is what it holds against the cap at this moment. */
interface Gate {
  readonly call: (worker: number, n: number, ask: Ask) => Effect.Effect<unknown, unknown>
  readonly counted: () => number
  /** What does not hold when all is over. */
  readonly atEnd: Effect.Effect<ReadonlyArray<string>>
}

type MakeGate = (
  scheduler: fc.Scheduler,
  send: (ask: Ask) => Effect.Effect<ChatAnswer, LLMError>
) => Effect.Effect<Gate, never, Scope.Scope>

/** Ours: the meter over a book whose commits come late and in any interleaving with the answers. */
const metered: MakeGate = (scheduler, send) =>
  Effect.gen(function* () {
    const memory = JournalMemory.makeDriver()
    const driver: Driver = {
      ...memory,
      durable: true,
      later: (write) => void scheduler.schedule(Promise.resolve(), "commit").then(write)
    }
    const journal = yield* makeJournal(driver)
    const bookNow = Effect.orDie(Effect.flatMap(memory.reads.book("run"), Effect.fromNullable))
    const begun = bookOf("run", { cap: Usd.nano(CAP), maxConcurrency: CONCURRENCY })
    yield* Effect.orDie(journal.commit({ _tag: "Create", book: begun }))
    yield* Effect.orDie(journal.commit({ _tag: "Claim", worker: workerOf("run", 1), dead: [], lost: Usd.zero }))
    const clock = yield* Effect.clock
    const meter = Meter.make({ journal, book: yield* bookNow, clock, fence: { runId: "run", worker: 1 } })
    const counted = () => meter.state().spent + meter.state().uncertain + meter.state().held
    return {
      call: (worker, n, ask) =>
        meter.row(
          worker,
          meter.call(
            {
              seq: worker,
              epoch: 0,
              turn: n,
              attempt: 0,
              request: `${worker}/${n}`,
              model: "m",
              amount: Usd.nano(ask.amount),
              price: Price.free("m"),
              tokens: 0,
              refunds: false,
              steers: () => true,
              isStale: () => false,
              bill: ({ cost }) =>
                cost === undefined
                  ? { _tag: "Uncertain", reason: "no usage", unpriced: false }
                  : { _tag: "Known", usage: noTokens, cost, excess: undefined }
            },
            () => send(ask),
            () => Effect.void
          )
        ),
      counted,
      atEnd: Effect.gen(function* () {
        yield* Effect.orDie(journal.flush)
        const end = yield* bookNow
        const { held, inFlight, spent, uncertain } = meter.state()
        return [
          ...(held === 0 && end.held === 0 ? [] : [`held ${held}, in the book ${end.held}`]),
          ...(inFlight === 0 ? [] : [`${inFlight} in flight`]),
          ...(spent === end.spent && uncertain === end.uncertain ? [] : ["the book and the meter differ"])
        ]
      })
    }
  })

/** The seed's: the cap is looked at before the call, and the call charged after it. */
const guardOnly: MakeGate = (_, send) =>
  Effect.sync(() => {
    let spent = 0
    return {
      call: (_worker, _n, ask) =>
        Effect.gen(function* () {
          if (spent >= CAP) return yield* Effect.fail("the cap is reached")
          const { cost } = yield* send(ask)
          spent += cost ?? 0
        }),
      counted: () => spent,
      atEnd: Effect.succeed([])
    }
  })

/** What does not hold in one run of the eight workers. */
const brokenIn = (makeGate: MakeGate, scheduler: fc.Scheduler, scripts: ReadonlyArray<Script>) =>
  Effect.gen(function* () {
    const broken: Array<string> = []
    const { counts, send } = providerOf(scheduler)
    const look = (when: string) => {
      if (counts.bill > CAP) broken.push(`${when}: billed ${counts.bill} of ${CAP}`)
      if (counts.bill > gate.counted()) broken.push(`${when}: billed ${counts.bill}, counted ${gate.counted()}`)
      if (gate.counted() > CAP) broken.push(`${when}: counted ${gate.counted()} of ${CAP}`)
    }
    const gate = yield* makeGate(scheduler, (ask) => Effect.tap(send(ask), () => Effect.sync(() => look("answered"))))
    const work = (script: Script, worker: number) =>
      Effect.forEach(
        script.asks,
        (ask, n) =>
          Effect.zipRight(
            Effect.exit(gate.call(worker, n, ask)),
            Effect.sync(() => look("closed"))
          ),
        { discard: true }
      )
    const fibers = yield* Effect.forEach(scripts, (script, worker) => Effect.fork(work(script, worker)))
    const cancelling = fibers.map((fiber, i) =>
      scripts[i]?.cancelled === true
        ? Effect.zipRight(
            Effect.promise(() => scheduler.schedule(Promise.resolve(), "cancel")),
            Fiber.interrupt(fiber)
          )
        : Effect.void
    )
    yield* Effect.all(cancelling, { concurrency: "unbounded" })
    yield* Fiber.awaitAll(fibers)
    look("end")
    if (counts.most > CONCURRENCY) broken.push(`${counts.most} calls in flight`)
    return [...broken, ...(yield* gate.atEnd)]
  })

const ask: fc.Arbitrary<Ask> = fc.record({
  amount: fc.integer({ min: 1, max: 150 }),
  part: fc.oneof(fc.constant(1), fc.double({ min: 0, max: 1, noNaN: true })),
  end: fc.constantFrom<Ask["end"]>("answered", "answered", "answered", "silent", "broken", "refused", "defect")
})
const script: fc.Arbitrary<Script> = fc.record({
  asks: fc.array(ask, { minLength: 1, maxLength: 5 }),
  cancelled: fc.boolean()
})
const scripts = fc.array(script, { minLength: WORKERS, maxLength: WORKERS })

const law = (makeGate: MakeGate) =>
  fc.asyncProperty(fc.scheduler(), scripts, async (scheduler, given) => {
    const run = Effect.scoped(brokenIn(makeGate, scheduler, given))
    assert.deepStrictEqual(await scheduler.waitFor(Effect.runPromise(run)), [])
  })

describe("Eight workers on one cap", () => {
  it("I10: in any order of answers, commits, failures and cancellations the bill passes neither the book nor the cap", () =>
    fc.assert(law(metered), { numRuns: 1_000 }))

  it("a budget that is only checked before a call does not keep this law", async () => {
    const { counterexample, failed } = await fc.check(law(guardOnly), { numRuns: 100 })
    assert.isTrue(failed)
    assert.isNotNull(counterexample)
  })
})
