import { join } from "node:path"
import * as SqlClient from "@effect/sql/SqlClient"
import * as SqliteClient from "@effect/sql-sqlite-node/SqliteClient"
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import * as Memory from "../../src/layers/Memory.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import * as Budget from "../../src/services/Budget.ts"
import * as Price from "../../src/services/Price.ts"
import { Usd } from "../../src/services/Usd.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { play, type Reply } from "../support/fixtureServer.ts"
import { tempDir } from "../support/mortalProcess.ts"
import {
  assertSound,
  BILL,
  completion,
  enriched,
  fixture,
  good,
  HOLD,
  idOf,
  jobOf,
  NANO,
  openai,
  price,
  resultOf,
  run,
  runId,
  thenGood,
  tokens,
  vendors
} from "./vendors.ts"

describe("cost calculation", () => {
  it.scopedLive(
    "B06 unpriced-model (a): a model without a price under a cap is refused by name, and nothing is sent",
    () =>
      Effect.gen(function* () {
        const server = yield* play(good)
        const job = Enrichment.withOverrides(jobOf({ rows: vendors(3) }), { model: "mock-mega-2031" })
        const refused = yield* Effect.flip(run(job, server))
        assertIncludes(refused, { _tag: "RunRefused", reason: "unpriced" })
        assert.include(refused.message, "mock-mega-2031")
        assert.lengthOf(server.requests, 0)
        const uncapped = yield* run(job, server, { budget: { maxCostUsd: undefined, noCap: true } })
        assertIncludes(uncapped, { done: 3, calls: 3, cap: null })
      }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive(
    "B06 unpriced-model (b): an answer of a model without a price counts at its hold, and the run stops",
    () =>
      Effect.gen(function* () {
        const server = yield* play(thenGood(fixture("B06-unpriced-model-http-model-swap")))
        const result = yield* run(jobOf({ rows: vendors(5) }), server, { budget: { maxConcurrency: 1 } })
        assertSound(result, server.requests.length)
        assertIncludes(result, { status: "suspended", calls: 1, failed: 0, spent: 0, uncertain: HOLD })
        assert.strictEqual(String(result.reason?.kind), "unpriced")
        assert.include(result.reason?.message ?? "", "mock-mega-2031")
        assert.lengthOf(server.requests, 1)
      }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive("B24 cached-tokens: cached tokens are charged once, at their own price", () =>
    Effect.gen(function* () {
      const cached = fixture("B24-cached-tokens-http")
      const row = vendors(1, 2_000)
      const { cached: _, ...without } = price
      for (const [row_, charge, id] of [
        [price, 500 * 150 + 1_500 * 75 + 300 * 600, "priced"],
        // Without a price of their own they are charged as input, never as nothing.
        [without, 2_000 * 150 + 300 * 600, "unpriced"]
      ] as const) {
        const server = yield* play(thenGood(cached))
        const result = yield* Enrichment.run(jobOf({ rows: row }), { runId: id }).pipe(
          Effect.provide(Budget.layer({ maxCostUsd: 1 })),
          Effect.provide([openai(server), Price.layer([row_]), Memory.layer])
        )
        assertSound(result, server.requests.length)
        assertIncludes(result, { done: 1, calls: 1, spent: charge, uncertain: 0 })
        assertIncludes(result.usage, { inputTokens: 2_000, cachedTokens: 1_500, outputTokens: 300, cost: charge })
      }
    })
  )

  it.scopedLive("B24 cached-tokens: more cached tokens than there are is no bill: the call counts at its hold", () =>
    Effect.gen(function* () {
      const usage = {
        prompt_tokens: 820,
        completion_tokens: 110,
        total_tokens: 930,
        prompt_tokens_details: { cached_tokens: 5_000 }
      }
      const server = yield* play((seen) => withUsage(completion(JSON.stringify(enriched(idOf(seen)))), usage))
      const result = yield* run(jobOf(), server)
      assertSound(result, server.requests.length)
      assertIncludes(result, { done: 1, calls: 1, spent: 0, uncertain: HOLD })
    }).pipe(Effect.provide(Memory.layer))
  )

  for (const [what, row] of [
    ["a price of one token", { input: 0.15 / 1e6, output: 0.6 / 1e6 }],
    ["a price of a million million tokens", { input: 0.15 * 1e6, output: 0.6 * 1e6 }]
  ] as const) {
    it.scopedLive(`B72 price-unit: ${what} in the table is refused by its unit before any call`, () =>
      Effect.gen(function* () {
        const server = yield* play(good)
        const wrong = Price.layer([{ model: price.model, from: price.from, ...row }])
        const refused = yield* Effect.flip(
          Enrichment.run(jobOf({ rows: vendors(10) }), { runId }).pipe(
            Effect.provide(Budget.layer({ maxCostUsd: 50 })),
            Effect.provide([openai(server), wrong])
          )
        )
        assertIncludes(refused, { _tag: "RunRefused", reason: "unpriced" })
        assert.include(refused.message, "dollars per million tokens")
        assert.lengthOf(server.requests, 0)
      }).pipe(Effect.provide(Memory.layer))
    )
  }

  it.scopedLive(
    "B72 price-unit: a row that may cost more than the whole cap sends nothing and says what it may cost",
    () =>
      Effect.gen(function* () {
        const server = yield* play(good)
        const result = yield* run(jobOf({ rows: vendors(10) }), server, { budget: { maxCostUsd: (HOLD - 1) / NANO } })
        assertIncludes(result, { status: "suspended", calls: 0, pending: 10, failed: 0 })
        assert.include(result.reason?.message ?? "", `the next call may cost ${Usd.format(Usd.nano(HOLD))}`)
        assert.lengthOf(server.requests, 0)
      }).pipe(Effect.provide(Memory.layer))
  )

  // $0.0001 a token: 600 in and 400 out are $0.10, 6,600 in and 400 out are $0.70.
  const dime = { model: price.model, from: price.from, input: 100, output: 100 }
  for (const [what, cap, bounds, calls] of [
    ["ten of $0.10 under $1.00", 1, Array<number>(14).fill(600), 10],
    ["$0.10 and $0.70 under $0.80", 0.8, [600, 6_600, 600], 2],
    ["$0.70 and $0.10 under $0.80", 0.8, [6_600, 600, 600], 2]
  ] as const) {
    it.scopedLive(`B98 float-cap: an exactly spent cap is spent, and an exact fit fits: ${what}`, () =>
      Effect.gen(function* () {
        const filename = join(yield* tempDir, "run.db")
        const rows = bounds.flatMap((bound, i) => vendors(i + 1, bound).slice(i))
        const boundOf = new Map(rows.map(({ id }, i) => [id, bounds[i] ?? 0]))
        // The first to be asked is the last to be answered: sums do not depend on the order.
        const server = yield* play(async (seen) => {
          await new Promise((resume) => setTimeout(resume, Math.max(0, 60 - 15 * seen.n)))
          return completion(JSON.stringify(enriched(idOf(seen))), tokens(boundOf.get(idOf(seen)) ?? 0, 400))
        })
        const [result, reading] = yield* Effect.gen(function* () {
          const result = yield* Enrichment.run(jobOf({ rows }), { runId })
          return [result, yield* Effect.flatMap(Budget.Budget, (budget) => budget.reading)] as const
        }).pipe(
          Effect.provide(Budget.layer({ maxCostUsd: cap })),
          Effect.provide([openai(server), Price.layer([dime]), Sqlite.layer({ filename })])
        )
        assertSound(result, server.requests.length)
        assertIncludes(result, { done: calls, calls, pending: rows.length - calls, uncertain: 0, spent: cap * NANO })
        assert.strictEqual(reading.remaining, 0)
        assert.strictEqual(result.reason?.kind, "budget")
        const kinds = yield* Effect.flatMap(
          SqlClient.SqlClient,
          (sql) => sql`select typeof(spent) as spent, typeof(cap) as cap from run
            union all select distinct typeof(cost), typeof(amount) from call`
        ).pipe(Effect.provide(SqliteClient.layer({ filename })))
        assert.deepStrictEqual(kinds, Array(2).fill({ spent: "integer", cap: "integer" }))
        assert.include(JSON.stringify(result), `"spent":${cap * NANO},`)
      })
    )
  }
})

describe("usage missing", () => {
  it.scopedLive(
    "B26 stream-null-usage: no stream is asked for, and one that comes all the same is no answer and no zero",
    () =>
      Effect.gen(function* () {
        const server = yield* play(thenGood(fixture("B26-stream-null-usage-http-sse")))
        const result = yield* run(jobOf(), server)
        assertSound(result, server.requests.length)
        assertIncludes(result, { done: 1, calls: 2, retries: 1, uncertain: HOLD, spent: BILL })
        for (const { body } of server.requests) assert.notMatch(body, /"stream(_options)?"/)
      }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive("B26 stream-null-usage: an answer whose usage is null counts at its hold, and its row is done", () =>
    Effect.gen(function* () {
      const server = yield* play((seen) => withUsage(completion(JSON.stringify(enriched(idOf(seen)))), null))
      const result = yield* run(jobOf(), server)
      assertSound(result, server.requests.length)
      assertIncludes(result, { done: 1, calls: 1, uncertain: HOLD, spent: 0 })
      assert.strictEqual((yield* resultOf("V-001")).usage.cost, 0)
    }).pipe(Effect.provide(Memory.layer))
  )
})

const withUsage = (reply: Reply, usage: unknown): Reply => ({ ...reply, body: { ...Object(reply.body), usage } })
