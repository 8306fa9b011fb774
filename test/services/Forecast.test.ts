import { assert, describe, it } from "@effect/vitest"
import { FastCheck as fc, Option } from "effect"
import * as Forecast from "../../src/services/Forecast.ts"
import { coverage, distributions } from "../support/forecastRuns.ts"

const costs = fc.array(fc.nat(1_000_000), { minLength: 1, maxLength: 60 })
const measured = (amounts: ReadonlyArray<number>, from = 0) => amounts.map((amount, i) => ({ row: from + i, amount }))
const sum = (amounts: ReadonlyArray<number>) => amounts.reduce((a, b) => a + b, 0)

describe("Forecast", () => {
  it("is exact where all rows are measured or paid, with no rows too", () => {
    fc.assert(
      fc.property(fc.array(fc.nat(1_000_000), { maxLength: 60 }), fc.nat(60), (amounts, cut) => {
        const lengths = amounts.map((_, i) => i)
        const sample = measured(amounts.slice(0, cut))
        const paid = measured(amounts.slice(cut), Math.min(cut, amounts.length))
        const { left, rowsLeft, total } = Option.getOrThrow(Forecast.cost({ lengths, sample, paid }))
        const all = sum(amounts)
        assert.strictEqual(rowsLeft, 0)
        assert.deepStrictEqual([left.low, left.high, total.low, total.expected, total.high], [0, 0, all, all, all])
      })
    )
  })

  it("is ordered, finite and not below what is known, whatever the amounts", () => {
    fc.assert(
      fc.property(costs, fc.nat(100), fc.option(fc.nat(2_000_000), { nil: undefined }), (amounts, more, most) => {
        const lengths = Array.from({ length: amounts.length + more }, (_, i) => (i * 7) % 13)
        const sample = measured(amounts)
        const { known, left, total } = Option.getOrThrow(Forecast.cost({ lengths, sample, most }))
        assert.strictEqual(known, sum(amounts))
        for (const { expected, high, low } of [left, total]) {
          assert.isTrue([low, expected, high].every(Number.isSafeInteger))
          assert.isTrue(0 <= low && low <= expected && expected <= high)
        }
        assert.isAtLeast(total.low, known)
      })
    )
  })

  it("says nothing without a sample, and leaves out what names no row or is no amount", () => {
    assert.isTrue(Option.isNone(Forecast.cost({ lengths: [1, 2], sample: [] })))
    const odd = [
      { row: 9, amount: 1 },
      { row: 0, amount: Number.NaN },
      { row: 1, amount: -1 }
    ]
    assert.isTrue(Option.isNone(Forecast.cost({ lengths: [1, 2], sample: odd })))
  })

  it("of rows that cost the same expects that for each row, and has room above for dear ones up to the most a row can cost", () => {
    const lengths = Array.from({ length: 1_000 }, (_, i) => i)
    const sample = Array.from({ length: 50 }, (_, i) => ({ row: i * 20, amount: 100 }))
    const { total } = Option.getOrThrow(Forecast.cost({ lengths, sample }))
    assert.strictEqual(total.low, 100_000)
    assert.strictEqual(total.expected, 100_000)
    assert.isAbove(total.high, 100_000)
    assert.strictEqual(Option.getOrThrow(Forecast.cost({ lengths, sample, most: 100 })).total.high, 100_000)
  })

  // A share of 0.9 or more gives less than 167 of 200 with a probability of about 0.001 (the binomial's 180 less 3.1 of its standard deviations of 4.24).
  for (const name of ["2 % at 10 times", "log-normal 1.2", "all of it"]) {
    it(`has the true cost in at least 90 % of the runs: ${name}`, () => {
      const costOf = distributions[name]
      assert.isDefined(costOf)
      if (costOf !== undefined) assert.isAtLeast(coverage(costOf, 2_000, 50, 200, 7).covered * 200, 167)
    })
  }
})

describe("Forecast.time", () => {
  const lengths = Array.from({ length: 100 }, () => 1)
  const sample = Array.from({ length: 50 }, (_, row) => ({ row, latencyMs: 1_000, calls: 1, tokens: 500 }))
  const low = (options: Partial<Forecast.TimeInput>) =>
    Option.getOrThrow(Forecast.time({ lengths, sample, concurrency: 5, ...options })).low

  it("is the work by the workers, or what a limit a minute allows if that is longer", () => {
    assert.strictEqual(low({}), 10_000)
    assert.strictEqual(low({ ahead: true }), 20_000)
    assert.strictEqual(low({ requestsPerMinute: 60 }), 50_000)
    assert.strictEqual(low({ tokensPerMinute: 10_000 }), 150_000)
    assert.strictEqual(low({ paid: Array.from({ length: 50 }, (_, i) => 50 + i) }), 0)
  })
})
