import { assert, describe, it } from "@effect/vitest"
import { Deferred, Duration, Effect, Either, Exit, Fiber, TestClock } from "effect"
import * as fc from "fast-check"
import { FanOutError, type Gather, gatherBounded, runAgents } from "../../src/programs/FanOut.ts"
import * as Failure from "../../src/services/Failure.ts"

/** Counts who is alive at once. */
const makeGauge = () => {
  const gauge = { live: 0, most: 0 }
  const inside = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
    Effect.acquireUseRelease(
      Effect.sync(() => {
        gauge.live++
        gauge.most = Math.max(gauge.most, gauge.live)
      }),
      () => effect,
      () => Effect.sync(() => gauge.live--)
    )
  return { gauge, inside }
}

/** Lets virtual time pass until the effect ends. */
const elapse = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.gen(function* () {
    const fiber = yield* Effect.fork(effect)
    yield* TestClock.adjust("1 day")
    return yield* Fiber.join(fiber)
  })

/** A delay that a property can afford: so many turns of the scheduler. */
const pause = (turns: number) => Effect.repeatN(Effect.yieldNow(), turns)

/** Room for a busy machine. */
const property = { timeout: 30_000, fastCheck: { numRuns: 60 } }

const bestEffort = (concurrency: number) => ({ concurrency, mode: "bestEffort" }) as const
const failFast = (concurrency: number) => ({ concurrency, mode: "failFast" }) as const

