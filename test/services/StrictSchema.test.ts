import { assert, describe, it } from "@effect/vitest"
import { Arbitrary, Either, FastCheck as fc, Schema } from "effect"
import { vi } from "vitest"
import * as StrictSchema from "../../src/services/StrictSchema.ts"

// Room for a busy machine.
vi.setConfig({ testTimeout: 60_000 })

type AnySchema = Schema.Schema.AnyNoContext

const strict = (schema: AnySchema): object => {
  const made = StrictSchema.fromSchema("agent", schema)
  return Either.isRight(made) ? made.right : assert.fail(`${made.left.message} -> ${made.left.fix}`)
}
const object = (properties: Readonly<Record<string, unknown>>) => ({
  type: "object",
  properties,
  required: Object.keys(properties),
  additionalProperties: false
})
/** What a field of a struct becomes, and the definitions beside it. */
const field = (schema: AnySchema, expected: object, $defs?: object) =>
  assert.deepStrictEqual(strict(Schema.Struct({ x: schema })), {
    ...object({ x: expected }),
    ...($defs === undefined ? {} : { $defs })
  })
const text = { type: "string" }
const custom = (jsonSchema: object) => Schema.String.annotations({ jsonSchema })

/** Field, what is wrong and the fix; a word of each of the last two is enough. */
const refuses = (schema: AnySchema, path: string | undefined, what: string, fix: string) => {
  const made = StrictSchema.fromSchema("rater", schema)
  if (Either.isRight(made)) return assert.fail(JSON.stringify(made.right))
  const { field, fix: advice, message, reason } = made.left
  assert.strictEqual(reason, "bad_job")
  assert.strictEqual(field, path)
  const place = path === undefined ? "output" : `output field ${path}`
  assert.isTrue(message.startsWith(`Agent "rater", ${place}: `), message)
  assert.include(message, what)
  assert.include(advice, fix)
}
const refusesField = (schema: AnySchema, what: string, fix: string, path = "x") =>
  refuses(Schema.Struct({ x: schema }), path, what, fix)

interface Tree {
  readonly value: string
  readonly children: ReadonlyArray<Tree>
}
const Tree = Schema.Struct({
  value: Schema.String,
  children: Schema.Array(Schema.suspend((): Schema.Schema<Tree> => Tree))
}).annotations({ identifier: "Tree" })
const treeJson = object({ value: text, children: { type: "array", items: { $ref: "#/$defs/Tree" } } })

class Vendor extends Schema.Class<Vendor>("app/Vendor v1")({ name: Schema.String }) {}
class Same extends Schema.Class<Same>("app_Vendor_v1")({ other: Schema.String }) {}
const Tags = Schema.Array(Schema.String).annotations({ identifier: "Tags" })

