import { assert, describe, it } from "@effect/vitest"
import { Option, Schema } from "effect"
import * as Charts from "../../src/services/Charts.ts"
import * as Detectors from "../../src/services/Detectors.ts"
import { alarmed, drawOf, drifts, observation } from "../support/forecastRuns.ts"

const draw = drawOf(3)
const rows = (n: number, change: Partial<Detectors.Observation> = {}) =>
  Array.from({ length: n }, (_, seq) => ({ ...observation(seq, draw, { failed: 0, partial: 0 }), ...change }))

describe("review", () => {
  it("finds nothing in rows that are well", () => assert.deepStrictEqual(Detectors.review(rows(100)), []))

  it("finds rates above their limit, from two rows on", () => {
    const failed = rows(20, { kind: "failed", refusal: true, fields: {} })
    const kinds = Detectors.review([...rows(80), ...failed]).map(({ kind }) => kind)
    assert.deepStrictEqual(kinds, ["failed", "refused"])
    assert.deepStrictEqual(Detectors.review([...rows(9), ...failed.slice(0, 1)]), [])
    assert.deepStrictEqual(
      Detectors.review([...rows(80), ...rows(20, { kind: "partial" })]).map(({ kind }) => kind),
      ["partial"]
    )
  })

  it("finds a field with one value, also where that is empty, null or an object; not with few rows or where it must be so", () => {
    const fields = Detectors.fieldsOf({ a: "", b: null, c: { x: [1] }, d: "fixed" })
    assert.deepStrictEqual(fields, { a: "", b: "null", c: '{"x":[1]}', d: "fixed" })
    const schema = Schema.Struct({ a: Schema.String, d: Schema.Literal("fixed"), e: Schema.Literal("x", "y") })
    const ignored = Detectors.constantFields(schema)
    assert.deepStrictEqual([...ignored], ["d"])
    const found = Detectors.review(rows(20, { fields }), { ignored })
    assert.deepStrictEqual(
      found.map(({ field, kind }) => `${kind} ${field}`),
      ["degenerate a", "degenerate b", "degenerate c"]
    )
    assert.deepStrictEqual(Detectors.review(rows(19, { fields })), [])
  })
})

describe("drift", () => {
  for (const [name, drift] of Object.entries(drifts)) {
    it(`that begins at row 3,000 is found before row 3,300: ${name}`, () => {
      const found = alarmed(11, 4_000, 100, drift, 3_000)
      assert.isAtLeast(found?.seq ?? -1, 3_000)
      assert.isBelow(found?.seq ?? Number.POSITIVE_INFINITY, 3_300)
    })
  }

  // At a probability of 0.01 a run, one or more of 10 runs would alarm in 10 % of the seeds; the seed is fixed, and the bench has the figure.
  it("is not seen where there is none, over 10,000 rows", () => {
    for (let seed = 0; seed < 10; seed++) assert.isUndefined(alarmed(seed, 10_000, 60))
  })

  it("is none where rows that cost nearly the same cost a few percent more: it must matter too", () => {
    const rowOf = (seq: number, cost: number): Detectors.Observation => ({
      seq,
      cost: cost + (seq % 3),
      kind: "done",
      refusal: false,
      outputTokens: 10,
      inputLength: 20 + (seq % 5),
      fields: {}
    })
    const alarmAt = (cost: number) => {
      const sample = Array.from({ length: 50 }, (_, i) => rowOf(i, 1_000))
      const later = Array.from({ length: 1_000 }, (_, i) => rowOf(50 + i, cost))
      return Detectors.verdict(later.reduce(Detectors.add, Detectors.make(sample)))
    }
    for (const cost of [1_000, 1_060, 1_200, 850]) assert.isTrue(Option.isNone(alarmAt(cost)), `${cost}`)
    for (const cost of [1_400, 650]) {
      assert.deepStrictEqual(
        Option.map(alarmAt(cost), ({ kind }) => kind),
        Option.some("cost")
      )
    }
  })

  it("has a state whose size does not grow with the rows", () => {
    const grown = (n: number) => {
      const own = drawOf(5)
      let state = Detectors.make(Array.from({ length: 60 }, (_, i) => observation(i, own)))
      for (let seq = 0; seq < n; seq++) state = Detectors.add(state, observation(seq, own))
      return [state.values.flat().length, state.cost?.counts.length, state.last.length]
    }
    assert.deepStrictEqual(grown(10), grown(2_000))
  })

  it("keeps the first alarm, without a control character in its message", () => {
    const odd = (value: string) => ({ "a\u001b[2J": value })
    const canary = rows(60).map((row, i) => ({ ...row, fields: odd(i % 2 === 0 ? "x" : "y") }))
    const all = rows(200, { fields: odd("x") })
    const alarm = Option.getOrThrow(Detectors.verdict(all.reduce(Detectors.add, Detectors.make(canary))))
    assert.strictEqual(alarm.kind, "degenerate")
    assert.notMatch(alarm.message, /\p{Cc}/u)
    assert.deepStrictEqual(
      Detectors.verdict([...all, ...rows(50, { kind: "failed" })].reduce(Detectors.add, Detectors.make(canary))),
      Option.some(alarm)
    )
  })

  it("is bounded by a height that grows with the charts and the rows", () => {
    assert.closeTo(Charts.height(20, 10_000, 0.02), Math.log(1e7), 1e-9)
  })
})
