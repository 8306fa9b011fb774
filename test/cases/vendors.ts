/**
 * The set-up that the cases' numbers rest on: vendors, a schema for their assessment, and a model whose ordinary reply of 820 and 110 tokens costs
 * 189,000 nano-dollars. The rows are padded until a request's bound is 820 tokens, so that a hold is 363,000.
 */
import { readFileSync } from "node:fs"
import { fileURLToPath } from "node:url"
import { assert } from "@effect/vitest"
import { Chunk, Effect, Either, Layer, Option, Redacted, Schema, Stream } from "effect"
import * as LLMOpenAI from "../../src/layers/LLMOpenAI.ts"
import * as Agent from "../../src/programs/Agent.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import * as Budget from "../../src/services/Budget.ts"
import type { TokenUsage } from "../../src/services/LLM.ts"
import type { OutputAdapter } from "../../src/services/OutputAdapter.ts"
import * as Price from "../../src/services/Price.ts"
import * as Retry from "../../src/services/Retry.ts"
import { fromIterable } from "../../src/services/RowSource.ts"
import { Fixture, type FixtureServer, inOrder, type Reply, type Script, type Seen } from "../support/fixtureServer.ts"

export const NANO = 1_000_000_000
export const price: Price.PriceRow = { model: "mock-mini", from: "1970-01-01", input: 0.15, cached: 0.075, output: 0.6 }
export const prices = Price.layer([price])

export const tokens = (inputTokens: number, outputTokens: number, cachedTokens = 0): TokenUsage => ({
  inputTokens,
  cachedTokens,
  cacheWriteTokens: 0,
  outputTokens,
  reasoningTokens: 0
})

export const Vendor = Schema.Struct({ id: Schema.String, name: Schema.String })
export type Vendor = typeof Vendor.Type
export const EnrichedVendor = Schema.Struct({
  vendor_id: Schema.String,
  summary: Schema.String.pipe(Schema.minLength(1), Schema.maxLength(280)),
  risk: Schema.Literal("low", "medium", "high")
}).annotations({ parseOptions: { onExcessProperty: "error" } })
export type EnrichedVendor = typeof EnrichedVendor.Type

export interface AgentParts {
  readonly adapter?: OutputAdapter
  readonly maxOutputTokens?: number
}

const agentWith = <A, I>(output: Schema.Schema<A, I>, { adapter, maxOutputTokens = 400 }: AgentParts) =>
  Agent.make({
    name: "assessor",
    model: price.model,
    prompt: (vendor: Vendor) => `${vendor.id}: ${vendor.name}`,
    output,
    maxOutputTokens,
    ...(adapter === undefined ? {} : { adapter })
  })

/** V-001 and so on, padded until a request's bound is `bound` tokens. */
export const vendors = (n: number, bound = 820): ReadonlyArray<Vendor> => {
  const agent = agentWith(EnrichedVendor, {})
  return Array.from({ length: n }, (_, i) => {
    const id = `V-${String(i + 1).padStart(3, "0")}`
    const pad = bound - Price.inputBound(agent.request({ id, name: "" }))
    assert.isAtLeast(pad, 1)
    return { id, name: "x".repeat(pad) }
  })
}

export interface JobParts extends AgentParts {
  readonly rows?: ReadonlyArray<Vendor>
  readonly retry?: Retry.RetryPolicy
  readonly chunkSize?: number
}

/** Hardly a pause between tries, so that a real run of them is short. */
export const quick = (attempts: number): Retry.RetryPolicy =>
  Retry.policy({ attempts, base: "5 millis", longest: "20 millis" })

export const jobFor = <A extends { readonly vendor_id: string }, I>(output: Schema.Schema<A, I>, parts: JobParts) =>
  Enrichment.make({
    name: "vendors",
    agent: agentWith(output, parts),
    row: Vendor,
    id: (vendor) => vendor.id,
    outputId: (answer: A) => answer.vendor_id,
    source: fromIterable(parts.rows ?? vendors(1)),
    chunkSize: parts.chunkSize ?? 100,
    retry: parts.retry ?? quick(3)
  })
export const jobOf = (parts: JobParts = {}) => jobFor(EnrichedVendor, parts)

/** What an ordinary call sets aside, and what an ordinary reply costs. */
export const HOLD = vendors(1).reduce((sum, vendor) => sum + Price.hold(price, jobOf().agent.request(vendor)), 0)
export const BILL = Number(Price.cost(price, tokens(820, 110)))

