import { execFileSync } from "node:child_process"
import { createRequire } from "node:module"
import { tmpdir } from "node:os"
import { fileURLToPath, pathToFileURL } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { Chunk, Context, Duration, Effect, Either, Layer, Option, Random, Schedule, Schema, Stream } from "effect"
import * as fc from "fast-check"
import { expectTypeOf, vi } from "vitest"
import * as Memory from "../../src/layers/Memory.ts"
import * as Budget from "../../src/programs/Budgets.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import { CircuitOpen, LLMError, UnsupportedValue } from "../../src/services/Errors.ts"
import * as Failure from "../../src/services/Failure.ts"
import * as Identity from "../../src/services/Identity.ts"
import * as LLM from "../../src/services/LLM.ts"
import type { AgentResult } from "../../src/services/Outcome.ts"
import * as Price from "../../src/services/Price.ts"
import * as Retry from "../../src/services/Retry.ts"
import * as Usage from "../../src/services/Usage.ts"
import { Usd } from "../../src/services/Usd.ts"
import { keys } from "../support/printKeys.ts"
import { agentOf, jobOf, rowsOf } from "../support/scriptedJob.ts"
import { good, model, permanent, prices, scripted, tokens } from "../support/scriptedLlm.ts"

const many = { numRuns: 500 }
const count = fc.nat(5_000_000)
const usages: fc.Arbitrary<Usage.Usage> = fc
  .record({
    inputTokens: count,
    cachedTokens: count,
    cacheWriteTokens: count,
    outputTokens: count,
    reasoningTokens: count,
    cost: fc.nat(2_000_000_000)
  })
  .map(({ cost, ...counts }) => Usage.make({ ...counts, cost: Usd.nano(cost) }))

/** Every plain object and array that a value holds, itself included. */
const partsOf = (value: unknown): ReadonlyArray<object> =>
  typeof value !== "object" || value === null ? [] : [value, ...Object.values(value).flatMap(partsOf)]
const assertFrozen = (value: unknown) => {
  assert.isAbove(partsOf(value).length, 0)
  for (const part of partsOf(value)) assert.isFrozen(part, JSON.stringify(part))
}

// Room for a busy machine.
vi.setConfig({ testTimeout: 60_000 })

describe("Usage and Usd", () => {
  it("I3: Usage.add is associative and commutative, and Usage.zero is its unit", () => {
    fc.assert(
      fc.property(usages, usages, usages, (a, b, c) => {
        assert.deepStrictEqual(Usage.add(Usage.add(a, b), c), Usage.add(a, Usage.add(b, c)))
        assert.deepStrictEqual(Usage.add(a, b), Usage.add(b, a))
        assert.deepStrictEqual(Usage.add(a, Usage.zero), a)
        assert.deepStrictEqual(Usage.add(Usage.zero, a), a)
      }),
      many
    )
  })

  it("I3: a total is exact, and the same in any order and grouping", () => {
    const shuffled = fc
      .array(usages, { maxLength: 30 })
      .chain((all) => fc.tuple(fc.constant(all), fc.shuffledSubarray(all, { minLength: all.length }), fc.nat(30)))
    fc.assert(
      fc.property(shuffled, ([all, other, cut]) => {
        const total = Usage.sum(all)
        assert.deepStrictEqual(Usage.sum(other), total)
        assert.deepStrictEqual(Usage.add(Usage.sum(other.slice(0, cut)), Usage.sum(other.slice(cut))), total)
        // bigint is exact by nature
        assert.strictEqual(
          BigInt(total.cost),
          all.reduce((sum, usage) => sum + BigInt(usage.cost), 0n)
        )
        assert.strictEqual(
          BigInt(total.inputTokens),
          all.reduce((sum, usage) => sum + BigInt(usage.inputTokens), 0n)
        )
      }),
      many
    )
  })

  it("I3: money is a safe integer of nano-dollars: a fraction, a negative or an unsafe sum is a defect, never a rounded amount", () => {
    for (const n of [0.5, -1, Number.NaN, Number.POSITIVE_INFINITY, 2 ** 53]) assert.throws(() => Usd.nano(n))
    assert.throws(() => Usd.add(Usd.nano(Number.MAX_SAFE_INTEGER), Usd.nano(1)))
  })

  it("Usd.fromDollars never widens a cap, is exact to the nano-dollar, and is undefined for what is no amount", () => {
    assert.strictEqual(Usd.fromDollars(50), 50_000_000_000)
    assert.strictEqual(Usd.fromDollars(0), 0)
    assert.strictEqual(Usd.fromDollars(0.1 + 0.2), 300_000_000)
    assert.strictEqual(Usd.fromDollars(1.1), 1_100_000_000)
    assert.strictEqual(Usd.fromDollars(0.0000000019), 1)
    for (const n of [-1, Number.NaN, Number.POSITIVE_INFINITY, 9_100_000]) assert.isUndefined(Usd.fromDollars(n))
    fc.assert(
      fc.property(fc.nat(10 ** 13), (n) => {
        assert.strictEqual(Usd.fromDollars(n / 1e9), n)
      }),
      many
    )
  })

  it("Usd.format shows dollars with cents, and below a dollar every digit there is", () => {
    const shown = [0, 1, 189_000, 10_000_000, 999_999_999, 1_000_000_000, 12_305_000_000, 1_234_567_890_000]
    assert.deepStrictEqual(
      shown.map((n) => Usd.format(Usd.nano(n))),
      ["$0.00", "$0.000000001", "$0.000189", "$0.01", "$0.999999999", "$1.00", "$12.30", "$1,234.56"]
    )
  })
})

