import { assert, describe, it } from "@effect/vitest"
import { Effect, Either, Option, Redacted, Schema, Stream } from "effect"
import { Agent, Budget, Enrichment, Memory, Price, Retry, Rows } from "../../src/index.ts"
import * as LLMOpenAI from "../../src/layers/LLMOpenAI.ts"
import { startServer } from "../support/startServer.ts"

const ROWS = 500
const price: Price.PriceRow = { model: "mocked-1", from: "2020-01-01", input: 0.15, output: 0.6 }
/** What the mock says of each answer's usage, at that price. */
const ANSWER_NANO = 20 * 150 + 10 * 600

const Vendor = Schema.Struct({ id: Schema.Int, name: Schema.String })
const Enriched = Schema.Struct({ id: Schema.Int, summary: Schema.String })

// Ids of one length, so that the most a call can cost is the same for all rows.
const vendors = Array.from({ length: ROWS }, (_, i) => ({ id: 1000 + i, name: "vendor" }))
const agent = Agent.make({
  name: "assessor",
  model: price.model,
  maxOutputTokens: 100,
  prompt: (vendor: typeof Vendor.Type) => `${vendor.id}: ${vendor.name}`,
  output: Enriched
})
const job = Enrichment.make({
  name: "mocked",
  agent,
  row: Vendor,
  id: (vendor) => vendor.id,
  source: Rows.fromIterable(vendors),
  chunkSize: 50,
  retry: Retry.policy({ attempts: 8, base: "5 millis", longest: "50 millis" })
})

const Journal = Schema.parseJson(
  Schema.Array(
    Schema.Struct({
      method: Schema.String,
      path: Schema.String,
      response: Schema.Struct({ status: Schema.Int, chaosAction: Schema.optional(Schema.String) })
    })
  )
)
const readJournal = (origin: string) =>
  Effect.flatMap(
    Effect.promise(async () => (await fetch(`${origin}/__aimock/journal`)).text()),
    Schema.decode(Journal)
  )

const mock = Effect.acquireRelease(
  Effect.promise(() =>
    startServer("aimockServer", [
      "--rateLimit",
      "0.01",
      "--malformed",
      "0.03",
      "--disconnect",
      "0.03",
      "--drop",
      "0.03"
    ])
  ),
  ({ stop }) => Effect.promise(stop)
)

describe("aimock", () => {
  it.scopedLive(
    "a run against a provider that nobody here wrote, and that breaks a tenth of its answers, ends every row and knows every request",
    () =>
      Effect.gen(function* () {
        const { origin } = yield* mock
        const provider = LLMOpenAI.layerWith({ apiKey: Redacted.make("sk-test"), baseUrl: `${origin}/v1` })
        const [result, outcomes] = yield* Enrichment.run(job, { runId: "mocked" }).pipe(
          Effect.zip(Stream.runCollect(Enrichment.results("mocked", Enriched))),
          Effect.provide(Budget.layer({ maxCostUsd: 5, maxConcurrency: 8 })),
          Effect.provide([Memory.layer, provider, Price.layer([price])])
        )
        const journal = yield* readJournal(origin)
        const faults = { drop: 0, malformed: 0, rateLimit: 0, disconnect: 0, none: 0, ...countBy(journal) }

        assert.deepInclude(result, { stopReason: "complete", status: "done", rows: ROWS })
        // Each fault passes, and eight of them in one row do not come about.
        assert.deepInclude(result, { done: ROWS, partial: 0, failed: 0, pending: 0 })
        assert.isTrue(
          journal.every(({ method, path }) => method === "POST" && path === "/v1/chat/completions"),
          "nothing but chat completions was asked for"
        )
        // Each request that was sent is a call, refused, broken or answered; what failed was sent once more.
        assert.strictEqual(result.calls, journal.length)
        assert.strictEqual(faults.none, ROWS)
        assert.strictEqual(result.retries, journal.length - ROWS)
        assert.strictEqual(result.repairs, 0)
        assert.isTrue(
          Object.values(faults).every((n) => n > 0),
          JSON.stringify(faults)
        )
        // What was answered is known to the token, a 429 costs nothing, and what broke counts at the most that it can have cost.
        const [first] = vendors
        assert.isDefined(first)
        const hold = Price.hold(price, agent.forMode("json_schema").request(first))
        assert.strictEqual(result.spent, ROWS * ANSWER_NANO)
        assert.strictEqual(result.uncertain, (faults.drop + faults.malformed + faults.disconnect) * hold)
        assert.strictEqual(result.held, 0)
        for (const { id, outcome } of outcomes) {
          const end = Option.getOrUndefined(outcome)
          assert.isTrue(end !== undefined && Either.isRight(end) && end.right.parsed?.id === Number(id), id)
        }
      }),
    60_000
  )
})

const countBy = (journal: typeof Journal.Type): Record<string, number> => {
  const counts: Record<string, number> = {}
  for (const { response } of journal) {
    const kind = response.chaosAction ?? "none"
    counts[kind] = (counts[kind] ?? 0) + 1
  }
  return counts
}