describe("StrictSchema.fromSchema", () => {
  it("closes every object and requires every field, in order", () => {
    assert.strictEqual(
      JSON.stringify(
        strict(Schema.Struct({ b: Schema.String, a: Schema.Struct({ c: Schema.NullOr(Schema.Boolean) }) }))
      ),
      JSON.stringify(object({ b: text, a: object({ c: { anyOf: [{ type: "boolean" }, { type: "null" }] } }) }))
    )
    field(
      custom({ type: "object", properties: { a: text }, required: ["a"], additionalProperties: true }),
      object({ a: text })
    )
    assert.deepStrictEqual(strict(Schema.Struct({ constructor: Schema.String })), object({ constructor: text }))
    const twice = { ...object({ a: text, b: text }), required: ["b", "a", "b"] }
    field(custom(twice), object({ a: text, b: text }))
    field(Schema.Any.annotations({ jsonSchema: { properties: { a: text }, required: ["a"] } }), object({ a: text }))
    field(Schema.Any.annotations({ jsonSchema: { items: text } }), { type: "array", items: text })
    field(custom({ type: "object", additionalProperties: false, maxProperties: 1 }), object({}))
  })

  it("is of the encoded side", () => {
    field(Schema.OptionFromNullOr(Schema.String), { anyOf: [text, { type: "null" }] })
    field(Schema.parseJson(Schema.Struct({ a: Schema.Number })), text)
    field(
      Schema.Date,
      { $ref: "#/$defs/Date" },
      { Date: { ...text, description: "a string to be decoded into a Date" } }
    )
  })

  it("keeps literals, unions, bounds and descriptions, and drops what checks nothing", () => {
    field(Schema.Literal("a", "b"), { ...text, enum: ["a", "b"] })
    field(Schema.Enums({ A: "a", B: 1 }), {
      anyOf: [
        { ...text, enum: ["a"] },
        { type: "number", enum: [1] }
      ]
    })
    field(custom({ oneOf: [{ const: null }, { type: "string" }], default: 1 }), {
      anyOf: [{ type: "null", const: null }, text]
    })
    field(Schema.Number.pipe(Schema.between(1, 5)), {
      type: "number",
      description: "a number between 1 and 5",
      minimum: 1,
      maximum: 5
    })
    field(Schema.Array(Schema.String).annotations({ title: "t", description: "d", examples: [["a"]], default: [] }), {
      type: "array",
      description: "d",
      items: text
    })
    field(custom({ ...text, format: "email", contentMediaType: "x/y", $comment: "c", $id: "i", uniqueItems: true }), {
      ...text,
      format: "email"
    })
    field(Schema.String.pipe(Schema.pattern(/^a+$/)).annotations({ description: "" }), {
      ...text,
      description: "",
      pattern: "^a+$"
    })
  })

  it("drops a bound that strict mode does not take, or that is of another type", () => {
    field(custom({ ...text, format: "uri", pattern: "^(?!x)", minLength: -1, minimum: 1 }), text)
    field(custom({ ...text, pattern: "(.)\\1" }), text)
    field(Schema.Number.pipe(Schema.lessThan(Number.POSITIVE_INFINITY)).annotations({ description: "d" }), {
      type: "number",
      description: "d"
    })
    field(custom({ type: ["integer", "null"], minLength: 1, minimum: 1 }), { type: ["integer", "null"], minimum: 1 })
  })

  it("merges the bounds in allOf; of two for one word the outer stays", () => {
    field(Schema.Number.pipe(Schema.between(0, 5), Schema.between(1, 7)), {
      type: "number",
      description: "a number between 1 and 7",
      minimum: 1,
      maximum: 7
    })
    field(custom({ ...text, allOf: [{ minLength: 1 }, { maxLength: 2, minLength: 3, title: "t" }] }), {
      ...text,
      minLength: 1,
      maxLength: 2
    })
    refusesField(custom({ ...text, allOf: [{ minLength: 1 }, { enum: ["a"] }] }), '"allOf"', "Schema.Union")
    refusesField(custom({ allOf: [object({ a: text }), object({ b: text })] }), '"allOf"', "Schema.Union")
  })

  it("a reference stands alone; a simple type with words beside it is written out", () => {
    const Int = { type: "integer", description: "an integer" }
    field(Schema.Int, { $ref: "#/$defs/Int" }, { Int })
    field(Schema.Int.pipe(Schema.positive()), { ...Int, description: "a positive number", exclusiveMinimum: 0 })
    const described = Schema.Struct({ x: Schema.propertySignature(Schema.Int).annotations({ description: "a count" }) })
    assert.deepStrictEqual(strict(described), object({ x: { ...Int, description: "a count" } }))
    const titled = Schema.Struct({ x: Schema.propertySignature(Schema.Int).annotations({ title: "count" }) })
    assert.deepStrictEqual(strict(titled), { ...object({ x: { $ref: "#/$defs/Int" } }), $defs: { Int } })
    field(Tags.pipe(Schema.minItems(2)), {
      type: "array",
      description: "an array of at least 2 item(s)",
      minItems: 2,
      items: text
    })
    const tree = Schema.Struct({ x: Schema.propertySignature(Tree).annotations({ description: "the root" }) })
    assert.deepStrictEqual(strict(tree), { ...object({ x: { $ref: "#/$defs/Tree" } }), $defs: { Tree: treeJson } })
  })

  it("a schema with a name is written out at the root, and may refer to itself", () => {
    assert.deepStrictEqual(strict(Vendor), object({ name: text }))
    assert.deepStrictEqual(strict(Tree), { ...treeJson, $defs: { Tree: treeJson } })
    assert.deepStrictEqual(
      strict(Schema.Struct({ a: Schema.String }).pipe(Schema.filter(() => true))),
      object({ a: text })
    )
    assert.deepStrictEqual(
      strict(Schema.Struct({ a: Schema.String }).annotations({ identifier: "A", description: "d" })),
      { ...object({ a: text }), description: "d" }
    )
  })

  it("names definitions without escapes, each once", () => {
    assert.deepStrictEqual(strict(Schema.Struct({ a: Vendor, b: Same, c: Vendor })), {
      ...object({
        a: { $ref: "#/$defs/app_Vendor_v1" },
        b: { $ref: "#/$defs/app_Vendor_v1_" },
        c: { $ref: "#/$defs/app_Vendor_v1" }
      }),
      $defs: { app_Vendor_v1: object({ name: text }), app_Vendor_v1_: object({ other: text }) }
    })
  })

  it("refuses a root that is no object", () => {
    const wrap = "wrap it: Schema.Struct({ ... })"
    const Item = Schema.Struct({ a: Schema.String })
    refuses(Schema.String, undefined, "not an object", wrap)
    refuses(Schema.Array(Item), undefined, "not an object", wrap)
    refuses(Schema.Union(Item, Vendor), undefined, "not an object", wrap)
    refuses(Schema.NullOr(Item), undefined, "not an object", wrap)
    refuses(Schema.Unknown, undefined, "not an object", wrap)
    refuses(Tags, undefined, "not an object", wrap)
    // It would be sent as an object, and decoded as a string.
    refuses(Schema.parseJson(Item), undefined, "not an object", wrap)
  })

  it("refuses an optional field, by its path", () => {
    const fix = "write Schema.NullOr(...)"
    const Line = Schema.Struct({ no: Schema.Int, street: Schema.optional(Schema.String) })
    refuses(
      Schema.Struct({ a: Schema.String, address: Schema.NullOr(Schema.Struct({ lines: Schema.Array(Line) })) }),
      "address.lines[].street",
      "optional",
      fix
    )
    refusesField(Schema.UndefinedOr(Schema.String), "optional", fix)
    refuses(
      Schema.Struct({
        a: Schema.optionalWith(Schema.String, { nullable: true, default: () => "" }),
        b: Schema.Unknown
      }),
      "a",
      "optional",
      fix
    )
    class Part extends Schema.Class<Part>("Part")({ a: Schema.optionalWith(Schema.String, { exact: true }) }) {}
    refusesField(Schema.Array(Part), "optional", fix, "x[].a")
  })

  it("refuses records, tuples, open types and what cannot be", () => {
    const { Any, Never, Number, Object, String, Struct, TemplateLiteral, Tuple, Unknown, Void } = Schema
    for (const key of [String, TemplateLiteral("a", String), Schema.NonEmptyString])
      refusesField(Schema.Record({ key, value: Number }), "keys", "{ key: Schema.String, value: ... }")
    refuses(Schema.Record({ key: String, value: Number }), undefined, "keys", "array of pairs")
    refusesField(Struct({ a: String }, Schema.Record({ key: String, value: Unknown })), "keys", "array of pairs")
    for (const schema of [Tuple(String, Number), Tuple(), Tuple([String], Number)])
      refusesField(schema, "tuple", "Schema.Struct with a field for each place")
    refusesField(custom({ type: "array", prefixItems: [text], items: text }), "tuple", "Schema.Array")
    for (const schema of [Unknown, Any, Object, Struct({}), Void, custom({ anyOf: [] }), custom({ type: "text" })])
      refusesField(schema, "any value", "say what it is")
    refusesField(Schema.Array(Unknown), "any value", "say what it is", "x[]")
    refuses(Struct({ x: Never }), "x", "no value", "leave the field out")
    refusesField(custom({ type: "number", enum: [1, Infinity] }), "literals", "numbers")
    refuses(Struct({ ["__proto__"]: String }), "__proto__", "lost", "another name")
  })

  it("refuses each word that strict output has not", () => {
    const words =
      "if then else dependentRequired dependentSchemas propertyNames contains unevaluatedProperties $dynamicRef"
    for (const word of words.split(" ")) refusesField(custom({ ...text, [word]: {} }), `"${word}"`, "Schema.filter")
    refusesField(custom({ ...object({ a: text }), anyOf: [text] }), '"anyOf"', "Schema.Union")
    refusesField(custom({ anyOf: [text], oneOf: [text] }), '"oneOf"', "Schema.Union")
    const narrower = Tree.pipe(Schema.filter(() => true, { jsonSchema: { required: ["a"] } }))
    refusesField(narrower, '"$ref" beside "required"', "Schema.filter")
    for (const $ref of ["#/$defs/nothing", "#/$defs/constructor", "#/$defs/__proto__", "#", "https://example.com/a"])
      refusesField(custom({ $ref }), "definition", "in place of")
  })

  it("says of a schema that has no JSON schema where it is, and the fix", () => {
    const make = (schema: AnySchema) => Schema.Struct({ address: Schema.Struct({ since: schema }) })
    const path = "address.since"
    refuses(make(Schema.DateFromSelf), path, "(DateFromSelf)", "Schema.Date for Schema.DateFromSelf")
    refuses(make(Schema.BigIntFromSelf), path, "(bigint)", "jsonSchema")
    refuses(make(Schema.Struct({ [Symbol.for("a")]: Schema.String })), path, "Symbol(a)", "jsonSchema")
    interface Chain {
      readonly next: Chain | null
    }
    const Nameless = Schema.Struct({ next: Schema.NullOr(Schema.suspend((): Schema.Schema<Chain> => Nameless)) })
    refuses(Nameless, "next", "no JSON schema", "identifier")
  })
})

