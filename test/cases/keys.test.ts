import { assert, describe, it } from "@effect/vitest"
import { Effect, Either, Option, Schema } from "effect"
import * as Memory from "../../src/layers/Memory.ts"
import * as Agent from "../../src/programs/Agent.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import { UnsupportedValue } from "../../src/services/Errors.ts"
import * as Identity from "../../src/services/Identity.ts"
import { fromIterable } from "../../src/services/RowSource.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { type CountingLlm, countingLlm } from "../support/countingLlm.ts"
import { play, type Reply } from "../support/fixtureServer.ts"
import { assessing, enrich, inputJob, inputJobFor, inputs, type Parts, refusal, refusedBy, rowsOf } from "./inputs.ts"
import {
  assertSound,
  BILL,
  EnrichedVendor,
  failureOf,
  good,
  jobOf,
  price,
  quick,
  resultsOf,
  run,
  runId,
  vendors
} from "./vendors.ts"

type Rest = readonly [llm: CountingLlm, parts: Parts]
const risks = Schema.Struct({
  ...EnrichedVendor.fields,
  risk: Schema.Literal("low", "medium", "high", "unknown")
})

describe("cache key", () => {
  const job = inputJob(fromIterable(inputs(10)))
  const changes = {
    prompt: (...parts: Rest) => enrich(inputJob(job.source, { system: "Be brief." }), ...parts),
    schema: (...parts: Rest) => enrich(inputJobFor(job.source, { output: risks }), ...parts),
    model: (...parts: Rest) => enrich(inputJob(job.source, { model: "mock-mega" }), ...parts)
  }
  for (const [part, runChanged] of Object.entries(changes)) {
    it.scopedLive(
      `B04 stale-prompt: with another ${part} a resume refuses until it is told what to do with old rows`,
      () =>
        Effect.gen(function* () {
          const llm = assessing()
          const half = { budget: { maxConcurrency: 1, maxCalls: 5 } }
          assertIncludes(yield* enrich(job, llm, half), { status: "suspended", done: 5, pending: 5 })
          const resume = (run: Enrichment.RunOptions) => runChanged(llm, { budget: { maxCalls: 100 }, run })
          const error = yield* refusal(resume({}))
          assert.strictEqual(error.reason, "drift")
          assert.deepStrictEqual(error.drift?.parts, { [part]: 5 })
          assert.strictEqual(error.drift?.expectedCost, 5 * BILL)
          assert.include(error.message, `5 rows of run ${runId} were done with something else than the job has now`)
          assert.strictEqual(llm.calls(), 5)
          // Another run of the same scope does not take the old answers either.
          assertIncludes(yield* resume({ runId: "other" }), { done: 10, storeHits: 0, calls: 10 })
          assertIncludes(yield* resume({ onDrift: "keep" }), { status: "done", done: 10, kept: 5, reruns: 0 })
          assertIncludes(yield* resume({ onDrift: "rerun" }), { status: "done", done: 10, kept: 0, reruns: 5 })
        }).pipe(Effect.provide(Memory.layer))
    )
  }

  it.scopedLive("B51 delimiter-collision: rows whose parts join to one text have keys and results of their own", () =>
    Effect.gen(function* () {
      const llm = assessing()
      // With equal requests of a run asked once, a key that two rows share would show.
      const job = { ...inputJob(rowsOf("B51-delimiter-collision-rows.csv")), memo: 100 }
      assertIncludes(yield* enrich(job, llm), { status: "done", rows: 7, done: 7, calls: 7, memoHits: 0, storeHits: 0 })
      const rows = yield* resultsOf
      assert.deepStrictEqual(
        rows.map(({ id }) => id),
        ["V|1", "V", "W:1", "W", "X-1", "X", '["Y",1]']
      )
      for (const { id, outcome } of rows) {
        const { parsed } = Option.getOrThrow(Option.flatMap(outcome, Either.getRight))
        assert.deepStrictEqual(Schema.decodeUnknownSync(EnrichedVendor)(parsed).vendor_id, id)
      }
      const keys = rows.map(({ id, record }) => keyOf(id, record.name))
      assert.lengthOf(new Set(keys), 7)
      assertIncludes(yield* enrich(job, llm, { run: { runId: "again" } }), { done: 7, calls: 0, storeHits: 7 })
    }).pipe(Effect.provide(Memory.layer))
  )

  it("B52 map-date-collapse: values that JSON would make equal have keys of their own, or none with a reason", () => {
    const values: ReadonlyArray<unknown> = [
      new Date(0),
      new Date(1),
      new Map([["a", 1]]),
      new Map([["a", 2]]),
      new Map(),
      new Set([1]),
      new Set(),
      {},
      [],
      { at: null },
      { at: undefined },
      5n,
      5,
      "5",
      null,
      "null",
      "1970-01-01T00:00:00.000Z"
    ]
    // A property that is undefined is absent.
    assert.strictEqual(new Set(values.map((value) => keyOf(value))).size, values.length - 1)
    assert.strictEqual(keyOf({ at: undefined }), keyOf({}))
    assert.strictEqual(keyOf(-0), keyOf(0))
    assert.strictEqual(
      keyOf({
        a: 1,
        b: new Map([
          ["x", 1],
          ["y", 2]
        ])
      }),
      keyOf({
        b: new Map([
          ["y", 2],
          ["x", 1]
        ]),
        a: 1
      })
    )
    // By its text alone, so the same in every process.
    const text = '["inputs",{"$date":"1970-01-01T00:00:00.000Z"}]'
    assert.strictEqual(keyOf("inputs", new Date(0)), `idem:${Identity.sha256(text).slice(0, 24)}`)
    for (const value of [new Date(Number.NaN), Number.NaN, Number.POSITIVE_INFINITY]) {
      assert.instanceOf(Either.getOrThrow(Either.flip(Identity.idempotencyKey(value))), UnsupportedValue)
    }
  })

  it.scopedLive(
    "B52 map-date-collapse: a row that cannot be kept as JSON is refused by line and field, not emptied",
    () =>
      Effect.gen(function* () {
        const jobWith = (value: unknown, id: unknown = "V-002") =>
          Enrichment.make({
            name: "inputs",
            agent: Agent.make({
              name: "assessor",
              model: price.model,
              prompt: (row: { readonly value: unknown }) => JSON.stringify(row.value),
              output: EnrichedVendor
            }),
            row: Schema.Struct({ id: Schema.Unknown, value: Schema.Unknown }),
            id: (row) => String(row.id),
            source: fromIterable([
              { id: "V-001", value: 1 },
              { id, value }
            ])
          })
        for (const value of [new Map([["a", 1]]), new Set(), Number.NaN, 5n, new Date(Number.NaN)]) {
          assertIncludes(yield* refusedBy(jobWith(value)), { reason: "bad_row", line: 2, field: "value" })
          assertIncludes(yield* refusedBy(jobWith({ deep: [value] })), { line: 2, field: "value.deep.0" })
        }
        assertIncludes(yield* refusedBy(jobWith(1, 5n)), { line: 2, field: "id" })
        // A Date has a JSON form; who wants a Date says how it is read.
        const llm = countingLlm(() => "{}")
        yield* enrich(jobWith(new Date(0)), llm)
        assert.deepStrictEqual([...llm.asked.keys()].sort(), ['"1970-01-01T00:00:00.000Z"', "1"])
      }).pipe(Effect.provide(Memory.layer))
  )
})

