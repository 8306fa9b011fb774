import { assert, describe, it } from "@effect/vitest"
import { Chunk, Clock, Effect, Either, Layer, Option, Schema, Stream } from "effect"
import * as Memory from "../../src/layers/Memory.ts"
import * as Agent from "../../src/programs/Agent.ts"
import * as Budget from "../../src/programs/Budgets.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import type { Fallback } from "../../src/programs/Routes.ts"
import { InputError } from "../../src/services/Errors.ts"
import * as LLM from "../../src/services/LLM.ts"
import * as OutputAdapter from "../../src/services/OutputAdapter.ts"
import * as Price from "../../src/services/Price.ts"
import * as Retry from "../../src/services/Retry.ts"
import { fromIterable } from "../../src/services/RowSource.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { agentOf, Row, rowsOf } from "../support/scriptedJob.ts"
import { fail, model, type Script, scripted, tokens } from "../support/scriptedLlm.ts"
import { inVirtualTime } from "../support/virtualClock.ts"

const runId = "r"
const prices = Price.layer([
  { model, from: "1970-01-01", input: 0.15, output: 0.6 },
  { model: "spare", from: "1970-01-01", input: 1, output: 2 }
])
const from = (name: string): Effect.Effect<LLM.ChatAnswer> =>
  Effect.succeed(LLM.answer({ text: `{"summary":"${name}"}`, model: name, usage: tokens(10, 5) }))
const named = (provider: string, script: Script) => {
  const { counts, shape } = scripted(script)
  return { counts, layer: Layer.succeed(LLM.LLM, { ...shape, provider }) }
}

const jobOf = (rows: number, fallback: ReadonlyArray<Fallback>) =>
  Enrichment.make({
    name: "fallback",
    agent: agentOf(),
    row: Row,
    id: (row) => row.id,
    source: fromIterable(rowsOf(rows)),
    retry: Retry.policy({ attempts: 3, base: "100 millis", longest: "1 second" }),
    fallback
  })
const runOf = (job: ReturnType<typeof jobOf>, llm: Layer.Layer<LLM.LLM>) =>
  Stream.runCollect(Enrichment.events(job, { runId })).pipe(
    Effect.map(Chunk.toReadonlyArray),
    Effect.provide(Budget.layer({ maxCostUsd: 1, maxConcurrency: 4 })),
    Effect.provide([llm, prices])
  )
const summaries = (job: ReturnType<typeof jobOf>) =>
  Stream.runCollect(Enrichment.results(runId, job.agent.output)).pipe(
    Effect.map((rows) =>
      Chunk.toReadonlyArray(rows).map(({ outcome }) =>
        Option.match(outcome, {
          onNone: () => "pending",
          onSome: Either.match({
            onLeft: ({ reason }) => reason,
            onRight: ({ parsed }) => parsed?.summary ?? "partial"
          })
        })
      )
    )
  )
const inMemory = <A, E>(effect: Effect.Effect<A, E, Layer.Layer.Success<typeof Memory.layer>>) =>
  inVirtualTime(Effect.provide(effect, Memory.layer))