/** A struct of structs, each in the last, `levels` deep. */
const nested = (levels: number): AnySchema =>
  Schema.Struct({ a: levels === 1 ? Schema.String : Schema.NullOr(Schema.Array(nested(levels - 1))) })
const literals = (count: number, length = 4) =>
  Schema.Literal(...Array.from({ length: count }, (_, at) => String(at).padStart(length, "x")))
const fields = (count: number, length = 4) =>
  Schema.Struct(
    Object.fromEntries(Array.from({ length: count }, (_, at) => [String(at).padStart(length, "x"), Schema.String]))
  )

describe("the limits of StrictSchema.fromSchema", () => {
  it("5,000 fields in all", () => {
    const two = (count: number) => Schema.Struct({ a: fields(4000), b: fields(count) })
    strict(two(998))
    refuses(two(999), undefined, "5001 fields in all; the limit is 5000", "less")
  })

  it("10 levels of objects", () => {
    strict(nested(10))
    refuses(nested(11), "a[].a[].a[].a[].a[].a[].a[].a[].a[].a[]", "11 levels of objects; the limit is 10", "flatten")
  })

  it("120,000 characters of names and literals", () => {
    const names = (length: number) => Schema.Struct({ a: fields(2000, 59), b: literals(1, length) })
    strict(names(1998))
    refuses(names(1999), undefined, "120001 characters", "less")
    const defined = (length: number) => Schema.Struct({ a: Tree, b: literals(1, length) })
    strict(defined(120_000 - 2 - 4 - 13))
    refuses(defined(120_000 - 2 - 4 - 12), undefined, "120001 characters", "less")
  })

  it("1,000 enum values in all, 15,000 characters in a long enum", () => {
    const two = (count: number) => Schema.Struct({ a: literals(500), b: Schema.Array(literals(count)) })
    strict(two(500))
    refuses(two(501), undefined, "1001 enum values in all; the limit is 1000", "Schema.String")
    strict(Schema.Struct({ a: literals(250, 61), b: literals(300, 50) }))
    refusesField(
      Schema.Array(literals(251, 60)),
      "15060 characters in the 251 strings of an enum",
      "Schema.String",
      "x[]"
    )
  })
})

