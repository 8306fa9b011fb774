import { assert, describe, it } from "@effect/vitest"
import { Deferred, Effect, Exit, Fiber, Schema } from "effect"
import { Journal } from "../../src/services/Journal.ts"
import { Store } from "../../src/services/Store.ts"
import { backends } from "./backends.ts"

const Answer = Schema.Struct({ risk: Schema.String, seen: Schema.Date })
const answer = (risk: string): typeof Answer.Type => ({ risk, seen: new Date(5) })
const json = (risk: string) => JSON.stringify(Schema.encodeSync(Answer)(answer(risk)))

/** Lets every other fiber go on until all wait: a commit of SQLite takes a turn of the event loop. */
const settle = Effect.forEach(
  Array.from({ length: 10 }),
  () => Effect.promise(() => new Promise((resolve) => setImmediate(resolve))),
  { discard: true }
)

for (const backend of backends) {
  const law = <E>(title: string, test: Effect.Effect<void, E, Store | Journal>) =>
    it.effect(title, () => Effect.provide(test, backend.layer()))

  const stored = (key: string) =>
    Effect.flatMap(Journal, (journal) => Effect.map(journal.reads.values([key]), (found) => found.get(key)))

  describe(`Store laws on ${backend.name}`, () => {
    law(
      "I15: a producer runs once, its value is stored, equal by value, and the next call does not run its own",
      Effect.gen(function* () {
        const store = yield* Store
        assert.deepStrictEqual(yield* store.getOrSet("k", Answer, Effect.succeed(answer("low"))), answer("low"))
        assert.deepStrictEqual(yield* store.getOrSet("k", Answer, Effect.die("must not run")), answer("low"))
        assert.strictEqual(yield* stored("k"), json("low"))
      })
    )

    law(
      "I15: a producer that fails, dies or is interrupted is not stored, and the next call runs its own",
      Effect.gen(function* () {
        const store = yield* Store
        const bad: ReadonlyArray<Effect.Effect<typeof Answer.Type, string>> = [
          Effect.fail("no"),
          Effect.die("bug"),
          Effect.interrupt
        ]
        for (const producer of bad) {
          const exit = yield* Effect.exit(store.getOrSet("k", Answer, producer))
          assert.deepStrictEqual(exit, yield* Effect.exit(producer))
          assert.isUndefined(yield* stored("k"))
        }
        assert.deepStrictEqual(yield* store.getOrSet("k", Answer, Effect.succeed(answer("low"))), answer("low"))
        assert.strictEqual(yield* stored("k"), json("low"))
      })
    )

    law(
      "I15: a producer interrupted from outside is not stored, and the next call runs its own",
      Effect.gen(function* () {
        const store = yield* Store
        const caller = yield* Effect.fork(store.getOrSet("k", Answer, Effect.never))
        yield* settle
        assert.isTrue(Exit.isInterrupted(yield* Fiber.interrupt(caller)))
        assert.isUndefined(yield* stored("k"))
        assert.deepStrictEqual(yield* store.getOrSet("k", Answer, Effect.succeed(answer("low"))), answer("low"))
      })
    )

    law(
      "I15: 100 concurrent callers of one key share one producer run and get its value; another key does not wait",
      Effect.gen(function* () {
        const store = yield* Store
        const gate = yield* Deferred.make<void>()
        let runs = 0
        const producer = Effect.suspend(() => {
          runs++
          return Effect.as(Deferred.await(gate), answer(`run ${runs}`))
        })
        const callers = yield* Effect.fork(
          Effect.forEach(Array.from({ length: 100 }), () => store.getOrSet("k", Answer, producer), {
            concurrency: "unbounded"
          })
        )
        yield* settle
        assert.deepStrictEqual(yield* store.getOrSet("other", Answer, Effect.succeed(answer("o"))), answer("o"))
        yield* Deferred.succeed(gate, undefined)
        for (const value of yield* callers) assert.deepStrictEqual(value, answer("run 1"))
        assert.strictEqual(runs, 1)
      })
    )

    law(
      "I15: after a failure the next waiting caller runs its own producer, and only the first caller sees the failure",
      Effect.gen(function* () {
        const store = yield* Store
        const gate = yield* Deferred.make<void>()
        let runs = 0
        const producer = Effect.suspend((): Effect.Effect<typeof Answer.Type, string> => {
          runs++
          const failing = runs <= 2
          return Effect.zipRight(Deferred.await(gate), failing ? Effect.fail("no") : Effect.succeed(answer("low")))
        })
        const callers = yield* Effect.fork(
          Effect.forEach(Array.from({ length: 10 }), () => Effect.either(store.getOrSet("k", Answer, producer)), {
            concurrency: "unbounded"
          })
        )
        yield* settle
        yield* Deferred.succeed(gate, undefined)
        const results = yield* callers
        assert.strictEqual(runs, 3)
        assert.strictEqual(results.filter((result) => result._tag === "Left").length, 2)
        for (const result of results) if (result._tag === "Right") assert.deepStrictEqual(result.right, answer("low"))
      })
    )

    law(
      "I15: interrupting the leader does not lose the others: one of them runs its own producer and all get its value",
      Effect.gen(function* () {
        const store = yield* Store
        let runs = 0
        const own = Effect.sync(() => {
          runs++
          return answer("second")
        })
        const leader = yield* Effect.fork(store.getOrSet("k", Answer, Effect.never))
        yield* settle
        const others = yield* Effect.fork(
          Effect.forEach(Array.from({ length: 20 }), () => store.getOrSet("k", Answer, own), {
            concurrency: "unbounded"
          })
        )
        yield* settle
        assert.strictEqual(runs, 0)
        yield* Fiber.interrupt(leader)
        const values = yield* others
        assert.strictEqual(values.length, 20)
        for (const value of values) assert.deepStrictEqual(value, answer("second"))
        assert.strictEqual(runs, 1)
      })
    )

    law(
      "I15: interrupting a waiting caller leaves the leader and the other waiters alone",
      Effect.gen(function* () {
        const store = yield* Store
        const gate = yield* Deferred.make<void>()
        const producer = Effect.as(Deferred.await(gate), answer("low"))
        const leader = yield* Effect.fork(store.getOrSet("k", Answer, producer))
        yield* settle
        const waiter = yield* Effect.fork(store.getOrSet("k", Answer, Effect.die("must not run")))
        const other = yield* Effect.fork(store.getOrSet("k", Answer, Effect.die("must not run")))
        yield* settle
        assert.isTrue(Exit.isInterrupted(yield* Fiber.interrupt(waiter)))
        yield* Deferred.succeed(gate, undefined)
        assert.deepStrictEqual(yield* leader, answer("low"))
        assert.deepStrictEqual(yield* other, answer("low"))
      })
    )

    for (const [name, old] of [
      ["an older shape", `{"risk":"low"}`],
      ["bytes that are no JSON", "{"]
    ] as const) {
      law(
        `I16: a stored value of ${name} is a miss with a count in stale, then overwritten by the new result`,
        Effect.gen(function* () {
          const store = yield* Store
          const journal = yield* Journal
          store.putMany([
            ["k", old],
            ["fresh", json("fresh")]
          ])
          yield* journal.flush
          const found = yield* store.getMany(["k", "fresh", "absent"], Answer)
          assert.deepStrictEqual([...found], [["fresh", answer("fresh")]])
          assert.strictEqual(yield* store.stale, 1)
          assert.deepStrictEqual(yield* store.getOrSet("k", Answer, Effect.succeed(answer("new"))), answer("new"))
          assert.strictEqual(yield* store.stale, 2)
          assert.strictEqual(yield* stored("k"), json("new"))
          assert.deepStrictEqual(yield* store.getOrSet("k", Answer, Effect.die("must not run")), answer("new"))
          assert.strictEqual(yield* store.stale, 2)
        })
      )
    }

    law(
      "I16: a stale value whose new producer fails stays as it was",
      Effect.gen(function* () {
        const store = yield* Store
        store.putMany([["k", `{"risk":"low"}`]])
        yield* Effect.flatMap(Journal, (journal) => journal.flush)
        assert.strictEqual(yield* Effect.flip(store.getOrSet("k", Answer, Effect.fail("no"))), "no")
        assert.strictEqual(yield* stored("k"), `{"risk":"low"}`)
      })
    )

    law(
      "I15: the first writer of a key wins for putMany: within a batch, within a commit and later",
      Effect.gen(function* () {
        const store = yield* Store
        const journal = yield* Journal
        store.putMany([
          ["a", json("first")],
          ["a", json("second")],
          ["b", json("first")]
        ])
        store.putMany([["b", json("second")]])
        yield* journal.flush
        store.putMany([
          ["a", json("third")],
          ["c", json("first")]
        ])
        store.putMany([])
        yield* journal.flush
        const found = yield* store.getMany(["a", "b", "c"], Answer)
        assert.deepStrictEqual(
          ["a", "b", "c"].map((key) => found.get(key)?.risk),
          ["first", "first", "first"]
        )
        assert.strictEqual(yield* store.stale, 0)
      })
    )

    law(
      "I15: getMany of 1,200 keys gives every stored value and no other, whatever the order and the repeats",
      Effect.gen(function* () {
        const store = yield* Store
        const keys = Array.from({ length: 1_200 }, (_, n) => `key-${n}`)
        store.putMany(keys.map((key) => [key, json(key)] as const))
        yield* Effect.flatMap(Journal, (journal) => journal.flush)
        const asked = [...keys.slice(600), "absent", ...keys.slice(0, 600), "key-7"]
        const found = yield* store.getMany(asked, Answer)
        assert.strictEqual(found.size, 1_200)
        for (const key of keys) assert.strictEqual(found.get(key)?.risk, key)
        assert.strictEqual((yield* store.getMany([], Answer)).size, 0)
      })
    )
  })
}