describe("Immutable values", () => {
  it("I4: Usage, Failure, requests and answers are frozen to the bottom", () => {
    assertFrozen(Usage.zero)
    assertFrozen(Usage.add(Usage.make({ inputTokens: 1 }), Usage.make({ cost: Usd.nano(2) })))
    assertFrozen(Failure.fromUnknown(new Error("outer", { cause: new Error("inner") })))
    const error = new LLMError({ reason: "auth", category: "PERMANENT", scope: "run", charge: "none", message: "m" })
    assertFrozen(Failure.fromLLMError(error))
    assertFrozen(agentOf().request({ id: 1, text: "a" }))
    const messages = [{ role: "user" as const, content: "a" }]
    const request = LLM.request({ model: "m", messages, maxOutputTokens: 1, format: { mode: "text" } })
    assertFrozen(request)
    assert.isNotFrozen(messages, "the caller's own array stays the caller's")
    assertFrozen(LLM.answer({ text: "a", model: "m", usage: tokens(1, 1) }))
    assert.throws(() => Object.assign(request, { model: "other" }), TypeError)
  })

  it.effect("I4: a run's results, totals, events and store hits are frozen to the bottom", () =>
    Effect.gen(function* () {
      const llm = scripted(({ row }) => (row === "row 1" ? permanent : good()))
      const job = jobOf({ rows: rowsOf(3) })
      const run = (runId: string) =>
        Effect.gen(function* () {
          const events = yield* Stream.runCollect(Enrichment.events(job, { runId, collect: true }))
          const rows = yield* Stream.runCollect(Enrichment.results(runId, job.agent.output))
          return { events: Chunk.toReadonlyArray(events), rows: Chunk.toReadonlyArray(rows) }
        }).pipe(Effect.provide([Budget.layer({ maxCostUsd: 1 }), llm.layer]))
      const first = yield* run("first")
      // The second run finds its rows in the store.
      const second = yield* run("second")
      assert.strictEqual(llm.counts.byRow.get("row 0"), 1)
      for (const { events, rows } of [first, second]) {
        const outcomes = [
          ...events.flatMap((event) => (event._tag === "Row" ? [event.outcome] : [])),
          ...rows.flatMap((row) => Option.toArray(row.outcome))
        ]
        assert.lengthOf(outcomes, 6)
        for (const outcome of outcomes) assertFrozen(Either.merge(outcome))
        for (const event of events) {
          if (event._tag !== "Finished") continue
          assert.isFrozen(event.result)
          assertFrozen(event.result.usage)
          assert.isFrozen(event.result.thisProcess)
        }
      }
      assertFrozen(yield* Enrichment.status("first"))
    }).pipe(Effect.provide(Layer.merge(Memory.layer, prices)))
  )

  it("I4: values are read-only to the compiler", () => {
    type IsReadonly<T> = {
      [K in keyof T]: (<A>() => A extends { [P in K]: T[K] } ? 1 : 2) extends <A>() => A extends {
        readonly [P in K]: T[K]
      }
        ? 1
        : 2
        ? true
        : false
    }[keyof T]
    expectTypeOf<IsReadonly<{ a: number }>>().toEqualTypeOf<false>()
    expectTypeOf<IsReadonly<Usage.Usage>>().toEqualTypeOf<true>()
    expectTypeOf<IsReadonly<Failure.Failure>>().toEqualTypeOf<true>()
    expectTypeOf<Failure.Failure["cause"]>().toEqualTypeOf<ReadonlyArray<string>>()
    expectTypeOf<IsReadonly<Required<LLM.ChatRequest>>>().toEqualTypeOf<true>()
    expectTypeOf<LLM.ChatRequest["messages"]>().toEqualTypeOf<ReadonlyArray<LLM.Message>>()
    expectTypeOf<IsReadonly<LLM.ChatAnswer>>().toEqualTypeOf<true>()
    expectTypeOf<IsReadonly<AgentResult<string>>>().toEqualTypeOf<true>()
    expectTypeOf<IsReadonly<Enrichment.Totals>>().toEqualTypeOf<true>()
    // What only the compiler can refuse, it refuses here.
    const usage = Usage.make({ inputTokens: 1 })
    assert.throws(() => {
      // @ts-expect-error: a usage is read-only
      usage.inputTokens = 2
    }, TypeError)
    assert.strictEqual(usage.inputTokens, 1)
  })
})

