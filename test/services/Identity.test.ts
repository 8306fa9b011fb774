/** The canonical form itself, character by character: a key in a database must be found again by every later release. */
import { assert, describe, it } from "@effect/vitest"
import { Either } from "effect"
import { UnsupportedValue } from "../../src/services/Errors.ts"
import * as Identity from "../../src/services/Identity.ts"

const json = (value: unknown) => Either.getOrThrow(Identity.canonicalJson(value))
const refusal = (value: unknown) => Either.getOrThrow(Either.flip(Identity.canonicalJson(value)))

class Point {
  readonly x: number
  constructor(x: number) {
    this.x = x
  }
  toJSON() {
    return { b: this.x, a: new Date(0) }
  }
}

describe("The canonical form", () => {
  for (const [what, value, expected] of [
    [
      "texts, numbers, booleans and null are JSON's",
      ["a\n", -0, 1.5, true, false, null],
      `["a\\n",0,1.5,true,false,null]`
    ],
    [
      "keys are sorted by code unit, at any depth",
      { b: { z: 1, Z: 2, é: 3 }, a: 1 },
      `{"a":1,"b":{"Z":2,"z":1,"é":3}}`
    ],
    ["the order of an array stays", [3, 1, 2], "[3,1,2]"],
    ["undefined is absent", { a: undefined, b: 1 }, `{"b":1}`],
    ["a key that starts with $ is escaped, one that holds it is not", { $a: 1, a$: 2 }, `{"$$a":1,"a$":2}`],
    ["a bigint", 12n, `{"$bigint":"12"}`],
    ["a Date", new Date(0), `{"$date":"1970-01-01T00:00:00.000Z"}`],
    ["bytes", new Uint8Array([1, 255]), `{"$bytes":"01ff"}`],
    ["a Set is sorted", new Set(["b", "a", "c"]), `{"$set":["a","b","c"]}`],
    [
      "a Map is sorted",
      new Map([
        ["b", 1],
        ["a", 2],
        ["c", 3]
      ]),
      `{"$map":[["a",2],["b",1],["c",3]]}`
    ],
    [
      "an instance is what its toJSON says, in its canonical form",
      new Point(1),
      `{"a":{"$date":"1970-01-01T00:00:00.000Z"},"b":1}`
    ],
    ["an object without a prototype is plain", Object.assign(Object.create(null), { b: 1, a: 2 }), `{"a":2,"b":1}`],
    ["empty ones", [{}, [], "", new Set(), new Map()], `[{},[],"",{"$set":[]},{"$map":[]}]`]
  ] as const) {
    it(`I5: ${what}`, () => assert.strictEqual(json(value), expected))
  }

  it("I5: a value that stands in two places is no cycle", () => {
    const shared = { a: 1 }
    assert.strictEqual(json([shared, { b: shared }]), `[{"a":1},{"b":{"a":1}}]`)
  })
})

describe("What has no canonical form", () => {
  const cycle: Array<unknown> = []
  cycle.push({ a: cycle })
  class Plain {
    readonly a = 1
  }
  const nameless = Object.create(Object.create(null))
  const broken = { toJSON: 1 }
  Object.setPrototypeOf(broken, Plain.prototype)
  for (const [what, value, path, message] of [
    ["a cycle", cycle, "$[0].a", "$[0].a: a cycle has no canonical form"],
    ["no number", { a: [1, Number.NaN] }, "$.a[1]", "$.a[1]: NaN has no JSON form"],
    ["an infinite number", -Infinity, "$", "$: -Infinity has no JSON form"],
    ["a function", () => 1, "$", "$: a function has no canonical form"],
    ["undefined in an array", [undefined], "$[0]", "$[0]: a undefined has no canonical form"],
    ["an invalid Date", new Date(Number.NaN), "$", "$: an invalid Date"],
    ["in a Set", new Set([1, Symbol("a")]), "$.<1>", "$.<1>: a symbol has no canonical form"],
    ["a Map's value", new Map([["k", Number.NaN]]), "$.<0>", "$.<0>: NaN has no JSON form"],
    ["a Map's key", new Map([[() => 1, 1]]), "$.<key 0>", "$.<key 0>: a function has no canonical form"],
    ["an instance", new Plain(), "$", "$: an instance of Plain has no canonical form: pass plain data"],
    [
      "an instance whose toJSON is no function",
      broken,
      "$",
      "$: an instance of Plain has no canonical form: pass plain data"
    ],
    [
      "an instance of nothing that has a name",
      nameless,
      "$",
      "$: an instance of a class has no canonical form: pass plain data"
    ]
  ] as const) {
    it(`I5: is refused by its place: ${what}`, () => {
      const error = refusal(value)
      assert.instanceOf(error, UnsupportedValue)
      assert.deepStrictEqual([error.path, error.message], [path, message])
    })
  }

  it("I5: what a value's own code throws is an UnsupportedValue too", () => {
    class Angry {
      toJSON() {
        throw new RangeError("no")
      }
    }
    const error = refusal({ a: new Angry() })
    assert.instanceOf(error, UnsupportedValue)
    assert.deepStrictEqual([error.path, error.message], ["$", "RangeError: no"])
    class Pointed {
      toJSON() {
        return { b: Number.NaN }
      }
    }
    assert.strictEqual(refusal({ a: new Pointed() }).path, "$.a.b")
  })
})

describe("A hash", () => {
  // By `printf '{"a":1}' | sha256sum`.
  const ofA1 = "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"

  it("I5: is the SHA-256 of the canonical form, all of it unless told otherwise", () => {
    assert.strictEqual(Identity.sha256(`{"a":1}`), ofA1)
    assert.strictEqual(Either.getOrThrow(Identity.stableHash({ a: 1 })), ofA1)
    assert.strictEqual(Either.getOrThrow(Identity.stableHash({ a: 1 }, 10)), ofA1.slice(0, 10))
    assert.isTrue(Either.isLeft(Identity.stableHash(Number.NaN)))
  })

  it("I5: a key is its first 24 digits, of all parts in their order", () => {
    const key = (...parts: ReadonlyArray<unknown>) => Either.getOrThrow(Identity.idempotencyKey(...parts))
    assert.strictEqual(key("a", { b: 1 }), `idem:${Identity.sha256(`["a",{"b":1}]`).slice(0, 24)}`)
    assert.notStrictEqual(key("a", "bc"), key("ab", "c"))
    assert.isTrue(Either.isLeft(Identity.idempotencyKey("a", Number.NaN)))
  })
})