describe("fallback", () => {
  it("off by default: a row that used up its tries fails", () =>
    inMemory(
      Effect.gen(function* () {
        const llm = named("a", ({ row }) => (row === "row 1" ? fail() : from(model)))
        const job = jobOf(4, [])
        yield* runOf(job, llm.layer)
        assert.deepStrictEqual(yield* summaries(job), [model, "overloaded", model, model])
      })
    ))

  it("a row that used up its tries goes to the next model, at that model's price; the others stay", () =>
    inMemory(
      Effect.gen(function* () {
        const llm = named("a", ({ request, row }) =>
          row === "row 1" && request.model === model ? fail() : from(request.model)
        )
        const job = jobOf(4, [{ model: "spare" }])
        const events = yield* runOf(job, llm.layer)
        assert.deepStrictEqual(yield* summaries(job), [model, "spare", model, model])
        const status = yield* Enrichment.status(runId)
        // Three calls of 10 + 5 tokens at 150 and 600, one at 1,000 and 2,000; three calls that failed for nothing.
        assertIncludes(status, { done: 4, failed: 0, calls: 7, retries: 3, spent: 3 * 4_500 + 20_000, held: 0 })
        assert.isFalse(events.some(({ _tag }) => _tag === "ProviderLeft"))
      })
    ))

  for (const reason of ["quota", "auth", "model_not_found"] as const) {
    it(`${reason}: what no row can get there all rows get elsewhere; the provider is left for good`, () =>
      inMemory(
        Effect.gen(function* () {
          const first = named("a", ({ n }) =>
            n <= 6 ? from(model) : fail({ reason, category: "PERMANENT", scope: "run", message: `no ${reason}` })
          )
          const second = named("b", ({ request }) => from(request.model))
          const job = jobOf(40, [{ model: "spare", provider: "b" }])
          const events = yield* runOf(job, LLM.several(first.layer, second.layer))
          const found = yield* summaries(job)
          assert.strictEqual(found.filter((summary) => summary === model).length, 6)
          assert.strictEqual(found.filter((summary) => summary === "spare").length, 34)
          assert.isAtMost(first.counts.calls, 6 + 4)
          const left = events.filter(({ _tag }) => _tag === "ProviderLeft")
          assert.deepStrictEqual(left, [{ _tag: "ProviderLeft", message: `no ${reason}` }])
        })
      ))
  }

  it("an outage: rows go on elsewhere at once, and come back after five minutes", () =>
    inMemory(
      Effect.gen(function* () {
        const first = named("a", ({ n }) =>
          Effect.flatMap(Clock.currentTimeMillis, (now) => (n > 20 && now < 60_000 ? fail() : from(model)))
        )
        const second = named("b", ({ request }) => Effect.delay(from(request.model), "1 second"))
        const job = jobOf(2_000, [{ model: "spare", provider: "b" }])
        const events = yield* runOf(job, LLM.several(first.layer, second.layer))
        const last = events.at(-1)
        assert.isTrue(last?._tag === "Finished" && last.result.status === "done" && last.result.failed === 0)
        const found = yield* summaries(job)
        assert.isAbove(found.filter((summary) => summary === "spare").length, 100)
        // What the second one did is known from its own books, and the first one was asked again.
        assert.strictEqual(found.filter((summary) => summary === "spare").length, second.counts.calls)
        assert.isAbove(found.filter((summary) => summary === model).length, 20)
      })
    ))

  it("with nobody left the run stops, and no row is failed", () =>
    inMemory(
      Effect.gen(function* () {
        const llm = named("a", () => fail({ reason: "auth", category: "PERMANENT", scope: "run", message: "no key" }))
        yield* runOf(jobOf(10, [{ model: "spare" }]), llm.layer)
        const status = yield* Enrichment.status(runId)
        assertIncludes(status, { status: "suspended", failed: 0, pending: 10, held: 0, spent: 0 })
        assert.deepStrictEqual(status.reason, { kind: "provider", message: "no key" })
      })
    ))

  it("what another model answered is not stored for other runs, is no drift, and is not paid for again", () =>
    inMemory(
      Effect.gen(function* () {
        const llm = named("a", ({ request }) => (request.model === model ? fail() : from(request.model)))
        const job = jobOf(3, [{ model: "spare" }])
        yield* runOf(job, llm.layer)
        assert.deepStrictEqual(yield* summaries(job), ["spare", "spare", "spare"])
        const before = llm.counts.calls
        // The same run again: nothing to do, nothing drifted.
        yield* runOf(job, llm.layer)
        assert.strictEqual(llm.counts.calls, before)
        // Another run asks anew.
        yield* Enrichment.run(job, { runId: "other" }).pipe(
          Effect.provide(Budget.layer({ maxCostUsd: 1 })),
          Effect.provide([llm.layer, prices])
        )
        assert.isAbove(llm.counts.calls, before)
      })
    ))

  it("a fallback without a price, or to a provider that is not there, is refused before anything is sent", () =>
    inMemory(
      Effect.gen(function* () {
        const llm = named("a", () => from(model))
        const unpriced = yield* Effect.flip(runOf(jobOf(1, [{ model: "nobody-knows" }]), llm.layer))
        assertIncludes(unpriced, { _tag: "RunRefused", reason: "unpriced" })
        const absent = yield* Effect.flip(runOf(jobOf(1, [{ model: "spare", provider: "b" }]), llm.layer))
        assertIncludes(absent, { _tag: "RunRefused", reason: "bad_fallback" })
        assert.strictEqual(llm.counts.calls, 0)
      })
    ))
})

const Vendor = Schema.Struct({ id: Schema.String, name: Schema.String })
const Output = Schema.Struct({ vendor_id: Schema.String, summary: Schema.String })