/** A JSON value and the same with the keys of every object in another order. */
const shuffledPair: fc.Arbitrary<readonly [unknown, unknown]> = fc
  .tuple(fc.jsonValue({ maxDepth: 4 }), fc.infiniteStream(fc.nat(1_000)))
  .map(([value, dice]) => [value, shuffle(value, () => Number(dice.next().value))] as const)
const shuffle = (value: unknown, dice: () => number): unknown => {
  if (typeof value !== "object" || value === null) return value
  if (Array.isArray(value)) return value.map((item) => shuffle(item, dice))
  const entries = Object.entries(value).map(([key, item]) => ({ key, item: shuffle(item, dice), place: dice() }))
  const out = Object.create(null)
  for (const { item, key } of entries.sort((a, b) => a.place - b.place)) out[key] = item
  return out
}
/** JSON knows no -0; the canonical form neither. */
const same = (a: unknown, b: unknown) => JSON.stringify(shuffle(a, () => 0)) === JSON.stringify(shuffle(b, () => 0))
const hash = (value: unknown) => Either.getOrThrow(Identity.stableHash(value))

describe("Identity", () => {
  it("I5: keys are the same in another process, in another directory", () => {
    const script = fileURLToPath(new URL("../support/printKeys.ts", import.meta.url))
    const tsx = pathToFileURL(createRequire(import.meta.url).resolve("tsx")).href
    const printed = execFileSync(process.execPath, ["--import", tsx, script], { cwd: tmpdir(), encoding: "utf8" })
    assert.deepStrictEqual(printed.trim().split("\n"), [...keys()])
    assert.strictEqual(new Set(keys()).size, keys().length)
  })

  it("I5: a key has the published form, and does not change between releases", () => {
    const key = Either.getOrThrow(Identity.idempotencyKey("vendors", "enrich", 42, "2026-07-03"))
    assert.match(key, /^idem:[0-9a-f]{24}$/)
    assert.strictEqual(key, `idem:${Identity.sha256('["vendors","enrich",42,"2026-07-03"]').slice(0, 24)}`)
  })

  it("I5: the order of keys, at any depth, does not reach the hash", () => {
    fc.assert(
      fc.property(shuffledPair, ([value, shuffled]) => {
        assert.strictEqual(hash(shuffled), hash(value))
      }),
      many
    )
  })

  it("I5: two different values have different hashes, and parts keep their boundaries", () => {
    fc.assert(
      fc.property(fc.jsonValue(), fc.jsonValue(), (a, b) => {
        assert.strictEqual(hash(a) === hash(b), same(a, b))
      }),
      many
    )
    const texts = fc.array(fc.string({ maxLength: 3 }), { minLength: 1, maxLength: 4 })
    fc.assert(
      fc.property(texts, texts, (a, b) => {
        const [one, two] = [Identity.idempotencyKey(...a), Identity.idempotencyKey(...b)].map(Either.getOrThrow)
        assert.strictEqual(one === two, JSON.stringify(a) === JSON.stringify(b))
      }),
      many
    )
  })

  it("I5: kinds that JSON would collapse stay apart", () => {
    const date = new Date(0)
    const bytes = new Uint8Array([1, 2])
    const kinds: ReadonlyArray<unknown> = [
      date,
      date.toISOString(),
      { $date: date.toISOString() },
      new Map([["a", 1]]),
      { a: 1 },
      { $map: [["a", 1]] },
      new Set([1]),
      [1],
      { $set: [1] },
      1n,
      1,
      "1",
      { $bigint: "1" },
      { $$bigint: "1" },
      bytes,
      { 0: 1, 1: 2 },
      { $bytes: "0102" },
      null,
      "null",
      [null],
      {},
      []
    ]
    assert.strictEqual(new Set(kinds.map(hash)).size, kinds.length)
  })

  it("I5: a value without a canonical form is an UnsupportedValue that names its place, never a silent hash", () => {
    class Secret {
      readonly a = 1
    }
    const cycle: Record<string, unknown> = {}
    cycle.self = cycle
    const bad: ReadonlyArray<readonly [unknown, string]> = [
      [() => 1, "$"],
      [Symbol("a"), "$"],
      [undefined, "$"],
      [Number.NaN, "$"],
      [Number.POSITIVE_INFINITY, "$"],
      [new Secret(), "$"],
      [new Date(Number.NaN), "$"],
      [new WeakMap(), "$"],
      [new Error("a"), "$"],
      [cycle, "$.self"],
      [{ a: [1, { b: Number.NaN }] }, "$.a[1].b"],
      [[1, undefined], "$[1]"],
      [{ a: new Map([["k", () => 1]]) }, "$.a.<0>"]
    ]
    for (const [value, path] of bad) {
      const result = Identity.stableHash(value)
      assert.isTrue(Either.isLeft(result), `hashed ${String(value)}`)
      if (Either.isLeft(result)) {
        assert.instanceOf(result.left, UnsupportedValue)
        assert.strictEqual(result.left.path, path)
      }
    }
    assert.isTrue(Either.isLeft(Identity.idempotencyKey("a", Number.NaN)))
    // A value that stands in two places is no cycle.
    const shared = { a: 1 }
    assert.strictEqual(hash([shared, shared]), hash([{ a: 1 }, { a: 1 }]))
  })

  it("I6: no insertion order, class name or prototype reaches the hash", () => {
    const entries = fc.uniqueArray(fc.tuple(fc.string(), fc.jsonValue({ maxDepth: 2 })), { selector: ([key]) => key })
    fc.assert(
      fc.property(
        entries.chain((all) => fc.tuple(fc.constant(all), fc.shuffledSubarray(all, { minLength: all.length }))),
        ([all, other]) => {
          assert.strictEqual(hash(new Map(other)), hash(new Map(all)))
          assert.strictEqual(hash(new Set(other)), hash(new Set(all)))
        }
      ),
      many
    )
    class One {
      toJSON() {
        return { a: 1 }
      }
    }
    class Other extends One {}
    assert.strictEqual(hash(new One()), hash(new Other()))
    assert.strictEqual(hash(Object.assign(Object.create(null), { a: 1 })), hash({ a: 1 }))
    assert.strictEqual(hash({ a: -0 }), hash({ a: 0 }))
    assert.strictEqual(hash({ a: 1, b: undefined }), hash({ a: 1 }))
  })
})

