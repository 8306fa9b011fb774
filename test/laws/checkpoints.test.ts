/** The checkpointer against a model: eight fibers at once, each state changed in place as soon as it was asked to be kept; and any commands one after another. */
import { assert, describe, it } from "@effect/vitest"
import { Effect, Option, Runtime, Schema } from "effect"
import fc from "fast-check"
import { Checkpointer, type CheckpointerShape } from "../../src/services/Checkpointer.ts"
import { backends } from "./backends.ts"

/** A state that a program changes in place, with what JSON alone would not bring back. */
const State = Schema.Struct({
  ids: Schema.mutable(Schema.Array(Schema.Int)),
  notes: Schema.Map({ key: Schema.String, value: Schema.mutable(Schema.Array(Schema.String)) }),
  at: Schema.Date,
  big: Schema.BigInt
})
type State = typeof State.Type
const state: fc.Arbitrary<State> = fc.record({
  ids: fc.array(fc.integer()),
  notes: fc.array(fc.tuple(fc.string(), fc.array(fc.string()))).map((entries) => new Map(entries)),
  at: fc.date({ noInvalidDate: true }),
  big: fc.bigInt()
})
const spoil = (live: State): void => {
  live.ids.push(-1)
  live.notes.set("spoilt", ["x"])
  for (const note of live.notes.values()) note.push("spoilt")
  live.at.setTime(0)
}

/** What one fiber does: a snapshot or a look, after so many turns of the other fibers. */
interface Step {
  readonly id: "a" | "b"
  readonly yields: number
  readonly kept: State | undefined
}
const step: fc.Arbitrary<Step> = fc.record({
  id: fc.constantFrom<Step["id"]>("a", "b"),
  yields: fc.nat(3),
  kept: fc.option(state, { nil: undefined, freq: 4 })
})
const FIBERS = 8
const fibers = fc.array(fc.array(step, { maxLength: 4 }), { minLength: FIBERS, maxLength: FIBERS })

/** Eight fibers on two ids: each version holds what its caller had when it asked, and a look never goes back in time. */
const concurrently = (checkpointer: CheckpointerShape, run: string, scripts: ReadonlyArray<ReadonlyArray<Step>>) =>
  Effect.gen(function* () {
    const kept = new Map<string, Map<number, State>>()
    const versionsOf = (id: string) => kept.get(id) ?? new Map<number, State>()
    const one = ({ id, kept: live, yields }: Step) =>
      Effect.gen(function* () {
        for (let i = 0; i < yields; i++) yield* Effect.yieldNow()
        const name = `${run}/${id}`
        if (live === undefined) {
          const known = Math.max(0, ...versionsOf(name).keys())
          const found = yield* checkpointer.resume(name, State)
          assert.isAtLeast(Option.isSome(found) ? found.value.version : 0, known)
          return
        }
        const asked = structuredClone(live)
        // Both begin in one turn: the snapshot is asked for, and the state is changed at once.
        const [version] = yield* Effect.all(
          [checkpointer.snapshot(name, State, live), Effect.sync(() => spoil(live))],
          { concurrency: "unbounded" }
        )
        assert.isFalse(versionsOf(name).has(version), `version ${version} twice`)
        kept.set(name, versionsOf(name).set(version, asked))
      })
    yield* Effect.forEach(scripts, (script) => Effect.forEach(script, one), { concurrency: "unbounded" })
    for (const id of ["a", "b"]) {
      const name = `${run}/${id}`
      const versions = [...versionsOf(name).keys()].sort((a, b) => a - b)
      assert.deepStrictEqual(
        versions,
        versions.map((_, i) => i + 1)
      )
      assert.deepStrictEqual(yield* checkpointer.listVersions(name), versions)
      for (const [version, asked] of versionsOf(name)) {
        const found = yield* Effect.flatten(checkpointer.get(name, version, State))
        assert.deepStrictEqual(found.state, asked)
      }
    }
  })

type Command =
  | { readonly _tag: "snapshot"; readonly state: State; readonly done: boolean; readonly keep: number }
  | { readonly _tag: "resume" | "list" | "delete" }
  | { readonly _tag: "get"; readonly version: number }
const look = fc.constantFrom<"resume" | "list" | "delete">("resume", "resume", "list", "delete")
const command: fc.Arbitrary<Command> = fc.oneof(
  {
    weight: 5,
    arbitrary: fc.record({ _tag: fc.constant("snapshot" as const), state, done: fc.boolean(), keep: fc.nat(4) })
  },
  { weight: 2, arbitrary: fc.record({ _tag: look }) },
  { weight: 1, arbitrary: fc.record({ _tag: fc.constant("get" as const), version: fc.integer({ min: 1, max: 9 }) }) }
)

/** Any commands on one id, one after another; `keep` 0: all. */
const inOrder = (checkpointer: CheckpointerShape, id: string, commands: ReadonlyArray<Command>) =>
  Effect.gen(function* () {
    let versions: Array<{ readonly version: number; readonly state: State; readonly done: boolean }> = []
    let last = 0
    for (const one of commands) {
      switch (one._tag) {
        case "snapshot": {
          const asked = structuredClone(one.state)
          const version = yield* checkpointer.snapshot(id, State, one.state, {
            status: one.done ? "DONE" : "RUNNING",
            keep: one.keep === 0 ? "all" : one.keep
          })
          assert.strictEqual(version, ++last)
          spoil(one.state)
          versions = [...versions, { version, state: asked, done: one.done }].filter(
            (old) => one.keep === 0 || old.done || old.version > version - one.keep
          )
          break
        }
        case "resume": {
          const found = yield* checkpointer.resume(id, State)
          assert.deepStrictEqual(Option.getOrUndefined(found)?.state, versions.at(-1)?.state)
          assert.strictEqual(Option.getOrUndefined(found)?.version, versions.at(-1)?.version)
          break
        }
        case "get": {
          const found = yield* checkpointer.get(id, one.version, State)
          const known = versions.find(({ version }) => version === one.version)
          assert.deepStrictEqual(Option.getOrUndefined(found)?.state, known?.state)
          break
        }
        case "list":
          assert.deepStrictEqual(
            yield* checkpointer.listVersions(id),
            versions.map(({ version }) => version)
          )
          break
        case "delete":
          yield* checkpointer.delete(id)
          versions = []
          last = 0
      }
    }
  })

for (const backend of backends) {
  const numRuns = backend.groups ? 30 : 150
  const model = <A>(
    title: string,
    arbitrary: fc.Arbitrary<A>,
    holds: (checkpointer: CheckpointerShape, run: string, given: A) => Effect.Effect<void, unknown>
  ) =>
    it.effect(title, () =>
      Effect.gen(function* () {
        const checkpointer = yield* Checkpointer
        const runtime = yield* Effect.runtime<never>()
        let runs = 0
        const property = fc.asyncProperty(arbitrary, (given) =>
          Runtime.runPromise(runtime, holds(checkpointer, `run-${runs++}`, given))
        )
        yield* Effect.promise(() => fc.assert(property, { numRuns }))
      }).pipe(Effect.provide(backend.layer()))
    )

  describe(`The checkpointer's model on ${backend.name}`, () => {
    model(
      "I9: concurrent snapshots of one id from 8 fibers get distinct, gap-free versions, each with the state at its call",
      fibers,
      concurrently
    )
    model(
      "I24: any snapshots, prunings, deletes and looks of one id say what the model says",
      fc.array(command, { maxLength: 25 }),
      inOrder
    )
  })
}
