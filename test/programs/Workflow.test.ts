import { assert, describe, it } from "@effect/vitest"
import { Deferred, Effect, Exit, Fiber, Option, Schema, TestClock } from "effect"
import { expectTypeOf } from "vitest"
import type { Gather } from "../../src/programs/FanOut.ts"
import * as Workflow from "../../src/programs/Workflow.ts"
import * as Usage from "../../src/services/Usage.ts"
import { Usd } from "../../src/services/Usd.ts"

const used = (tokens: number) => Usage.make({ inputTokens: tokens, cost: Usd.nano(tokens * 10) })

/** A batch of chunks, as the enrichment supplies it: a sub-workflow whose names are known only at run time. */
const batch = (rows: ReadonlyArray<string>): Effect.Effect<Workflow.WorkflowResult<Record<string, string>>> =>
  Effect.succeed({
    outputs: Object.fromEntries(rows.map((row, index) => [`chunk_${index}`, row])),
    usage: used(rows.length),
    steps: rows.length + 1,
    stopReason: "complete",
    suspended: Option.none()
  })

const approval = {
  reason: "approve",
  pending: [{ id: "call_1", name: "send", arguments: { to: ["a"], n: { deep: 1 } } }]
}

/** A graph whose gate suspends; `ran` lists the nodes that ran. */
const gated = () => {
  const ran: Array<string> = []
  const note = <A>(name: string, value: A) =>
    Effect.as(
      Effect.sync(() => ran.push(name)),
      value
    )
  const workflow = Workflow.make({ name: "gated" })
    .fn("load", () => note("load", [1, 2]))
    .fn("gate", () => note<Workflow.Suspend | string>("gate", Workflow.suspend(approval)), { after: "load" })
    .fn("beside", () => Effect.delay(note("beside", true), "1 second"), { after: "load" })
    .fn("send", (outputs) => note("send", `${outputs.gate} ${outputs.load.length}`), { after: ["gate", "load"] })
  return { workflow, ran }
}

const elapse = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.gen(function* () {
    const fiber = yield* Effect.fork(effect)
    yield* TestClock.adjust("1 day")
    return yield* Fiber.join(fiber)
  })

