/** The write path by itself: when it commits, in what groups, and what it does when a commit fails. The laws on real databases are in laws/Journal.test.ts. */
import { assert, describe, it } from "@effect/vitest"
import { Cause, Deferred, Effect, Exit, Fiber, Option } from "effect"
import * as JournalMemory from "../../src/layers/JournalMemory.ts"
import type { CallRecord, CorrectionRecord, Op, Verdict } from "../../src/services/Book.ts"
import { StorageError } from "../../src/services/Errors.ts"
import { corrected, type Driver, make } from "../../src/services/Journal.ts"
import { Usd } from "../../src/services/Usd.ts"
import { bookOf, holdOf, workerOf } from "../support/records.ts"

const ok: Verdict = { _tag: "Ok" }
const create: Op = { _tag: "Create", book: bookOf("run") }
const claim: Op = { _tag: "Claim", worker: workerOf("run"), dead: [], lost: Usd.zero }
const hold = (n: number, amount = 1): Op => ({ _tag: "Hold", hold: holdOf("run", n, amount) })
const full = new StorageError({ reason: "full", message: "no space left" })

/** A durable driver whose turns the test ends by hand, and whose transactions it may hold up or break. */
const driven = (transact?: (real: Driver["transact"]) => Driver["transact"]) => {
  const memory = JournalMemory.makeDriver()
  const turns: Array<() => void> = []
  const groups: Array<number> = []
  let byHand = true
  const through = transact?.(memory.transact) ?? memory.transact
  const driver: Driver = {
    ...memory,
    durable: true,
    later: (write) => void (byHand ? turns.push(write) : setImmediate(write)),
    transact: (needs, decide) =>
      Effect.suspend(() => {
        groups.push(needs.runs.size)
        return through(needs, decide)
      })
  }
  const endTurn = () => {
    const due = turns.splice(0)
    for (const write of due) write()
    return due.length
  }
  /** It is flushed at the end, when nobody ends turns any more. */
  const letGo = Effect.sync(() => {
    byHand = false
    endTurn()
  })
  const opened = Effect.tap(make(driver), () => Effect.addFinalizer(() => letGo))
  return { driver, endTurn, groups, opened }
}