describe("Requests", () => {
  it.effect("I21: what is sent is what was rendered, by value, for any row, and no two rows share a request", () =>
    Effect.gen(function* () {
      const texts =
        fc.sample(fc.uniqueArray(fc.string(), { minLength: 20, maxLength: 20 }), { seed: 7, numRuns: 1 })[0] ?? []
      const rows = texts.map((text, id) => ({ id, text }))
      // Half of the rows need a repair: the repaired request must not touch the first one.
      const llm = scripted(({ nth, n }) =>
        nth === 1 && n % 2 === 0 ? Effect.succeed(LLM.answer({ text: "no json", model, usage: tokens(1, 1) })) : good()
      )
      const job = jobOf({ rows })
      const before = rows.map((row) => JSON.stringify(job.agent.request(row)))
      yield* Enrichment.run(job, { runId: "r" }).pipe(
        Effect.provide(Budget.layer({ maxCostUsd: 1, maxConcurrency: 4 })),
        Effect.provide([Memory.layer, prices, llm.layer])
      )
      const first = llm.counts.requests.filter((request) => request.messages.length === 2)
      assert.deepStrictEqual(first.map((request) => JSON.stringify(request)).sort(), [...before].sort())
      assert.strictEqual(new Set(llm.counts.requests).size, llm.counts.requests.length)
      assert.strictEqual(
        new Set(llm.counts.requests.map((request) => request.messages)).size,
        llm.counts.requests.length
      )
      assert.isAbove(llm.counts.requests.length, rows.length)
      for (const request of llm.counts.requests) assertFrozen(request)
      assert.deepStrictEqual(
        rows.map((row) => JSON.stringify(job.agent.request(row))),
        before
      )
    })
  )
})