describe("FanOut", () => {
  it.effect.prop(
    "I7: a fan-out keeps input order and never exceeds its concurrency, whatever the delays",
    {
      delays: fc.array(fc.nat(50), { maxLength: 40 }),
      concurrency: fc.integer({ min: 1, max: 8 }),
      fast: fc.boolean()
    },
    ({ delays, concurrency, fast }) =>
      Effect.gen(function* () {
        const { gauge, inside } = makeGauge()
        const items = delays.map((turns, index) => inside(Effect.as(pause(turns), index)))
        const results: ReadonlyArray<number> = fast
          ? yield* gatherBounded(items, failFast(concurrency))
          : (yield* gatherBounded(items, bestEffort(concurrency))).map(Either.getOrThrow)
        assert.deepStrictEqual([...results], [...delays.keys()])
        assert.isAtMost(gauge.most, concurrency)
        assert.strictEqual(gauge.live, 0)
      }),
    property
  )

  it.effect.prop(
    "I7: calls in nested fan-outs never exceed the one admission, and do not deadlock on it",
    {
      rows: fc.array(fc.array(fc.nat(20), { maxLength: 6 }), { maxLength: 10 }),
      outer: fc.integer({ min: 1, max: 6 }),
      inner: fc.integer({ min: 1, max: 6 }),
      cap: fc.integer({ min: 1, max: 4 })
    },
    ({ rows, outer, inner, cap }) =>
      Effect.gen(function* () {
        const calls = makeGauge()
        const items = makeGauge()
        // stands in for the run's admission: its permit covers the call only
        const admission = yield* Effect.makeSemaphore(cap)
        const call = (turns: number) =>
          items.inside(admission.withPermits(1)(calls.inside(Effect.as(pause(turns), turns))))
        const results = yield* gatherBounded(
          rows.map((row) => gatherBounded(row.map(call), failFast(inner))),
          failFast(outer)
        )
        assert.deepStrictEqual(
          results.map((row) => [...row]),
          rows
        )
        assert.isAtMost(calls.gauge.most, cap)
        assert.isAtMost(items.gauge.most, outer * inner)
      }),
    property
  )

  for (const [what, gather] of lossyGathers()) {
    for (const options of [bestEffort(2), failFast(2)]) {
      it.effect(`I8: a fan-out that ${what} is a typed arity error (${options.mode})`, () =>
        Effect.gen(function* () {
          const items = [1, 2, 3].map((n) => Effect.succeed(n))
          const error = yield* Effect.flip(
            options.mode === "bestEffort"
              ? Effect.asVoid(gatherBounded(items, { ...options, gather }))
              : Effect.asVoid(gatherBounded(items, { ...options, gather }))
          )
          assert.instanceOf(error, FanOutError)
          assert.strictEqual(error.reason, "arity")
        })
      )
    }
  }

  it.effect("I4: best effort: a failed or dead item is a frozen Failure in its own place, the others run", () =>
    Effect.gen(function* () {
      const results = yield* gatherBounded(
        [
          Effect.succeed("a"),
          Effect.fail("no"),
          Effect.die(new Error("bug")),
          Effect.suspend(() => Effect.succeed("d"))
        ],
        bestEffort(2)
      )
      assert.deepStrictEqual(
        results.map(Either.match({ onLeft: (failure) => failure.message, onRight: (value) => value })),
        ["a", "no", "bug", "d"]
      )
      for (const failure of results.flatMap((result) => (Either.isLeft(result) ? [result.left] : []))) {
        assert.isTrue(Failure.is(failure))
        assert.isFrozen(failure)
      }
    })
  )

  it.effect("best effort: toFailure says how a typed error becomes a Failure", () =>
    Effect.gen(function* () {
      const toFailure = (error: { readonly code: string }) =>
        Failure.make({ category: "TRANSIENT", source: "llm", reason: error.code, message: "m", cause: [] })
      const [result] = yield* gatherBounded([Effect.fail({ code: "overloaded" })], { ...bestEffort(1), toFailure })
      assert.isTrue(result !== undefined && Either.isLeft(result) && result.left.reason === "overloaded")
    })
  )

  it.effect(
    "best effort: an item whose own inner fan-out dies is a Failure, though its siblings were interrupted",
    () =>
      Effect.gen(function* () {
        const inner = Effect.all([Effect.never, Effect.die("bug"), Effect.never], { concurrency: "unbounded" })
        const results = yield* gatherBounded([Effect.asVoid(inner), Effect.void], bestEffort(2))
        assert.deepStrictEqual(results.map(Either.isLeft), [true, false])
      })
  )

  for (const options of [bestEffort(2), failFast(2)]) {
    const gather = <A, E, R>(items: ReadonlyArray<Effect.Effect<A, E, R>>) =>
      options.mode === "bestEffort"
        ? Effect.asVoid(gatherBounded(items, options))
        : Effect.asVoid(gatherBounded(items, options))

    it.effect(`I19: interruption from outside interrupts the items and is never a Failure (${options.mode})`, () =>
      Effect.gen(function* () {
        const started = yield* Deferred.make<void>()
        let interrupted = 0
        let finished = false
        const item = Effect.onInterrupt(Effect.zipRight(Deferred.succeed(started, undefined), Effect.never), () =>
          Effect.sync(() => interrupted++)
        )
        const fiber = yield* Effect.fork(
          Effect.tap(gather([item, item, item]), () =>
            Effect.sync(() => {
              finished = true
            })
          )
        )
        yield* Deferred.await(started)
        yield* Effect.yieldNow()
        const exit = yield* Fiber.interrupt(fiber)
        assert.isTrue(Exit.isInterrupted(exit))
        assert.strictEqual(interrupted, 2)
        assert.isFalse(finished)
      })
    )

    it.effect(`I19: an item that ends by interruption ends the fan-out by interruption (${options.mode})`, () =>
      Effect.gen(function* () {
        const dying = Effect.ensuring(Effect.interrupt, Effect.die("finalizer"))
        for (const item of [Effect.interrupt, dying]) {
          const exit = yield* Effect.exit(gather([Effect.void, item]))
          assert.isTrue(Exit.isInterrupted(exit))
        }
      })
    )
  }

  it.effect("fail fast: started items finish, the rest stay unstarted, the first failure in time is raised", () =>
    Effect.gen(function* () {
      const log: Array<string> = []
      const note = (text: string) => Effect.sync(() => log.push(text))
      const item = (name: string, ms: number, error?: string) =>
        note(`${name} starts`).pipe(
          Effect.zipRight(Effect.sleep(Duration.millis(ms))),
          Effect.zipRight(error === undefined ? Effect.succeed(name) : Effect.fail(error)),
          Effect.tap(note(`${name} ends`))
        )
      const run = gatherBounded(
        [item("a", 30), item("b", 20, "late"), item("c", 10, "first"), item("d", 0), item("e", 0)],
        failFast(3)
      )
      const error = yield* elapse(Effect.flip(run))
      assert.strictEqual(error, "first")
      assert.deepStrictEqual(log, ["a starts", "b starts", "c starts", "a ends"])
    })
  )

  it.effect("fail fast: a defect stays a defect", () =>
    Effect.gen(function* () {
      const exit = yield* Effect.exit(gatherBounded([Effect.die("bug"), Effect.void], failFast(1)))
      assert.deepStrictEqual(exit, Exit.die("bug"))
    })
  )

  it.effect("a width that is no positive integer is a typed error", () =>
    Effect.gen(function* () {
      for (const concurrency of [0, -1, 1.5, Number.NaN, Number.POSITIVE_INFINITY]) {
        const error = yield* Effect.flip(gatherBounded([Effect.void], bestEffort(concurrency)))
        assert.strictEqual(error.reason, "concurrency")
      }
    })
  )

  it.effect("runAgents runs each agent on its row, in order; a run that throws is that row's Failure", () =>
    Effect.gen(function* () {
      const double = { run: (row: number) => Effect.succeed(row * 2) }
      const broken = {
        run: (_row: number): Effect.Effect<number> => {
          throw new Error("broken")
        }
      }
      const some = yield* runAgents(
        [
          [double, 1],
          [broken, 2],
          [double, 3]
        ],
        bestEffort(2)
      )
      assert.deepStrictEqual(some.map(Either.match({ onLeft: (failure) => failure.message, onRight: String })), [
        "2",
        "broken",
        "6"
      ])
      const all = yield* runAgents(
        [
          [double, 1],
          [double, 2]
        ],
        failFast(2)
      )
      assert.deepStrictEqual([...all], [2, 4])
    })
  )
})

function lossyGathers(): ReadonlyArray<readonly [string, Gather]> {
  return [
    [
      "returns fewer results than it was given",
      (effects) => Effect.map(Effect.all(effects), (all) => all.slice(0, -1))
    ],
    ["returns more", (effects) => Effect.map(Effect.all(effects), (all) => [...all, ...all])],
    ["returns them in another order", (effects) => Effect.map(Effect.all(effects), (all) => all.toReversed())]
  ]
}