describe("A durable journal", () => {
  it.scoped("commits all of one turn at once, in order, and tells each its verdict then and not before", () =>
    Effect.gen(function* () {
      const { endTurn, groups, opened } = driven()
      const journal = yield* opened
      const heard: Array<Verdict> = []
      const ops = [create, claim, hold(0, 900), hold(1, 101), hold(2, 100)]
      for (const op of ops) journal.append(op, (verdict) => heard.push(verdict))
      const last = yield* Effect.fork(journal.commit(hold(3, 1)))
      yield* Effect.yieldNow()
      assert.deepStrictEqual([heard, groups], [[], []])
      assert.strictEqual(endTurn(), 1)
      const cap: Verdict = { _tag: "Refused", reason: "cap" }
      assert.deepStrictEqual(heard, [ok, ok, ok, cap, ok])
      assert.deepStrictEqual(yield* Fiber.join(last), cap)
      assert.lengthOf(groups, 1)
      assert.strictEqual(endTurn(), 0, "nothing is left to write")
      journal.append(hold(4))
      assert.deepStrictEqual([endTurn(), groups.length], [1, 2])
    })
  )

  it.scoped("keeps what comes while it writes for the turn after", () =>
    Effect.gen(function* () {
      const gate = yield* Deferred.make<void>()
      const { endTurn, groups, opened } = driven(
        (real) => (needs, decide) => Effect.zipRight(Deferred.await(gate), real(needs, decide))
      )
      const journal = yield* opened
      yield* Effect.addFinalizer(() => Deferred.succeed(gate, undefined))
      const first = yield* Effect.fork(journal.commit(create))
      yield* Effect.yieldNow()
      endTurn()
      const heard: Array<Verdict> = []
      for (const op of [claim, hold(0)]) journal.append(op, (verdict) => heard.push(verdict))
      assert.strictEqual(endTurn(), 0, "one group at a time")
      yield* Deferred.succeed(gate, undefined)
      assert.deepStrictEqual(yield* Fiber.join(first), ok)
      yield* Effect.yieldNow()
      assert.strictEqual(endTurn(), 1)
      yield* Effect.yieldNow()
      assert.deepStrictEqual([heard, groups.length], [[ok, ok], 2])
    })
  )

  it.scopedLive("writes at the end of the event loop's turn where the driver has no turns of its own", () =>
    Effect.gen(function* () {
      const { later: _, ...driver } = driven().driver
      const journal = yield* make(driver)
      let heard: Verdict | undefined
      journal.append(create, (verdict) => {
        heard = verdict
      })
      yield* Effect.promise(() => Promise.resolve())
      assert.isUndefined(heard)
      yield* Effect.promise(() => new Promise((resolve) => setImmediate(resolve)))
      assert.deepStrictEqual(heard, ok)
    })
  )

  it.scoped("does not let go of a commit that is interrupted: it is written", () =>
    Effect.gen(function* () {
      const { endTurn, opened } = driven()
      const journal = yield* opened
      const committing = yield* Effect.fork(journal.commit(create))
      yield* Effect.yieldNow()
      const interrupting = yield* Effect.fork(Fiber.interrupt(committing))
      yield* Effect.yieldNow()
      assert.isTrue(Option.isNone(yield* Fiber.poll(interrupting)))
      endTurn()
      yield* Fiber.join(interrupting)
      assert.isDefined(yield* journal.reads.book("run"))
    })
  )

  it.effect("is flushed when its scope closes, broken or not", () =>
    Effect.gen(function* () {
      const { driver, endTurn } = driven()
      const writing = yield* Effect.fork(Effect.scoped(Effect.map(make(driver), (journal) => journal.append(create))))
      yield* Effect.yieldNow()
      assert.isTrue(Option.isNone(yield* Fiber.poll(writing)))
      endTurn()
      yield* Fiber.join(writing)
      assert.isDefined(yield* driver.reads.book("run"))
      const broken = driven(() => () => full)
      const failing = yield* Effect.fork(
        Effect.scoped(Effect.map(make(broken.driver), (journal) => journal.append(create)))
      )
      yield* Effect.yieldNow()
      broken.endTurn()
      yield* Fiber.join(failing)
    })
  )

  it.scoped("flush waits for all that was appended", () =>
    Effect.gen(function* () {
      const { endTurn, groups, opened } = driven()
      const journal = yield* opened
      journal.append(create)
      const flushing = yield* Effect.fork(journal.flush)
      yield* Effect.yieldNow()
      assert.isTrue(Option.isNone(yield* Fiber.poll(flushing)))
      endTurn()
      assert.isUndefined(yield* Fiber.join(flushing))
      assert.lengthOf(groups, 1)
    })
  )
})

describe("A journal in memory", () => {
  it.scoped("commits each operation at once", () =>
    Effect.gen(function* () {
      const memory = JournalMemory.makeDriver()
      const journal = yield* make(memory)
      const heard: Array<Verdict> = []
      journal.append(create, (verdict) => heard.push(verdict))
      journal.append(claim)
      assert.deepStrictEqual(heard, [ok])
      assert.deepStrictEqual(yield* journal.commit(hold(0, 1_001)), { _tag: "Refused", reason: "cap" })
    })
  )

  it.scoped("shows the database as it is", () =>
    Effect.gen(function* () {
      const memory = JournalMemory.makeDriver()
      const journal = yield* make(memory)
      const { anchor, check, durable, location, lock, reads } = memory
      const { anchor: a, check: c, durable: d, location: l, lock: k, reads: r } = journal
      assert.deepStrictEqual([a, c, d, l, k, r], [anchor, check, durable, location, lock, reads])
    })
  )

  it.scoped("takes the word of a database that decides nothing: what it did not refuse went through", () =>
    Effect.gen(function* () {
      const journal = yield* make({ ...JournalMemory.makeDriver(), transact: () => Effect.void })
      assert.deepStrictEqual(yield* journal.commit(create), ok)
    })
  )
})

