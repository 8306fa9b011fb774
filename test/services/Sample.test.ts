import { assert, describe, it } from "@effect/vitest"
import { FastCheck as fc } from "effect"
import * as Sample from "../../src/services/Sample.ts"

const lengths = fc.array(fc.nat(50), { maxLength: 120 })
const size = fc.nat(150)
const prop = (holds: (lengths: Array<number>, n: number) => void) => fc.assert(fc.property(lengths, size, holds))

describe("Sample", () => {
  it("picks min(n, rows) different rows, ascending, the same each time", () =>
    prop((lengths, n) => {
      const picked = Sample.pick(lengths, n)
      assert.strictEqual(picked.length, Math.min(n, lengths.length))
      assert.deepStrictEqual(
        [...new Set(picked)].sort((a, b) => a - b),
        [...picked]
      )
      assert.isTrue(picked.every((row) => row >= 0 && row < lengths.length))
      assert.deepStrictEqual(Sample.pick(lengths, n), picked)
    }))

  it("always has the longest, and from two rows on the shortest", () =>
    prop((lengths, n) => {
      const picked = Sample.pick(lengths, n).map((row) => lengths[row])
      if (picked.length >= 1) assert.include(picked, Math.max(...lengths))
      if (picked.length >= 2) assert.include(picked, Math.min(...lengths))
    }))

  it("has strata that are every row once, in order of length, with equal counts to one row between the two ends", () =>
    prop((lengths, n) => {
      const { bounds, order } = Sample.strata(lengths, n)
      assert.deepStrictEqual(
        [...order].sort((a, b) => a - b),
        lengths.map((_, i) => i)
      )
      const ordered = [...order].map((row) => lengths[row] ?? -1)
      assert.isTrue(ordered.every((length, i) => i === 0 || (ordered[i - 1] ?? 0) <= length))
      assert.strictEqual(bounds.at(-1), lengths.length)
      const sizes = bounds.slice(1).map((to, i) => to - (bounds[i] ?? 0))
      const inner = sizes.slice(1, -1)
      if (lengths.length >= 3) assert.isAtMost(Math.max(...inner) - Math.min(...inner), 1)
    }))

  it("takes of each stratum its share, to one row", () =>
    prop((lengths, n) => {
      if (n >= lengths.length || n < 3) return
      const { bounds, order } = Sample.strata(lengths, n)
      const picked = new Set(Sample.pick(lengths, n))
      for (let i = 1; i + 2 < bounds.length; i++) {
        const rows = order.slice(bounds[i], bounds[i + 1])
        const share = (rows.length * (n - 2)) / (lengths.length - 2)
        const taken = [...rows].filter((row) => picked.has(row)).length
        assert.isBelow(Math.abs(taken - share), 1 + 1e-9)
      }
    }))
})