type Fields = Readonly<Record<string, unknown>>
const isFields = (value: unknown): value is Fields =>
  typeof value === "object" && value !== null && !Array.isArray(value)
const listOf = (value: unknown): ReadonlyArray<unknown> => (Array.isArray(value) ? value : [])
const mapOf = (value: unknown): Fields => (isFields(value) ? value : {})

/** A schema and those in it, by the words of the subset. */
const partsOf = (schema: unknown): ReadonlyArray<Fields> => {
  if (!isFields(schema)) return assert.fail(`not a schema: ${schema}`)
  const { $defs, anyOf, items, properties } = schema
  const inner = [...Object.values(mapOf(properties)), ...Object.values(mapOf($defs)), ...listOf(anyOf)]
  return [schema, ...[...inner, ...("items" in schema ? [items] : [])].flatMap(partsOf)]
}
const bounds =
  "pattern format minLength maxLength multipleOf minimum maximum exclusiveMinimum exclusiveMaximum minItems maxItems".split(
    " "
  )
const allowed = new Set([
  ..."type enum const anyOf $ref $defs items properties required additionalProperties description".split(" "),
  ...bounds
])

const rules: Readonly<Record<string, (limit: number, value: unknown) => boolean>> = {
  minLength: (limit, value) => typeof value !== "string" || value.length >= limit,
  maxLength: (limit, value) => typeof value !== "string" || value.length <= limit,
  minimum: (limit, value) => typeof value !== "number" || value >= limit,
  maximum: (limit, value) => typeof value !== "number" || value <= limit,
  exclusiveMinimum: (limit, value) => typeof value !== "number" || value > limit,
  minItems: (limit, value) => !Array.isArray(value) || value.length >= limit
}
const isOfType = (type: unknown, value: unknown): boolean => {
  if (type === "integer") return Number.isInteger(value)
  if (type === "array") return Array.isArray(value)
  if (type === "object") return isFields(value)
  return type === "null" ? value === null : typeof value === type
}
/** A validator of no more than the subset. */
const fits = (schema: unknown, value: unknown, defs: Fields): boolean => {
  const node = mapOf(schema)
  if (typeof node.$ref === "string") return fits(defs[node.$ref.slice("#/$defs/".length)], value, defs)
  const entries = Object.entries(mapOf(value))
  const properties = mapOf(node.properties)
  return (
    (!("type" in node) || [node.type].flat().some((type) => isOfType(type, value))) &&
    (!("enum" in node) || listOf(node.enum).includes(value)) &&
    (!("anyOf" in node) || listOf(node.anyOf).some((choice) => fits(choice, value, defs))) &&
    (!("items" in node) || listOf(value).every((item) => fits(node.items, item, defs))) &&
    (!("properties" in node) ||
      (listOf(node.required).every((name) => Object.hasOwn(mapOf(value), String(name))) &&
        entries.every(([name, item]) => Object.hasOwn(properties, name) && fits(properties[name], item, defs)))) &&
    (typeof node.pattern !== "string" || new RegExp(node.pattern, "u").test(String(value))) &&
    Object.entries(rules).every(([word, holds]) => typeof node[word] !== "number" || holds(node[word], value))
  )
}