describe("A commit that fails", () => {
  it.scoped(
    "I10: breaks the journal for good: the group, what waited meanwhile, and all that comes after, by the first error",
    () =>
      Effect.gen(function* () {
        const gate = yield* Deferred.make<void>()
        let writes = 0
        const { endTurn, opened } = driven(
          () => () =>
            Effect.suspend(() => {
              writes++
              return Effect.zipRight(Deferred.await(gate), full)
            })
        )
        const journal = yield* opened
        const breaking = yield* Effect.fork(journal.broken)
        const heard: Array<Verdict> = []
        journal.append(create, (verdict) => heard.push(verdict))
        journal.append(claim)
        const first = yield* Effect.fork(Effect.flip(journal.commit(hold(0))))
        yield* Effect.yieldNow()
        endTurn()
        const meanwhile = yield* Effect.fork(Effect.flip(journal.commit(hold(1))))
        yield* Effect.yieldNow()
        assert.isTrue(Option.isNone(yield* Fiber.poll(breaking)))
        yield* Deferred.succeed(gate, undefined)
        assert.strictEqual(yield* Fiber.join(first), full)
        yield* Effect.yieldNow()
        endTurn()
        assert.strictEqual(yield* Fiber.join(meanwhile), full)
        journal.append(hold(2), (verdict) => heard.push(verdict))
        assert.strictEqual(yield* Effect.flip(journal.commit(hold(3))), full)
        assert.strictEqual(yield* Effect.flip(journal.flush), full)
        assert.strictEqual(yield* Effect.flip(Fiber.join(breaking)), full)
        assert.strictEqual(yield* Effect.flip(journal.broken), full)
        assert.deepStrictEqual([writes, endTurn(), heard], [1, 0, []])
      })
  )

  it.scoped("I10: by a defect is a StorageError that carries it", () =>
    Effect.gen(function* () {
      const defect = new Error("off by one")
      const journal = yield* make({ ...JournalMemory.makeDriver(), transact: () => Effect.die(defect) })
      const exit = yield* Effect.exit(journal.commit(create))
      assert.isTrue(Exit.isFailure(exit))
      const error = Exit.isFailure(exit) ? Option.getOrThrow(Cause.failureOption(exit.cause)) : full
      assert.deepStrictEqual([error._tag, error.reason, error.cause], ["StorageError", "broken", defect])
      assert.include(error.message, "off by one")
      assert.strictEqual(yield* Effect.flip(journal.commit(claim)), error)
    })
  )
})

describe("A call as it is known now", () => {
  const tokens = { inputTokens: 1, cachedTokens: 2, cacheWriteTokens: 3, outputTokens: 4, reasoningTokens: 5 }
  const call: CallRecord = {
    ...holdOf("run", 0, 30),
    inputTokens: 0,
    cachedTokens: 0,
    cacheWriteTokens: 0,
    outputTokens: 0,
    reasoningTokens: 0,
    state: "uncertain",
    cost: Usd.nano(30),
    reason: "timeout",
    answer: "half",
    finish: null,
    requestId: "req",
    closedAt: 9
  }
  const correction: CorrectionRecord = {
    runId: "run",
    worker: 1,
    n: 0,
    source: "report",
    cost: Usd.nano(12),
    answer: null,
    note: "note",
    at: 99,
    ...tokens
  }

  it("is as it was closed, unless more was learned of it: then it is settled at that, and keeps the rest", () => {
    assert.strictEqual(corrected(call, undefined), call)
    const known = { ...call, ...tokens, state: "settled", cost: Usd.nano(12), reason: "report" } as const
    assert.deepStrictEqual(corrected(call, correction), known)
    assert.deepStrictEqual(corrected(call, { ...correction, answer: "all" }), { ...known, answer: "all" })
  })
})
