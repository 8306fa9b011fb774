/** Keys over many rows: the same in every process whatever the order of what has none, different for different rows, and none for what has no canonical form. */
import { assert, describe, it } from "@effect/vitest"
import { Effect, Either, Schema } from "effect"
import fc from "fast-check"
import { UnsupportedValue } from "../../src/services/Errors.ts"
import * as Identity from "../../src/services/Identity.ts"
import { hashesOf, rowsOf, witnessOf } from "../support/keyRows.ts"
import { start, url } from "./backends.ts"

const ROWS = 10_000

/** Rows that are one edit apart, in the ways that a careless form would not see. */
const neighbours: ReadonlyArray<readonly [unknown, unknown]> = [
  [{ a: "1" }, { a: 1 }],
  [{ a: 1n }, { a: 1 }],
  [{ a: 1n }, { a: "1" }],
  [{ a: null }, {}],
  [{ a: [] }, { a: {} }],
  [{ a: new Map() }, { a: new Set() }],
  [{ a: new Map() }, { a: {} }],
  [{ a: new Map([["b", 1]]) }, { a: { b: 1 } }],
  [{ a: new Map([[1, "b"]]) }, { a: new Map([["1", "b"]]) }],
  [{ a: new Date(0) }, { a: 0 }],
  [{ a: new Date(0) }, { a: new Date(0).toISOString() }],
  [{ a: new Date(0) }, { a: new Date(1) }],
  [{ a: "é" }, { a: "e\u0301" }],
  [{ a: "\ud800" }, { a: "\udfff" }],
  [{ a: "\ud800" }, { a: "\ufffd" }],
  [{ "": 1 }, { "\u0000": 1 }],
  [{ a: { b: 1 }, c: 2 }, { a: { b: 1, c: 2 } }],
  [{ a: [1, [2]] }, { a: [[1], 2] }],
  [{ a: 0.1 + 0.2 }, { a: 0.3 }],
  [{ a: new Uint8Array([1]) }, { a: [1] }]
]

class Plain {
  readonly a = 1
}
/** What has no canonical form, alone or anywhere in a row. */
const unsupported: ReadonlyArray<() => unknown> = [
  () => undefined,
  () => () => 1,
  () => Symbol("a"),
  () => Number.NaN,
  () => Number.NEGATIVE_INFINITY,
  () => new Plain(),
  () => new Date(Number.NaN),
  () => new Error("a"),
  () => /a/,
  () => new WeakMap(),
  () => Promise.resolve(1),
  () => new Number(1),
  () => new ArrayBuffer(1),
  () => new Int16Array(1),
  () => Array(2),
  () => Object.create({ a: 1 })
]

describe("Keys", () => {
  it.scopedLive(
    `I5: ${ROWS} rows have the same keys in two processes that hold their parts in different orders, and different rows different ones`,
    () =>
      Effect.gen(function* () {
        const script = (seed: number) => `
          import { hashesOf } from ${url("test/support/keyRows.ts")}
          console.log(JSON.stringify(hashesOf(${ROWS}, ${seed})))`
        const children = yield* Effect.all([start(script(1)), start(script(2))])
        const [first, second] = yield* Effect.forEach(children, (child) => child.line, { concurrency: "unbounded" })
        assert.strictEqual(first, second)
        const hashes = Schema.decodeSync(Schema.parseJson(Schema.Array(Schema.String)))(first ?? "")
        assert.deepStrictEqual(hashes, hashesOf(ROWS, 3))
        const byWitness = new Map(rowsOf(ROWS).map((row, i) => [witnessOf(row), hashes[i]]))
        assert.strictEqual(new Set(hashes).size, byWitness.size)
        assert.strictEqual(new Set(byWitness.values()).size, byWitness.size)
        assert.isAbove(byWitness.size, ROWS * 0.9)
      })
  )

  it("I5: rows that are one edit apart have different keys", () => {
    for (const [a, b] of neighbours) {
      const [one, other] = [a, b].map((row) => Either.getOrThrow(Identity.idempotencyKey("scope", row)))
      assert.notStrictEqual(one, other, `${witnessOf(a)} and ${witnessOf(b)}`)
    }
    assert.strictEqual(
      Either.getOrThrow(Identity.stableHash({ a: -0 })),
      Either.getOrThrow(Identity.stableHash({ a: 0 }))
    )
  })

  it("I5: what has no canonical form is refused wherever it stands in a row, and never becomes a text such as [object Object]", () => {
    const places: ReadonlyArray<(bad: unknown) => unknown> = [
      (bad) => [bad],
      (bad) => ({ a: [bad] }),
      (bad) => new Map([["a", bad]]),
      (bad) => new Map([[bad, "a"]]),
      (bad) => new Set([bad]),
      (bad) => ({ a: { b: [{ c: [bad] }] } })
    ]
    fc.assert(
      fc.property(
        fc.constantFrom(...unsupported),
        fc.constantFrom(...places),
        fc.constantFrom(...rowsOf(200)),
        (make, place, beside) => {
          const result = Identity.canonicalJson({ beside, bad: place(make()) })
          assert.isTrue(Either.isLeft(result), Either.isRight(result) ? result.right : "")
          if (Either.isLeft(result)) assert.instanceOf(result.left, UnsupportedValue)
        }
      ),
      { numRuns: 2_000 }
    )
    for (const row of rowsOf(2_000)) assert.notInclude(Either.getOrThrow(Identity.canonicalJson(row)), "[object")
  })
})
