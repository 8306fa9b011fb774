import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Option, Redacted, Schema, Stream } from "effect"
import { Agent, Budget, Enrichment, Memory, Price, Rows } from "../../src/index.ts"
import * as LLMOpenAI from "../../src/layers/LLMOpenAI.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import { tempDir } from "../support/mortalProcess.ts"
import { startFakeProvider } from "../support/startFakeProvider.ts"

const ROWS = 10_000
const CONCURRENCY = 64
const model = "fake-1"
/** What the fake provider bills: 150 nano-dollars an input token, 600 an output token. */
const prices = Price.layer([{ model, from: "2020-01-01", input: 0.15, output: 0.6 }])

const Vendor = Schema.Struct({ id: Schema.Int, name: Schema.String })
const Enriched = Schema.Struct({ id: Schema.Int, summary: Schema.String })

const job = Enrichment.make({
  name: "ten-thousand",
  agent: Agent.make({
    name: "assessor",
    model,
    maxOutputTokens: 100,
    prompt: (vendor: typeof Vendor.Type) => `${vendor.id}: ${vendor.name}`,
    output: Enriched
  }),
  row: Vendor,
  id: (vendor) => vendor.id,
  source: Rows.fromIterable(Array.from({ length: ROWS }, (_, i) => ({ id: i + 1, name: `vendor ${i + 1}` })))
})

const backends = {
  memory: Effect.succeed(Memory.layer),
  SQLite: Effect.map(tempDir, (dir) => Sqlite.layer({ filename: join(dir, "run.db") }))
}

describe("10,000 rows over HTTP", () => {
  for (const [backend, database] of Object.entries(backends)) {
    it.scopedLive(
      `one request a row, and what the book spent is the server's bill to the nano-dollar (${backend})`,
      () =>
        Effect.gen(function* () {
          const fake = yield* Effect.acquireRelease(
            Effect.promise(() => startFakeProvider({ latency: 1 })),
            ({ stop }) => Effect.promise(stop)
          )
          const provider = LLMOpenAI.layerWith({ apiKey: Redacted.make("sk-test"), baseUrl: fake.url })
          // Each answer names the row that it is about.
          const wrong = Stream.filter(Enrichment.results("run", Enriched), ({ id, outcome }) => {
            const end = Option.getOrUndefined(outcome)
            return !(end?._tag === "Right" && end.right.parsed?.id === Number(id))
          })
          const [result, misplaced] = yield* Enrichment.run(job, { runId: "run" }).pipe(
            Effect.zip(Stream.runCount(wrong)),
            Effect.provide(Budget.layer({ maxCostUsd: 50, maxConcurrency: CONCURRENCY })),
            Effect.provide([yield* database, provider, prices])
          )
          const bill = yield* Effect.promise(fake.bill)

          assert.deepInclude(result, { stopReason: "complete", rows: ROWS, done: ROWS, calls: ROWS, retries: 0 })
          assert.strictEqual(bill.requests, ROWS)
          assert.strictEqual(bill.answered, ROWS)
          assert.strictEqual(Object.keys(bill.byHash).length, ROWS)
          assert.strictEqual(Number(result.spent), bill.billedNano)
          assert.deepStrictEqual([Number(result.uncertain), Number(result.held)], [0, 0])
          assert.strictEqual(misplaced, 0)
          assert.strictEqual(bill.inFlight, 0)
          assert.isAtMost(bill.maxInFlight, CONCURRENCY)
        }),
      300_000
    )
  }
})