export const runId = "case"

export interface RunParts {
  readonly budget?: Budget.BudgetOptions
  readonly llm?: LLMOpenAI.Options
  readonly run?: Enrichment.RunOptions
}

export const openai = (server: Pick<FixtureServer, "url">, options: LLMOpenAI.Options = {}) =>
  Layer.orDie(LLMOpenAI.layerWith({ apiKey: Redacted.make("sk-test"), baseUrl: server.url, ...options }))

/** A run against the server: a dollar, eight calls at once, unless it is said otherwise. */
export const run = <Row, A, I>(
  job: Enrichment.Job<Row, A, I>,
  server: Pick<FixtureServer, "url">,
  { budget, llm, run }: RunParts = {}
) =>
  Enrichment.run(job, { runId, ...run }).pipe(
    Effect.provide(Budget.layer({ maxCostUsd: 1, maxConcurrency: 8, ...budget })),
    Effect.provide([openai(server, llm), prices])
  )

/** What holds at the end of every run: each row counted once, each request one call, the cap kept, nothing left held. */
export const assertSound = (totals: Enrichment.Totals, requests: number): void => {
  assert.strictEqual(totals.done + totals.partial + totals.failed + totals.pending, totals.rows)
  assert.strictEqual(totals.calls, requests)
  assert.strictEqual(totals.held, 0)
  if (totals.cap !== null) assert.isAtMost(totals.spent + totals.uncertain, totals.cap)
}

/** The rows of the run in input order, each with its outcome. */
export const resultsOf = Effect.map(Stream.runCollect(Enrichment.results(runId, Schema.Unknown)), (rows) =>
  Chunk.toReadonlyArray(rows)
)

/** How a row ended. */
export const outcomeOf = (id: string) =>
  Effect.map(resultsOf, (rows) => {
    const [row, ...others] = rows.filter((one) => one.id === id)
    assert.strictEqual(others.length, 0)
    assert.isTrue(row !== undefined && Option.isSome(row.outcome), `row ${id} is pending`)
    return row === undefined ? Option.none() : row.outcome
  })
export const failureOf = (id: string) =>
  Effect.map(outcomeOf(id), (outcome) => Option.getOrThrow(Option.flatMap(outcome, Either.getLeft)))
export const resultOf = (id: string) =>
  Effect.map(outcomeOf(id), (outcome) => Option.getOrThrow(Option.flatMap(outcome, Either.getRight)))

const decodeFixture = Schema.decodeUnknownSync(Schema.parseJson(Fixture))
export const fixture = (name: string): Fixture =>
  decodeFixture(readFileSync(fileURLToPath(new URL(`./fixtures/${name}.json`, import.meta.url)), "utf8"))

/** The row that a request asks about. */
export const idOf = ({ said }: Pick<Seen, "said">): string => said.split(":")[0] ?? ""

/** A completion of the ordinary kind, billed as `usage`. */
export const completion = (
  content: string,
  { inputTokens, outputTokens }: TokenUsage = tokens(820, 110),
  model = price.model
): Reply => ({
  status: 200,
  headers: { "content-type": "application/json" },
  body: {
    id: "chatcmpl-test",
    object: "chat.completion",
    created: 1_790_000_000,
    model,
    choices: [{ index: 0, message: { role: "assistant", content }, finish_reason: "stop" }],
    usage: {
      prompt_tokens: inputTokens,
      completion_tokens: outputTokens,
      total_tokens: inputTokens + outputTokens
    }
  }
})

export const enriched = (id: string): EnrichedVendor => ({ vendor_id: id, summary: "Makes fasteners.", risk: "low" })

/** A good reply to whatever row is asked about. */
export const good: Script = (seen) => completion(JSON.stringify(enriched(idOf(seen))), undefined, seen.model)

/** Fixtures first, good replies from then on. */
export const thenGood = (...fixtures: ReadonlyArray<Fixture>): Script => {
  const first = inOrder(...fixtures)
  const count = fixtures.reduce((sum, one) => sum + ("sequence" in one ? one.sequence.length : 1), 0)
  return (seen) => (seen.n <= count ? first(seen) : good(seen))
}

/** Waits for what a server or a process does, not for ever. */
export const until = (holds: () => boolean): Effect.Effect<void> =>
  Effect.sleep("5 millis").pipe(
    Effect.repeat({ until: holds }),
    Effect.timeout("20 seconds"),
    Effect.orDie,
    Effect.asVoid
  )
