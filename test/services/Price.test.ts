import { assert, describe, it } from "@effect/vitest"
import { Option } from "effect"
import * as PriceGenai from "../../src/layers/PriceGenai.ts"
import * as LLM from "../../src/services/LLM.ts"
import * as Price from "../../src/services/Price.ts"
import { Usd } from "../../src/services/Usd.ts"
import { tokens } from "../support/scriptedLlm.ts"

const today = Date.parse("2026-11-29T00:00:00Z")
const row: Price.PriceRow = {
  model: "m",
  from: "2026-01-01",
  input: 0.15,
  cached: 0.075,
  output: 0.6,
  tiers: { flex: 0.5, fast: 1.8 }
}
const request = LLM.request({
  model: "m",
  messages: [{ role: "user", content: "hello" }],
  maxOutputTokens: 100,
  format: { mode: "text" }
})
const answered = (parts: Partial<LLM.ChatAnswer> = {}) =>
  LLM.answer({ text: "hi", model: "m", usage: tokens(1_000, 100), ...parts })
const other: Price.PriceRow = { model: "other", from: "2026-01-01", input: 1, output: 2 }
const bill = (parts: Partial<LLM.ChatAnswer>, price = row, asked = request) =>
  Price.bill(price, asked, answered(parts), (model) => (model === "other" ? other : undefined))
/** 1,000 tokens at 150 nano-dollars and 100 at 600. */
const standard = 210_000

const costOf = (found: Price.Bill): number | string => (found._tag === "Known" ? found.cost : found.reason)

describe("Price.bill", () => {
  it("the tokens at the row's price", () => assert.strictEqual(costOf(bill({})), standard))

  it("a part that was cached, and one that was written to the cache, at their own prices", () => {
    const usage = { ...tokens(1_000, 0), cachedTokens: 600, cacheWriteTokens: 100 }
    assert.strictEqual(costOf(bill({ usage })), 300 * 150 + 600 * 75 + 100 * 150)
  })

  it("usage that is missing or no usage counts at the hold, never as zero", () => {
    const bad: ReadonlyArray<LLM.TokenUsage | undefined> = [
      undefined,
      tokens(-1, 5),
      tokens(10, -5),
      { ...tokens(10, 5), cachedTokens: -1 },
      tokens(10, -5),
      tokens(1.5, 5),
      tokens(Number.NaN, 5),
      tokens(1e308, 5),
      { ...tokens(10, 5), cachedTokens: 11 },
      { ...tokens(10, 5), cachedTokens: 6, cacheWriteTokens: 5 },
      { ...tokens(10, 5), reasoningTokens: 6 }
    ]
    for (const usage of bad) {
      assert.deepStrictEqual(bill({ usage }), { _tag: "Uncertain", reason: "no usage", unpriced: false })
    }
  })

  it("a dated snapshot has its model's price, either way round", () => {
    assert.strictEqual(costOf(bill({ model: "m-2026-05-01" })), standard)
    const dated = LLM.request({ ...request, model: "m-2026-05-01" })
    assert.strictEqual(costOf(bill({ model: "m" }, row, dated)), standard)
  })

  it("a dated snapshot with a row of its own costs that", () => {
    const dear = { ...row, model: "m-2024-05-13", input: 5, output: 15 }
    const found = Price.bill(row, request, answered({ model: dear.model }), (name) =>
      name === dear.model ? dear : row
    )
    assert.strictEqual(costOf(found), 1_000 * 5_000 + 100 * 15_000)
  })

  it("another model: its own price, or none, and then the run must stop", () => {
    assert.strictEqual(costOf(bill({ model: "other" })), 1_000 * 1_000 + 100 * 2_000)
    const found = bill({ model: "mega-2031" })
    assert.isTrue(found._tag === "Uncertain" && found.unpriced)
    assert.include(String(costOf(found)), "mega-2031")
  })

  it("another tier than asked: its factor, or none, and then the run must stop", () => {
    for (const tier of ["default", "auto", "standard"]) assert.strictEqual(costOf(bill({ tier })), standard)
    assert.strictEqual(costOf(bill({ tier: "flex" })), standard / 2)
    assert.strictEqual(costOf(bill({ tier: "fast" })), standard * 1.8)
    // Asked for, and the answer does not say.
    assert.strictEqual(costOf(bill({}, row, LLM.request({ ...request, tier: "fast" }))), standard * 1.8)
    // The second one is a word that every object knows.
    for (const tier of ["scale", "constructor"]) {
      const found = bill({ tier })
      assert.isTrue(found._tag === "Uncertain" && found.unpriced, tier)
    }
  })

  it("the provider's own figure goes before the table, whatever model it names and whatever its tokens are", () => {
    assert.strictEqual(costOf(bill({ cost: Usd.nano(77), model: "someone/else" })), 77)
    assert.strictEqual(costOf(bill({ cost: Usd.nano(77), usage: undefined })), 77)
    assert.strictEqual(costOf(bill({ cost: Usd.nano(77), usage: tokens(-1, 5) })), 77)
  })

  it("a model that costs nothing costs nothing, whoever answers", () => {
    assert.strictEqual(costOf(bill({ model: "gguf" }, Price.free("m"))), 0)
  })

  it("an answer above the output limit is billed in full, and flagged", () => {
    const found = bill({ usage: tokens(10, 101) })
    assert.isTrue(found._tag === "Known" && found.excess?.includes("101") === true)
    const kept = bill({ usage: tokens(10, 100) })
    assert.isTrue(kept._tag === "Known" && kept.excess === undefined)
  })

  it("the hold is at least what the tier asked for costs, and a cheaper tier does not lower it", () => {
    const holdIn = (tier: string) => Price.hold(row, LLM.request({ ...request, tier }))
    assert.strictEqual(holdIn("flex"), holdIn("default"))
    assert.strictEqual(holdIn("fast"), Math.ceil(holdIn("default") * 1.8))
  })

  it("without a tier, or as the project says, the hold covers the dearest one", () => {
    for (const tier of [undefined, "auto"]) {
      const asked = LLM.request({ ...request, ...(tier === undefined ? {} : { tier }) })
      const dearest = bill({ usage: tokens(Price.inputBound(asked), 100), tier: "fast" }, row, asked)
      assert.strictEqual(costOf(dearest), Price.hold(row, asked))
    }
    // A provider that is asked for the standard tier by name serves no other one.
    assert.strictEqual(Math.ceil(Price.hold(row, request, "default") * 1.8), Price.hold(row, request))
  })

  it("above the long-context limit the whole request costs the multiple", () => {
    const long = { ...row, longContext: { above: 999, input: 2, output: 1.5 } }
    assert.strictEqual(costOf(bill({}, long)), 2 * 150_000 + 1.5 * 60_000)
    assert.strictEqual(costOf(bill({ usage: tokens(999, 100) }, long)), 999 * 150 + 60_000)
  })
})