describe("a typed output", () => {
  const agent = Agent.make({
    name: "vendor",
    model,
    system: "You are a test.",
    prompt: (row: typeof Vendor.Type) => row.id,
    output: Output
  })
  const job = Enrichment.make({
    name: "vendors",
    agent,
    row: Vendor,
    id: (row) => row.id,
    source: fromIterable([
      { id: "V-001", name: "a" },
      { id: "V-002", name: "b" }
    ]),
    outputId: (output) => output.vendor_id
  })
  const saying = (id: string) =>
    Effect.succeed(LLM.answer({ text: JSON.stringify({ vendor_id: id, summary: "s" }), model, usage: tokens(10, 5) }))
  const run = (llm: Layer.Layer<LLM.LLM>) =>
    Enrichment.run(job, { runId }).pipe(
      Effect.provide(Budget.layer({ maxCostUsd: 1, maxConcurrency: 1 })),
      Effect.provide([llm, prices])
    )

  it("that is about another row is shown to the model once more, and never stored under either", () =>
    inMemory(
      Effect.gen(function* () {
        const wrong = scripted(({ nth, row }) => saying(row === "V-001" && nth === 1 ? "V-002" : row))
        assertIncludes(yield* run(wrong.layer), { done: 2, partial: 0, repairs: 1, calls: 3 })
        const repair = wrong.counts.requests.find(({ messages }) => messages.length === 4)
        assert.include(repair?.messages.at(-1)?.content ?? "", '"V-002"')
        assert.include(repair?.messages.at(-1)?.content ?? "", '"V-001"')
      })
    ))

  it("that stays about another row ends as partial, with what the model said, paid for", () =>
    inMemory(
      Effect.gen(function* () {
        const wrong = scripted(({ row }) => saying(row === "V-001" ? "V-0O1" : row))
        assertIncludes(yield* run(wrong.layer), { done: 1, partial: 1, failed: 0, calls: 3, spent: 3 * 4_500 })
      })
    ))

  it("is asked for as the provider can give it, and an agent with an adapter of its own keeps that", () =>
    inMemory(
      Effect.gen(function* () {
        const { counts, shape } = scripted(({ row }) => saying(row))
        yield* run(Layer.succeed(LLM.LLM, { ...shape, outputMode: "json_object" }))
        for (const { format, messages } of counts.requests) {
          assert.strictEqual(format.mode, "json_object")
          assert.include(messages[0]?.content ?? "", '"vendor_id"')
        }
        const own = Agent.make({
          name: "vendor",
          model,
          prompt: (row: string) => row,
          output: Output,
          adapter: OutputAdapter.text
        })
        assert.strictEqual(own.forMode("json_object"), own)
        assert.strictEqual(agent.forMode("json_schema"), agent)
      })
    ))

  it("that strict mode cannot have is refused when the agent is made, with the field and the fix; a looser adapter takes it", () => {
    const make = (adapter?: OutputAdapter.OutputAdapter) =>
      Agent.make({
        name: "vendor",
        model,
        prompt: (row: string) => row,
        output: Schema.Struct({ summary: Schema.String, notes: Schema.optional(Schema.String) }),
        ...(adapter === undefined ? {} : { adapter })
      })
    const refused = Either.try({ try: () => make(), catch: (error) => error })
    assert.isTrue(Either.isLeft(refused) && refused.left instanceof InputError)
    if (Either.isLeft(refused) && refused.left instanceof InputError) {
      assertIncludes({ ...refused.left }, { reason: "bad_job", field: "notes" })
      assert.include(refused.left.fix ?? "", "Schema.NullOr")
    }
    const { format } = make(OutputAdapter.jsonSchemaLoose).request("x")
    assert.isTrue(format.mode === "json_schema" && !format.strict)
  })

  it("whose tokens all went into reasoning says so, is paid for, and is not tried again", () =>
    inMemory(
      Effect.gen(function* () {
        const usage = { ...tokens(10, 100), reasoningTokens: 100 }
        const llm = scripted(() => Effect.succeed(LLM.answer({ text: "", model, usage, finish: "length" })))
        const result = yield* run(llm.layer)
        assertIncludes(result, { failed: 2, calls: 2, spent: 2 * (1_500 + 60_000) })
        const rows = Chunk.toReadonlyArray(yield* Stream.runCollect(Enrichment.results(runId, Output)))
        for (const { outcome } of rows) {
          const failure = Option.flatMap(outcome, Either.getLeft)
          assert.isTrue(Option.exists(failure, ({ message }) => message.includes("went into reasoning")))
        }
      })
    ))
})

describe("the deadline of a turn", () => {
  it("no try begins after it, counted in calls and back-offs; an operator's pause does not count", () =>
    inMemory(
      Effect.gen(function* () {
        const llm = scripted(() => fail({ reason: "timeout", charge: "uncertain" }), Effect.sleep("2 seconds"))
        const job = Enrichment.make({
          name: "deadline",
          agent: agentOf(),
          row: Row,
          id: (row) => row.id,
          source: fromIterable(rowsOf(1)),
          retry: Retry.policy({ attempts: 50, base: "1 millis", longest: "1 millis", deadline: "5 seconds" })
        })
        const result = yield* Enrichment.run(job, { runId }).pipe(
          Effect.provide(Budget.layer({ maxCostUsd: 1 })),
          Effect.provide([llm.layer, prices])
        )
        assertIncludes(result, { failed: 1, calls: 3 })
        assert.isBelow(Math.max(...llm.counts.begunAt), 5_000)
      })
    ))
})