describe("Workflow", () => {
  it.effect("I23: stopReason complete: two nodes, the sub-workflow counts one step and its usage is merged", () =>
    Effect.gen(function* () {
      const result = yield* Workflow.make({ name: "vendor-enrichment", maxSteps: 1 })
        .fn("load_rows", () => Effect.succeed(Workflow.withUsage(["a", "b", "c"], used(1))))
        .subworkflow("enrich_batch", { run: (outputs) => batch(outputs.load_rows) }, { after: "load_rows" })
        .run()
      if (result.stopReason !== "complete") return assert.fail(result.stopReason)
      assert.deepStrictEqual(result.outputs.load_rows, ["a", "b", "c"])
      assert.deepStrictEqual(result.outputs.enrich_batch.outputs, { chunk_0: "a", chunk_1: "b", chunk_2: "c" })
      assert.strictEqual(result.outputs.enrich_batch.steps, 4)
      assert.strictEqual(result.steps, 2)
      assert.deepStrictEqual(result.usage, used(4))
      assert.isTrue(Option.isNone(result.suspended))
    })
  )

  it.effect("I23: stopReason suspended: the rest of the wave finishes, what comes after does not start", () =>
    Effect.gen(function* () {
      const { workflow, ran } = gated()
      const result = yield* elapse(workflow.run())
      assert.strictEqual(result.stopReason, "suspended")
      assert.deepStrictEqual(result.outputs, { load: [1, 2], beside: true })
      assert.strictEqual(result.steps, 3)
      assert.deepStrictEqual(ran, ["load", "gate", "beside"])
    })
  )

  it.effect("I23: stopReason max_steps: a repeating node reaches the bound of its runs", () =>
    Effect.gen(function* () {
      let polls = 0
      const poll = (maxSteps: number) =>
        Workflow.make({ name: "poll", maxSteps }).fn("poll", () => Effect.sync(() => ++polls), {
          repeatWhile: (output) => output < 3
        })
      const stopped = yield* poll(2).run()
      assert.deepInclude(stopped, { stopReason: "max_steps", steps: 2, outputs: {} })
      assert.strictEqual(polls, 2)
      polls = 0
      assert.deepInclude(yield* poll(3).run(), { stopReason: "complete", steps: 3, outputs: { poll: 3 } })
    })
  )

  for (const [what, after] of [
    ["an unknown node", ["nowhere", "nowhere"]],
    ["a cycle", ["b", "a"]]
  ] as const) {
    it.effect(`I23: stopReason deadlock: ${what} can never complete; what can run has run`, () =>
      Effect.gen(function* () {
        const result = yield* Workflow.make<Record<string, unknown>>({ name: "dynamic" })
          .fn("first", () => Effect.succeed(1))
          .fn("a", () => Effect.succeed(2), { after: after[0] })
          .fn("b", () => Effect.succeed(3), { after: after[1] })
          .run()
        assert.deepInclude(result, { stopReason: "deadlock", steps: 1, outputs: { first: 1 } })
      })
    )
  }

  it.effect("I23: a sub-workflow that stops stops the outer one for the same reason, and keeps what it had done", () =>
    Effect.gen(function* () {
      const { workflow, ran } = gated()
      const outer = Workflow.make({ name: "outer" })
        .subworkflow("inner", workflow)
        .fn("last", (outputs) => Effect.succeed(outputs.inner.outputs.send), { after: "inner" })
      const first = yield* elapse(outer.run())
      if (first.stopReason !== "suspended") return assert.fail(first.stopReason)
      assert.isTrue(Option.isSome(first.suspended))
      assert.strictEqual(first.steps, 1)
      const inner = first.outputs.inner
      assert.deepStrictEqual(inner?.outputs, { load: [1, 2], beside: true })
      if (inner?.stopReason !== "suspended") return assert.fail("inner")
      const answered = { inner: { ...inner, outputs: { ...inner.outputs, gate: "yes" } } }
      const second = yield* outer.resume(answered)
      assert.deepInclude(second, { stopReason: "complete", steps: 2 })
      assert.deepStrictEqual(ran, ["load", "gate", "beside", "send"])
      const cycle = Workflow.make<Record<string, unknown>>({ name: "cycle" }).fn("a", () => Effect.void, { after: "a" })
      assert.deepInclude(yield* Workflow.make({ name: "outer" }).subworkflow("sub", cycle).run(), {
        stopReason: "deadlock"
      })
    })
  )

  it.effect("I17: a suspended value is deeply frozen, apart from its maker's, and survives encode and decode", () =>
    Effect.gen(function* () {
      const mine = structuredClone(approval)
      const { suspended } = Workflow.suspend(mine)
      mine.pending[0]?.arguments.to.push("b")
      mine.pending.pop()
      assert.deepStrictEqual<unknown>(suspended, { _tag: "Suspended", ...approval })
      const text = yield* Schema.encode(Schema.parseJson(Workflow.Suspended))(suspended)
      const back = yield* Schema.decode(Schema.parseJson(Workflow.Suspended))(text)
      assert.deepStrictEqual(back, suspended)
      for (const value of [suspended, back]) {
        assert.isFrozen(value)
        assert.isFrozen(value.pending)
        assert.isFrozen(value.pending[0])
        assert.isFrozen(value.pending[0]?.arguments)
        assert.isFrozen(value.pending[0]?.arguments.to)
        assert.isFrozen(value.pending[0]?.arguments.n)
      }
    })
  )

  it.effect(
    "I17: what JSON cannot hold in a suspended value is an error when it is encoded, not when it is decoded",
    () =>
      Effect.gen(function* () {
        const { suspended } = Workflow.suspend({
          reason: "r",
          pending: [{ id: "1", name: "n", arguments: { x: Number.NaN } }]
        })
        assert.isTrue(Exit.isFailure(yield* Effect.exit(Schema.encode(Workflow.Suspended)(suspended))))
      })
  )

  it.effect("resume goes on from the outputs that are done and does not run their nodes again", () =>
    Effect.gen(function* () {
      const { workflow, ran } = gated()
      const first = yield* elapse(workflow.run())
      if (first.stopReason === "complete") return assert.fail("complete")
      ran.length = 0
      const again = yield* workflow.resume(first.outputs)
      assert.deepInclude(again, { stopReason: "suspended", steps: 1 })
      const result = yield* workflow.resume({ ...first.outputs, gate: "yes" })
      assert.deepInclude(result, { stopReason: "complete", steps: 1 })
      assert.strictEqual(result.outputs.send, "yes 2")
      assert.deepStrictEqual(ran, ["gate", "send"])
    })
  )

  it.effect("I4: graphs, results and their outputs are frozen, and a builder call leaves the graph as it was", () =>
    Effect.gen(function* () {
      const empty = Workflow.make({ name: "w" })
      const one = empty.fn("a", () => Effect.succeed(1))
      const results = [yield* one.run(), yield* empty.run(), yield* elapse(gated().workflow.run())]
      for (const result of results) {
        assert.isFrozen(result)
        assert.isFrozen(result.outputs)
        assert.isFrozen(result.usage)
      }
      assert.isFrozen(one)
      assert.deepInclude(yield* empty.run(), { stopReason: "complete", outputs: {}, steps: 0 })
    })
  )

  const lossy: ReadonlyArray<readonly [string, Gather]> = [
    ["returns fewer results than its nodes", (wave) => Effect.map(Effect.all(wave), (all) => all.slice(0, -1))],
    ["returns them in another order", (wave) => Effect.map(Effect.all(wave), (all) => all.toReversed())]
  ]
  for (const [what, gather] of lossy) {
    it.effect(`I8: a wave that ${what} is a typed arity error`, () =>
      Effect.gen(function* () {
        const error = yield* Workflow.make({ name: "w", gather })
          .fn("a", () => Effect.succeed(1))
          .fn("b", () => Effect.succeed(2))
          .run()
          .pipe(Effect.flip)
        assert.instanceOf(error, Workflow.WorkflowError)
        assert.strictEqual(error.reason, "arity")
      })
    )
  }

  it.effect("two nodes of one name are a typed error, not a node that is silently left out", () =>
    Effect.gen(function* () {
      const a = Workflow.make({ name: "w" }).fn("a", () => Effect.succeed(1))
      const error = yield* Effect.flip(a.fn("a", () => Effect.succeed(2)).run())
      assert.strictEqual(error.reason, "duplicate")
    })
  )

  it.effect("a wave runs together and its outputs are committed in node order", () =>
    Effect.gen(function* () {
      const fiber = yield* Workflow.make({ name: "w" })
        .fn("slow", () => Effect.delay(Effect.succeed(1), "10 seconds"))
        .fn("quick", () => Effect.delay(Effect.succeed(2), "1 second"))
        .run()
        .pipe(Effect.fork)
      yield* TestClock.adjust("10 seconds")
      const result = yield* Fiber.join(fiber)
      assert.deepStrictEqual(Object.keys(result.outputs), ["slow", "quick"])
    })
  )

  it.effect("the first node that fails is the error, and interrupts its wave", () =>
    Effect.gen(function* () {
      let interrupted = false
      const waits = Effect.onInterrupt(Effect.never, () =>
        Effect.sync(() => {
          interrupted = true
        })
      )
      const error = yield* Workflow.make({ name: "w" })
        .fn("waits", () => waits)
        .fn("fails", () => Effect.fail("no" as const))
        .run()
        .pipe(Effect.flip)
      assert.strictEqual(error, "no")
      assert.isTrue(interrupted)
    })
  )

  it.effect("I19: interruption is never turned into a result, of a run or of a node", () =>
    Effect.gen(function* () {
      const started = yield* Deferred.make<void>()
      let later = false
      const workflow = Workflow.make({ name: "w" })
        .fn("waits", () => Effect.zipRight(Deferred.succeed(started, undefined), Effect.never))
        .fn(
          "later",
          () =>
            Effect.sync(() => {
              later = true
            }),
          { after: "waits" }
        )
      const fiber = yield* Effect.fork(workflow.run())
      yield* Deferred.await(started)
      assert.isTrue(Exit.isInterrupted(yield* Fiber.interrupt(fiber)))
      assert.isFalse(later)
      const self = Workflow.make({ name: "w" }).fn("a", () => Effect.interrupt)
      assert.isTrue(Exit.isInterrupted(yield* Effect.exit(self.run())))
    })
  )

  it("types: outputs accumulate; a node sees what it names in `after`; errors and needs add up", () => {
    class Late extends Schema.TaggedError<Late>()("Late", {}) {}
    const workflow = Workflow.make({ name: "w" })
      .fn("rows", () => Effect.succeed(["a"]))
      .fn(
        "size",
        (outputs) => {
          expectTypeOf(outputs).toEqualTypeOf<{ readonly rows: Array<string> }>()
          return outputs.rows.length > 3
            ? Effect.fail(new Late())
            : Effect.succeed(Workflow.withUsage(outputs.rows.length, Usage.zero))
        },
        {
          after: "rows",
          repeatWhile: (output) => {
            expectTypeOf(output).toEqualTypeOf<number>()
            return false
          }
        }
      )
      .fn(
        "gate",
        (outputs) => {
          expectTypeOf(outputs).toEqualTypeOf<{ readonly rows: Array<string>; readonly size: number }>()
          return Effect.succeed(outputs.size > 1 ? Workflow.suspend({ reason: "r", pending: [] }) : true)
        },
        { after: ["rows", "size"] }
      )
      .fn("alone", (outputs) => {
        expectTypeOf(outputs).toEqualTypeOf<{}>()
        return Effect.succeed(true)
      })
    type Inner = {
      readonly rows: Array<string>
      readonly size: number
      readonly gate: boolean
      readonly alone: boolean
    }
    const outer = Workflow.make({ name: "outer" }).subworkflow("sub", workflow)
    const run = outer.run()
    expectTypeOf<Effect.Effect.Error<typeof run>>().toEqualTypeOf<Late | Workflow.WorkflowError>()
    expectTypeOf<Effect.Effect.Context<typeof run>>().toEqualTypeOf<never>()
    type Result = Effect.Effect.Success<typeof run>
    type Whole = Extract<Result, { readonly stopReason: "complete" }>
    expectTypeOf<Whole["outputs"]>().toEqualTypeOf<{ readonly sub: Workflow.Complete<Inner> }>()
    expectTypeOf<Exclude<Result, Whole>["outputs"]>().toEqualTypeOf<{ readonly sub?: Workflow.WorkflowResult<Inner> }>()
    expectTypeOf<Result["stopReason"]>().toEqualTypeOf<"complete" | "suspended" | "max_steps" | "deadlock">()
    // @ts-expect-error no such node
    workflow.fn("x", () => Effect.void, { after: "nowhere" })
    // @ts-expect-error an output that is not named in `after` may not be there yet
    workflow.fn("x", (outputs) => Effect.succeed(outputs.rows))
  })
})