describe("Price.problem", () => {
  it("a price for one token where one for a million belongs, either way round, is refused", () => {
    assert.isUndefined(Price.problem(row))
    assert.isUndefined(Price.problem(Price.free("m")))
    const bad: ReadonlyArray<Partial<Price.PriceRow>> = [
      { input: 0.000_000_15 },
      { output: 600_000 },
      { input: -1 },
      { output: Number.NaN },
      { cached: Number.POSITIVE_INFINITY },
      { tiers: { flex: -1 } }
    ]
    for (const parts of bad) assert.include(Price.problem({ ...row, ...parts }) ?? "", "dollars per million tokens")
  })

  it("nothing in the built-in table", () => {
    for (const price of Price.table) assert.isUndefined(Price.problem(price))
  })
})

describe("Price.find", () => {
  it("gpt-4o-2024-05-13 costs twice the input of gpt-4o, later snapshots what gpt-4o costs", () => {
    const priceOf = (model: string) => Option.getOrUndefined(Price.find(Price.table, model, today))
    assert.deepStrictEqual([priceOf("gpt-4o")?.input, priceOf("gpt-4o")?.output], [2.5, 10])
    const first = priceOf("gpt-4o-2024-05-13")
    assert.deepStrictEqual([first?.input, first?.cached, first?.output], [5, 5, 15])
    assert.strictEqual(priceOf("gpt-4o-2024-08-06")?.input, 2.5)
  })
})

describe("Price.times", () => {
  it("everything costs so many times as much, and what is not named stays unnamed", () => {
    assert.deepStrictEqual(Price.times({ ...row, input: 1, cached: 0.5, output: 2 }, 3), {
      ...row,
      input: 3,
      cached: 1.5,
      output: 6
    })
    assert.isFalse("cacheWrite" in Price.times(row, 2))
  })
})

describe("PriceGenai", () => {
  const listed = PriceGenai.rows("openai")

  it("gives rows that can be used, for many providers", () => {
    for (const provider of ["openai", "anthropic", "google", "mistral", "groq", "openrouter"]) {
      const rows = PriceGenai.rows(provider)
      assert.isAbove(rows.length, 10, provider)
      for (const price of rows) assert.isUndefined(Price.problem(price), JSON.stringify(price))
    }
    assert.deepStrictEqual(PriceGenai.rows("nobody"), [])
  })

  it("agrees with the built-in table, wherever both know a model, on the day the table was read", () => {
    const shown = ({ cacheWrite, cached, input, output }: Price.PriceRow) => [
      input,
      cached ?? input,
      cacheWrite ?? input,
      output
    ]
    const models = new Set(Price.table.map(({ model }) => model))
    let both = 0
    for (const model of models) {
      const theirs = Option.getOrUndefined(Price.find(listed, model, today))
      const ours = Option.getOrUndefined(Price.find(Price.table, model, today))
      if (theirs === undefined || ours === undefined) continue
      both++
      assert.deepStrictEqual(shown(ours), shown(theirs), model)
    }
    assert.isAtLeast(both, 18)
  })

  it("keeps dates and the long-context step", () => {
    const luna = listed.filter(({ model }) => model === "gpt-5.6-luna")
    assert.deepStrictEqual(
      luna.map(({ from, input, longContext }) => [from, input, longContext]),
      [
        ["0000-01-01", 1, { above: 271_999, input: 2, output: 1.5 }],
        ["2026-07-30", 0.2, { above: 271_999, input: 2, output: 1.5 }]
      ]
    )
  })
})