describe("Price", () => {
  const row: Price.PriceRow = { model: "m", from: "2026-01-01", input: 2, cached: 0.5, cacheWrite: 2.5, output: 10 }
  const day = (text: string) => Date.parse(text)

  it("a price row holds from its day on, the latest that has begun wins, and before the first there is none", () => {
    const rows = [row, { ...row, from: "2026-07-30", input: 1 }, { ...row, from: "2027-01-01", input: 3 }]
    const at = (text: string) => Option.map(Price.find(rows, "m", day(text)), ({ input }) => input)
    assert.deepStrictEqual(at("2025-12-31T23:59:59Z"), Option.none())
    assert.deepStrictEqual(at("2026-01-01T00:00:00Z"), Option.some(2))
    assert.deepStrictEqual(at("2026-07-29T23:59:59Z"), Option.some(2))
    assert.deepStrictEqual(at("2026-07-30T00:00:00Z"), Option.some(1))
    assert.deepStrictEqual(at("2030-01-01T00:00:00Z"), Option.some(3))
    assert.deepStrictEqual(Price.find(rows, "unknown", day("2030-01-01")), Option.none())
  })

  it("a dated snapshot has its model's price, unless it has a row of its own", () => {
    const own = { ...row, model: "m-2026-05-01", input: 7 }
    const input = (rows: ReadonlyArray<Price.PriceRow>, model: string) =>
      Option.getOrUndefined(Price.find(rows, model, day("2026-06-01")))?.input
    assert.strictEqual(input([row], "m-2026-05-01"), 2)
    assert.strictEqual(input([row, own], "m-2026-05-01"), 7)
    assert.isUndefined(input([row], "m-mini"))
  })

  it("for a model that the user prices only the user's rows count; the others stay", () => {
    const own: Price.PriceRow = { model: "gpt-4o", from: "2026-01-01", input: 99, output: 99 }
    const rows = Effect.runSync(Effect.provide(Price.Price, Price.layer([own])))
    const at = (model: string, when: string) => Option.getOrUndefined(Price.find(rows, model, day(when)))?.input
    assert.strictEqual(at("gpt-4o", "2026-06-01"), 99)
    assert.isUndefined(at("gpt-4o", "2025-06-01"), "the built-in row of 2024 is gone")
    assert.strictEqual(at("gpt-4o-mini", "2026-06-01"), 0.15)
    const free = Effect.runSync(Effect.provide(Price.Price, Price.layer([Price.free("llama")])))
    const price = Option.getOrThrow(Price.find(free, "llama", 0))
    assert.strictEqual(Price.cost(price, tokens(1_000_000, 1_000_000)), 0)
    assert.isTrue(Context.isReference(Price.Price))
  })

  it("the simulated model has a price at any time, a TestClock's 1970 too", () => {
    assert.isTrue(Option.isSome(Price.find(Price.table, "simulated", 0)))
  })

  it("a cost counts cached and cache-write tokens at their own price and rounds up once", () => {
    const usage = { inputTokens: 1000, cachedTokens: 400, cacheWriteTokens: 100, outputTokens: 50, reasoningTokens: 20 }
    // 500 x 2,000 + 400 x 500 + 100 x 2,500 + 50 x 10,000 nano-dollars
    assert.strictEqual(Price.cost(row, usage), 1_950_000)
    const dust = { model: "d", from: "2026-01-01", input: 0.0001, output: 0.0001 }
    assert.strictEqual(Price.cost(dust, tokens(1, 1)), 1)
    assert.strictEqual(Price.cost(dust, tokens(10, 0)), 1)
    assert.strictEqual(Price.cost(dust, tokens(11, 0)), 2)
    const { cached: _cached, cacheWrite: _write, ...plain } = row
    assert.strictEqual(Price.cost(plain, usage), 1000 * 2_000 + 50 * 10_000)
  })

  it("above the long-context mark the whole request is dearer, at the mark it is not", () => {
    const long = { ...row, longContext: { above: 1000, input: 2, output: 1.5 } }
    assert.strictEqual(Price.cost(long, tokens(1000, 10)), 1000 * 2_000 + 10 * 10_000)
    assert.strictEqual(Price.cost(long, tokens(1001, 10)), 2 * 1001 * 2_000 + 1.5 * 10 * 10_000)
  })

  it("I10: the hold covers every usage within the request's bounds, at any price", () => {
    const price = fc.nat(100_000).map((n) => n / 1000)
    const optional = (arbitrary: fc.Arbitrary<number>) => fc.option(arbitrary, { nil: undefined })
    const priceRows = fc
      .record({
        input: price,
        output: price,
        cached: optional(price),
        cacheWrite: optional(price),
        above: optional(fc.nat(400)),
        factor: fc.integer({ min: 10, max: 30 }).map((n) => n / 10)
      })
      .map(
        ({ above, cacheWrite, cached, factor, ...rest }): Price.PriceRow => ({
          model: "m",
          from: "2026-01-01",
          ...rest,
          ...(cached === undefined ? {} : { cached }),
          ...(cacheWrite === undefined ? {} : { cacheWrite }),
          ...(above === undefined ? {} : { longContext: { above, input: factor, output: factor } })
        })
      )
    const requests = fc
      .record({
        content: fc.string({ maxLength: 200, unit: "binary" }),
        maxOutputTokens: fc.integer({ min: 1, max: 4000 })
      })
      .map(({ content, maxOutputTokens }) =>
        LLM.request({
          model: "m",
          messages: [{ role: "user", content }],
          maxOutputTokens,
          format: { mode: "json_schema", name: "n", schema: { type: "object" }, strict: true }
        })
      )
    const share = fc.double({ min: 0, max: 1, noNaN: true })
    fc.assert(
      fc.property(priceRows, requests, share, share, share, share, (priceRow, request, a, b, c, d) => {
        const inputTokens = Math.floor(Price.inputBound(request) * a)
        const cachedTokens = Math.floor(inputTokens * b)
        const cacheWriteTokens = Math.floor((inputTokens - cachedTokens) * c)
        const outputTokens = Math.floor(request.maxOutputTokens * d)
        const usage = { inputTokens, cachedTokens, cacheWriteTokens, outputTokens, reasoningTokens: outputTokens }
        assert.isAtMost(Price.cost(priceRow, usage), Price.hold(priceRow, request))
      }),
      many
    )
  })

  it("I10: the input bound is at least one token a byte of all that is sent, schema included", () => {
    const format = {
      mode: "json_schema",
      name: "n",
      schema: { type: "object", description: "ü".repeat(50) },
      strict: true
    } as const
    const request = LLM.request({
      model: "m",
      messages: [{ role: "user", content: "€".repeat(1000) }],
      maxOutputTokens: 1,
      format
    })
    assert.isAtLeast(Price.inputBound(request), 3000 + Buffer.byteLength(JSON.stringify(format.schema)))
  })
})

