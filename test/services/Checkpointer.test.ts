/** The checkpointer by itself, in memory: what it writes, what it refuses, what it gives back. The laws on real databases are in laws/Checkpointer.test.ts. */
import { assert, describe, it } from "@effect/vitest"
import { Effect, Layer, Option, Schema, TestClock } from "effect"
import * as JournalMemory from "../../src/layers/JournalMemory.ts"
import type { Op } from "../../src/services/Book.ts"
import * as Checkpointer from "../../src/services/Checkpointer.ts"
import { Journal, make } from "../../src/services/Journal.ts"

const State = Schema.Struct({ done: Schema.Array(Schema.Int), at: Schema.Date })
const state: typeof State.Type = { done: [1, 2], at: new Date(0) }

/** A checkpointer over a book in memory, and what it wrote there. */
const made = Effect.gen(function* () {
  const real = yield* make(JournalMemory.makeDriver())
  const ops: Array<Op> = []
  const journal: typeof real = {
    ...real,
    commit: (op) =>
      Effect.suspend(() => {
        ops.push(op)
        return real.commit(op)
      })
  }
  const layer = Layer.provide(Checkpointer.layer, Layer.succeed(Journal, journal))
  return { checkpointer: yield* Effect.provide(Checkpointer.Checkpointer, layer), ops }
})

describe("A snapshot", () => {
  it.scoped("writes the encoded state; what is not said is RUNNING, without metadata, and all versions stay", () =>
    Effect.gen(function* () {
      yield* TestClock.setTime(7)
      const { checkpointer, ops } = yield* made
      assert.isFalse(checkpointer.durable)
      assert.strictEqual(yield* checkpointer.snapshot("job", State, state), 1)
      const metadata = { step: 3, name: "half" }
      const options = { status: "DONE", metadata, keep: 2 } as const
      assert.strictEqual(yield* checkpointer.snapshot("job", State, state, options), 2)
      const json = `{"done":[1,2],"at":"1970-01-01T00:00:00.000Z"}`
      const written = { _tag: "Snapshot", id: "job", state: json, at: 7 }
      assert.deepStrictEqual<ReadonlyArray<unknown>>(ops, [
        { ...written, status: "RUNNING", metadata: "{}", keep: "all" },
        { ...written, status: "DONE", metadata: JSON.stringify(metadata), keep: 2 }
      ])
    })
  )

  it.scoped("comes back as it was: the latest, or one of its versions; frozen", () =>
    Effect.gen(function* () {
      yield* TestClock.setTime(7)
      const { checkpointer } = yield* made
      assert.deepStrictEqual(yield* checkpointer.resume("job", State), Option.none())
      const metadata = { step: 3 }
      yield* checkpointer.snapshot("job", State, state, { metadata })
      yield* checkpointer.snapshot("job", State, { ...state, done: [] }, { status: "SUSPENDED" })
      const first = { id: "job", version: 1, status: "RUNNING", state, metadata, at: 7 } as const
      const second = { ...first, version: 2, status: "SUSPENDED", state: { ...state, done: [] }, metadata: {} } as const
      const found = yield* checkpointer.get("job", 1, State)
      assert.deepStrictEqual(found, Option.some(first))
      assert.isFrozen(Option.getOrThrow(found).state.done)
      assert.deepStrictEqual(yield* checkpointer.resume("job", State), Option.some(second))
      assert.deepStrictEqual(yield* checkpointer.get("job", 3, State), Option.none())
      assert.deepStrictEqual(yield* checkpointer.listVersions("job"), [1, 2])
      yield* checkpointer.delete("job")
      assert.deepStrictEqual(yield* checkpointer.listVersions("job"), [])
    })
  )

  it.scoped(
    "I2: takes whatever JSON has: a property that is undefined is absent, an object may be without a prototype",
    () =>
      Effect.gen(function* () {
        const { checkpointer } = yield* made
        const bare: unknown = Object.assign(Object.create(null), { a: undefined, b: [null, "x", true, 1.5, {}] })
        yield* checkpointer.snapshot("job", Schema.Unknown, bare)
        const found = yield* checkpointer.resume("job", Schema.Unknown)
        assert.deepStrictEqual(Option.getOrThrow(found).state, { b: [null, "x", true, 1.5, {}] })
      })
  )

  const cycle: Array<unknown> = []
  cycle.push(cycle)
  const fix = "has no JSON form; give it one in the schema"
  for (const [value, message] of [
    [{ a: [1, () => 1] }, `at ".a[1]": () => 1 ${fix}`],
    [{ a: { b: Number.NaN } }, `at ".a.b": NaN ${fix}`],
    [Number.POSITIVE_INFINITY, `at "": Infinity ${fix}`],
    [[undefined], `at "[0]": undefined ${fix}`],
    [undefined, `at "": undefined ${fix}`],
    [{ a: new Map() }, `at ".a": [object Map] ${fix}`],
    [[new Date(0)], `at "[0]": ${String(new Date(0))} ${fix}`],
    [{ a: Symbol("s") }, `at ".a": Symbol(s) ${fix}`],
    [{ a: 1n }, "Do not know how to serialize a BigInt"]
  ] as const) {
    it.scoped(`I2: refuses what would not come back: ${message}`, () =>
      Effect.gen(function* () {
        const { checkpointer, ops } = yield* made
        const error = yield* Effect.flip(checkpointer.snapshot("job", Schema.Unknown, value))
        assert.instanceOf(error, Checkpointer.CheckpointError)
        assert.deepInclude(error, {
          reason: "encode",
          id: "job",
          message: `the state of job cannot be stored: ${message}`
        })
        assert.deepStrictEqual(ops, [])
      })
    )
  }

  it.scoped("I2: refuses what its schema does not take, state or metadata", () =>
    Effect.gen(function* () {
      const { checkpointer, ops } = yield* made
      const positive = Schema.Struct({ n: Schema.Positive })
      const error = yield* Effect.flip(checkpointer.snapshot("job", positive, { n: -1 }))
      assert.deepInclude(error, { _tag: "CheckpointError", reason: "encode", id: "job" })
      assert.include(error.message, "the state of job cannot be stored:")
      assert.include(error.message, `└─ ["n"]`)
      const metadata = { n: Number.NaN }
      const other = yield* Effect.flip(checkpointer.snapshot("job", State, state, { metadata }))
      assert.deepInclude(other, { _tag: "CheckpointError", reason: "encode" })
      assert.deepStrictEqual(ops, [])
    })
  )

  it.scoped("I2: that no longer fits the schema is a typed error at the resume", () =>
    Effect.gen(function* () {
      const { checkpointer } = yield* made
      yield* checkpointer.snapshot("job", State, state)
      const Newer = Schema.Struct({ count: Schema.Int })
      const error = yield* Effect.flip(checkpointer.resume("job", Newer))
      assert.deepInclude(error, { _tag: "CheckpointError", reason: "decode", id: "job" })
      assert.include(error.message, "version 1 of job does not fit the schema:")
      assert.include(error.message, `["count"]`)
    })
  )
})