const annotated = Schema.String.annotations({ title: "t", description: "d", examples: ["e"], default: "f" })
const simple = fc.constantFrom<AnySchema>(
  ...[annotated, Schema.Boolean, Schema.JsonNumber, Schema.Int, Schema.NonEmptyString, Schema.UUID, Schema.Trimmed],
  ...[Schema.NumberFromString, Schema.Int.pipe(Schema.positive()), Schema.Int.pipe(Schema.between(1, 5))],
  ...[Schema.Literal("a", "b"), Schema.Literal("a", 1, null, true), Schema.Enums({ A: "a", B: 2 }), Schema.Null],
  ...[
    Schema.String.pipe(Schema.maxLength(3), Schema.minLength(1)),
    Schema.Array(Schema.String).pipe(Schema.minItems(1))
  ],
  ...[Schema.Int.annotations({ description: "n", jsonSchema: { multipleOf: 1 } }), Tags, Tags.pipe(Schema.minItems(2))],
  ...[Tree, Vendor, Schema.OptionFromNullOr(Schema.String)]
)
const names = fc.constantFrom("a", "pattern", "title", "items", "$ref", "allOf", "minLength", "é b")
const { struct: structs } = fc.letrec<{ readonly any: AnySchema; readonly struct: AnySchema }>((tie) => ({
  any: fc.oneof(
    { maxDepth: 3, depthIdentifier: "schema" },
    simple,
    tie("struct"),
    tie("any").map((schema) => Schema.NullOr(schema)),
    tie("any").map((schema) => Schema.Array(schema)),
    fc.tuple(tie("any"), tie("struct")).map((both) => Schema.Union(...both).annotations({ description: "either" }))
  ),
  struct: fc
    .uniqueArray(fc.tuple(names, tie("any")), {
      minLength: 1,
      maxLength: 4,
      selector: ([name]) => name,
      depthIdentifier: "schema"
    })
    .map((entries) => Schema.Struct(Object.fromEntries(entries)))
}))