const failed = (parts: Partial<ConstructorParameters<typeof LLMError>[0]> = {}) =>
  new LLMError({ reason: "overloaded", category: "TRANSIENT", scope: "row", charge: "none", message: "m", ...parts })

/** The waits of a policy over a sequence of errors, in milliseconds; it ends where the policy gives up. */
const waits = (policy: Retry.RetryPolicy, errors: ReadonlyArray<LLMError>, seed = "seed") =>
  Effect.map(
    Schedule.delays(policy.schedule).pipe((delays) =>
      Effect.withRandom(Schedule.run(delays, 0, errors), Random.make(seed))
    ),
    (found) => Chunk.toReadonlyArray(found).map(Duration.toMillis)
  )

describe("Retry", () => {
  const errors = (n: number, parts?: Parameters<typeof failed>[0]) => Array.from({ length: n }, () => failed(parts))

  it.effect("I12: the standard policy waits longer each time, with jitter, and gives up after five calls", () =>
    Effect.gen(function* () {
      const found = yield* waits(Retry.standard, errors(10))
      // The last entry is the end of the policy: no wait.
      const four = found.slice(0, 4)
      assert.lengthOf(
        found.filter((ms) => ms > 0),
        4
      )
      for (const [i, base] of [500, 1000, 2000, 4000].entries()) {
        assert.isAtLeast(four[i] ?? 0, base * 0.8)
        assert.isAtMost(four[i] ?? 0, base * 1.2)
        assert.notStrictEqual(four[i], base)
      }
      assert.notDeepEqual(yield* waits(Retry.standard, errors(10), "another"), found)
    })
  )

  it.effect("I12: a wait never passes the longest; Retry-After is admission's, for all rows", () =>
    Effect.gen(function* () {
      const patient = Retry.policy({ attempts: 9, base: "1 second", longest: "10 seconds" })
      assert.isAtMost(Math.max(...(yield* waits(patient, errors(20)))), 10_000)
    })
  )

  it.effect("I12: UNKNOWN is tried as TRANSIENT is", () =>
    Effect.gen(function* () {
      const unknown = yield* waits(Retry.standard, errors(10, { category: "UNKNOWN" }))
      assert.lengthOf(
        unknown.filter((ms) => ms > 0),
        4
      )
    })
  )
})

describe("Errors", () => {
  it("I14: CircuitOpen carries the original cause through encoding and decoding", () => {
    const cause = failed({ status: 503, retryAfterMs: 5, cause: new Error("socket hang up"), requestId: "r1" })
    const open = new CircuitOpen({ message: "scripted is failing", cause })
    const json = JSON.stringify(Schema.encodeSync(CircuitOpen)(open))
    const back = Schema.decodeUnknownSync(CircuitOpen)(JSON.parse(json))
    assert.instanceOf(back, CircuitOpen)
    assert.instanceOf(back.cause, LLMError)
    assert.strictEqual(back.message, open.message)
    const { cause: inner, ...rest } = back.cause
    const { cause: _inner, ...expected } = cause
    assert.deepStrictEqual({ ...rest }, { ...expected })
    assert.instanceOf(inner, Error)
    assert.deepStrictEqual(
      [back.cause.message, back.cause.reason, back.cause.status, inner instanceof Error ? inner.message : ""],
      ["m", "overloaded", 503, "socket hang up"]
    )
  })
})