const keyOf = (...parts: ReadonlyArray<unknown>): string => Either.getOrThrow(Identity.idempotencyKey(...parts))

describe("cache poisoning", () => {
  it.scopedLive("B12 error-text-cached: a failed row is no result, and a resume asks the provider again", () =>
    Effect.gen(function* () {
      const headers = { "content-type": "application/json" }
      const down: Reply = { status: 503, headers, body: { error: { message: "Sorry, try later." } } }
      let isDown = true
      const server = yield* play((seen) => (isDown ? down : good(seen)))
      const job = jobOf({ rows: vendors(1), retry: quick(3) })
      assertIncludes(yield* run(job, server), { failed: 1, done: 0, calls: 3 })
      assertIncludes(yield* failureOf("V-001"), { category: "TRANSIENT" })
      isDown = false
      // Another run of the same scope first: nothing is there for it.
      assertIncludes(yield* run(job, server, { run: { runId: "other" } }), { done: 1, calls: 1, storeHits: 0 })
      const resumed = yield* run(job, server, { run: { runId } })
      assertIncludes(resumed, { status: "done", done: 1, failed: 0 })
    }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive("B12 error-text-cached: an answer that says it failed is not stored as a result", () =>
    Effect.gen(function* () {
      const job = inputJob(fromIterable(inputs(1)))
      const failing = countingLlm(() => '{"ok":false,"error":"I am sorry"}')
      assertIncludes(yield* enrich(job, failing), { done: 0, partial: 1, calls: 2 })
      const other = yield* enrich(job, assessing(), { run: { runId: "other" } })
      assertIncludes(other, { done: 1, calls: 1, storeHits: 0 })
      const again = yield* enrich(job, assessing(), { run: { retry: "partial" } })
      assertSound(again, 3)
      assertIncludes(again, { status: "done", done: 1, partial: 0 })
    }).pipe(Effect.provide(Memory.layer))
  )
})