describe("any struct", () => {
  it("becomes a schema in the subset, the same each time", () => {
    fc.assert(
      fc.property(structs, (schema) => {
        const made = strict(schema)
        for (const part of partsOf(made)) {
          const words = Object.keys(part)
          assert.deepStrictEqual(
            words.filter((word) => !allowed.has(word)),
            []
          )
          if ("$ref" in part) assert.deepStrictEqual(words, ["$ref"])
          else assert.isTrue("type" in part || "anyOf" in part, JSON.stringify(part))
          if (part.type !== "object") continue
          assert.deepStrictEqual(part.required, Object.keys(mapOf(part.properties)))
          assert.isFalse(part.additionalProperties)
        }
        assert.strictEqual(JSON.stringify(strict(schema)), JSON.stringify(made))
      }),
      { numRuns: 500 }
    )
  })

  it("takes every value of its schema, encoded, and none with a field too few or too many", () => {
    const values = structs.chain((schema) => Arbitrary.make(schema).map((value: unknown) => ({ schema, value })))
    fc.assert(
      fc.property(values, fc.nat(), ({ schema, value }, at) => {
        const made = strict(schema)
        const encoded: unknown = JSON.parse(JSON.stringify(Schema.encodeUnknownSync(schema)(value)))
        const defs = mapOf(mapOf(made).$defs)
        assert.isTrue(fits(made, encoded, defs), `${JSON.stringify(made)} ${JSON.stringify(encoded)}`)
        const entries = Object.entries(mapOf(encoded))
        assert.isFalse(fits(made, Object.fromEntries(entries.toSpliced(at % entries.length, 1)), defs))
        assert.isFalse(fits(made, { ...mapOf(encoded), other: 1 }, defs))
      }),
      { numRuns: 500 }
    )
  })

  it("withoutConstraints leaves everything but bounds, patterns and formats, and is made once", () => {
    fc.assert(
      fc.property(structs, (schema) => {
        const made = strict(schema)
        const bare = StrictSchema.withoutConstraints(made)
        assert.strictEqual(StrictSchema.withoutConstraints(made), bare)
        const without = partsOf(made).map((part) => Object.keys(part).filter((word) => !bounds.includes(word)))
        assert.deepStrictEqual(
          partsOf(bare).map((part) => Object.keys(part)),
          without
        )
      }),
      { numRuns: 300 }
    )
  })
})

describe("StrictSchema.withoutConstraints", () => {
  it("tells words from names", () => {
    const made = strict(
      Schema.Struct({ pattern: Schema.UUID, format: Schema.Array(Schema.UUID).pipe(Schema.maxItems(3)) })
    )
    const uuid = { ...text, description: "a Universally Unique Identifier" }
    assert.deepStrictEqual(StrictSchema.withoutConstraints(made), {
      ...object({
        pattern: { $ref: "#/$defs/UUID" },
        format: { type: "array", description: "an array of at most 3 item(s)", items: { $ref: "#/$defs/UUID" } }
      }),
      $defs: { UUID: uuid }
    })
  })
})
