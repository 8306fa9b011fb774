/**
 * Internal. An output schema as the JSON schema that strict decoding takes: a provider refuses the whole request for one word too many, so what does not fit is an
 * error before the run, with the field and the fix. A word that only narrows a value is dropped where it is not taken: every answer is decoded here anyway.
 *
 * @since 0.1.0
 */
import { Either, JSONSchema, type Schema, SchemaAST } from "effect"
import { InputError } from "./Errors.ts"

/**
 * The JSON schema of an agent's output schema, of its encoded side, in the strict subset
 * (https://platform.openai.com/docs/guides/structured-outputs#supported-schemas), or the first thing that does not fit it.
 *
 * @since 0.1.0
 */
export const fromSchema = <A, I>(name: string, schema: Schema.Schema<A, I>): Either.Either<object, InputError> =>
  Either.mapLeft(Either.flatMap(plainSchema(schema), strictRoot), inputError(name))

/**
 * The same schema without bounds, lengths, patterns and formats, for a server that refuses them. One schema gives one object.
 *
 * @since 0.1.0
 */
export const withoutConstraints = (schema: object): object => {
  const known = unconstrained.get(schema)
  if (known !== undefined) return known
  const bare = bareOf({ ...schema })
  unconstrained.set(schema, bare)
  return bare
}
const unconstrained = new WeakMap<object, object>()

type Fields = Readonly<Record<string, unknown>>
const isFields = (value: unknown): value is Fields =>
  typeof value === "object" && value !== null && !Array.isArray(value)
const listOf = (value: unknown): ReadonlyArray<unknown> => (Array.isArray(value) ? value : [])

/** What does not fit, where, and how to change it. */
interface Problem extends Advice {
  readonly path: string
}
interface Advice {
  readonly what: string
  readonly fix: string
}

const inputError =
  (agent: string) =>
  ({ fix, path, what }: Problem): InputError =>
    path === ""
      ? new InputError({ reason: "bad_job", message: `Agent "${agent}", output: ${what}`, fix })
      : new InputError({
          reason: "bad_job",
          message: `Agent "${agent}", output field ${path}: ${what}`,
          field: path,
          fix
        })

const notAnObject: Problem = { path: "", what: "it is not an object", fix: "wrap it: Schema.Struct({ ... })" }
const optional: Advice = {
  what: "it is optional, and strict output has every field",
  fix: "write Schema.NullOr(...): null then stands for a value that is not there"
}
const record: Advice = {
  what: "it has keys that the schema does not name",
  fix: "write an array of pairs: Schema.Array(Schema.Struct({ key: Schema.String, value: ... }))"
}
const tuple: Advice = {
  what: "it is a tuple, or an array without items",
  fix: "write a Schema.Struct with a field for each place, or Schema.Array(...) where all items are alike"
}
const untyped: Advice = {
  what: "any value fits it",
  fix: "say what it is: Schema.String, a Schema.Struct with fields, or a Schema.Union of what may come"
}
const never: Advice = { what: "no value fits it", fix: "leave the field out, or say what it is" }
const unsupported = (word: string): Advice => ({
  what: `its JSON schema says "${word}", which strict output has not`,
  fix: "write it with Schema.Struct, Schema.Array, Schema.Union and Schema.Literal, and check the rest with Schema.filter"
})

const lost: Advice = {
  what: "its schema is lost on the way: no JSON schema has such a field",
  fix: "give it another name"
}
const unresolved: Advice = {
  what: "it refers to a definition that is not there",
  fix: "write the schema in place of its $ref"
}

/** The words that say what a value is made of in a way that strict mode has not. What stands first is reported first. */
const refused: ReadonlyMap<string, Advice> = new Map([
  ["patternProperties", record],
  ["prefixItems", tuple],
  ["not", never],
  ...[
    ...["if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "propertyNames", "contains"],
    ...["unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef"]
  ].map((word) => [word, unsupported(word)] as const)
])

const isNumber = (value: unknown) => Number.isFinite(value)
const isCount = (value: unknown) => typeof value === "number" && Number.isSafeInteger(value) && value >= 0
const formats = "date-time time date duration email hostname ipv4 ipv6 uuid".split(" ")

/** The words that only narrow a value: of which types, and with what argument strict mode takes them. It takes no pattern that looks around. */
const constraints: ReadonlyMap<
  string,
  { readonly types: ReadonlyArray<string>; readonly takes: (value: unknown) => boolean }
> = new Map([
  ["pattern", { types: ["string"], takes: (value) => typeof value === "string" && !/\(\?<?[=!]|\\[1-9k]/.test(value) }],
  ["format", { types: ["string"], takes: (value) => typeof value === "string" && formats.includes(value) }],
  ["minLength", { types: ["string"], takes: isCount }],
  ["maxLength", { types: ["string"], takes: isCount }],
  [
    "multipleOf",
    { types: ["number", "integer"], takes: (value) => typeof value === "number" && isNumber(value) && value > 0 }
  ],
  ["minimum", { types: ["number", "integer"], takes: isNumber }],
  ["maximum", { types: ["number", "integer"], takes: isNumber }],
  ["exclusiveMinimum", { types: ["number", "integer"], takes: isNumber }],
  ["exclusiveMaximum", { types: ["number", "integer"], takes: isNumber }],
  ["minItems", { types: ["array"], takes: isCount }],
  ["maxItems", { types: ["array"], takes: isCount }]
])

/** The words that say what a value is made of in a way that can be said in strict mode. */
const structure = "type enum const anyOf oneOf allOf $ref items properties required additionalProperties".split(" ")
const scalars = ["string", "number", "integer", "boolean", "null"]
const kindNames = [...scalars, "object", "array"]

const isStructural = (word: string) => structure.includes(word) || refused.has(word)
const isAnnotation = (word: string) => !isStructural(word) && !constraints.has(word)

const plainSchema = <A, I>(schema: Schema.Schema<A, I>): Either.Either<Fields, Problem> =>
  Either.try({
    // JSONSchema.make takes a parseJson at the root for the value inside, but it is a string that is decoded.
    try: (): Fields =>
      SchemaAST.isStringKeyword(SchemaAST.encodedAST(schema.ast)) ? {} : { ...JSONSchema.make(schema) },
    catch: thrown
  })

/** JSONSchema.make throws a text of several lines. */
const thrown = (error: unknown): Problem => {
  const message = error instanceof Error ? error.message : String(error)
  const line = (pattern: RegExp) => pattern.exec(message)?.[1]
  const path = [...(line(/^at path: (.*)$/m) ?? "").matchAll(/\["((?:[^"\\]|\\.)*)"\]|\[\d+\]/g)]
    .map(([part, name]) => name ?? part)
    .reduce(fieldPath, "")
  const kind = line(/^schema \(\w+\): (.*)$/m) ?? line(/^details: (.*)$/m) ?? message.split("\n")[0]
  const fix = message.includes('"identifier" annotation')
    ? 'name the schema that refers to itself: .annotations({ identifier: "..." })'
    : "take a schema that is encoded as JSON (Schema.Date for Schema.DateFromSelf), or say it: .annotations({ jsonSchema: ... })"
  return { path, what: `it has no JSON schema (${kind})`, fix }
}

/** What one walk over a schema carries. The definitions in use get names that need no escapes: not every server reads those. */
interface Walk {
  readonly definitions: Fields
  readonly names: Map<string, string>
  readonly strict: Map<string, Fields>
  readonly problems: Array<Problem>
}

const strictRoot = ({ $defs, ...source }: Fields): Either.Either<Fields, Problem> => {
  const walk: Walk = { definitions: isFields($defs) ? $defs : {}, names: new Map(), strict: new Map(), problems: [] }
  const root = flatten(source, "", walk, () => true)
  if (walk.problems.length === 0 && root.type !== "object") return Either.left(notAnObject)
  const strict = shape(root, "", walk)
  const schema = walk.strict.size === 0 ? strict : { ...strict, $defs: Object.fromEntries(walk.strict) }
  const problem = walk.problems[0] ?? limitProblem(schema)
  return problem === undefined ? Either.right(schema) : Either.left(problem)
}

const report = (walk: Walk, path: string, advice: Advice): Fields => {
  walk.problems.push({ path, ...advice })
  return {}
}

const fieldPath = (path: string, name: string): string =>
  path === "" ? name : name.startsWith("[") ? `${path}${name}` : `${path}.${name}`

const strictNode = (schema: unknown, path: string, walk: Walk): Fields => {
  if (!isFields(schema)) return report(walk, path, schema === false ? never : untyped)
  // A reference stands alone. A field's own words are kept by writing a type that is no object and no choice out.
  const flat = flatten(schema, path, walk, (target, beside) => !beside.every(isDropped) && isSimple(target))
  return typeof flat.$ref === "string" ? reference(flat.$ref, path, walk) : shape(flat, path, walk)
}

const isDropped = (word: string) => isAnnotation(word) && word !== "description"
const isSimple = (schema: Fields) => Object.keys(schema).every((word) => !isStructural(word) || simple.includes(word))
const simple = ["type", "enum", "const", "items"]

type Inlines = (target: Fields, beside: ReadonlyArray<string>) => boolean

/** One schema in place of `allOf`, and of a reference that is to be written out; the words that stand nearer to the field win. */
const flatten = (
  schema: Fields,
  path: string,
  walk: Walk,
  inlines: Inlines,
  seen: ReadonlyArray<string> = []
): Fields => {
  const { $ref, ...beside } = mergeAllOf(schema, path, walk)
  if (typeof $ref !== "string") return beside
  const definition = walk.definitions[definitionName($ref)]
  if (seen.includes($ref) || !isDefined(walk, $ref) || !isFields(definition)) return report(walk, path, unresolved)
  const target = flatten(definition, path, walk, inlines, [...seen, $ref])
  if (inlines(target, Object.keys(beside))) return { ...target, ...beside }
  const narrower = Object.keys(beside).find(isStructural)
  return narrower === undefined ? { $ref } : report(walk, path, unsupported(`$ref" beside "${narrower}`))
}

const definitionName = ($ref: string) => $ref.slice("#/$defs/".length).replaceAll("~1", "/").replaceAll("~0", "~")
const isDefined = (walk: Walk, $ref: string) =>
  $ref.startsWith("#/$defs/") && Object.hasOwn(walk.definitions, definitionName($ref))

const mergeAllOf = (schema: Fields, path: string, walk: Walk): Fields => {
  const { allOf, ...own } = schema
  if (allOf === undefined) return schema
  const members = listOf(allOf).filter(isFields)
  const words = members.flatMap((member) => Object.keys(member))
  if (members.length === 1 && Object.keys(own).every(isAnnotation))
    return mergeAllOf({ ...members[0], ...own }, path, walk)
  if (words.some(isStructural)) report(walk, path, unsupported("allOf"))
  return Object.fromEntries([...members.toReversed(), own].flatMap((part) => Object.entries(part)))
}

const reference = ($ref: string, path: string, walk: Walk): Fields => {
  const old = definitionName($ref)
  const known = walk.names.get(old)
  const name = known ?? freeName(old, [...walk.names.values()])
  if (known === undefined) {
    walk.names.set(old, name)
    walk.strict.set(name, strictNode(walk.definitions[old], path, walk))
  }
  return { $ref: `#/$defs/${name}` }
}

const freeName = (name: string, taken: ReadonlyArray<string>): string => {
  const plain = name.replace(/[^A-Za-z0-9_.-]/g, "_")
  return taken.includes(plain) ? freeName(`${plain}_`, taken) : plain
}

/** A schema that refers to nothing. */
const shape = (flat: Fields, path: string, walk: Walk): Fields => {
  for (const [word, advice] of refused) if (word in flat) return report(walk, path, advice)
  const kinds = kindsOf(flat)
  const choices = listOf(flat.anyOf ?? flat.oneOf)
  if (choices.length > 0 && (("anyOf" in flat && "oneOf" in flat) || kinds.some((kind) => !scalars.includes(kind))))
    return report(walk, path, unsupported("oneOf" in flat ? "oneOf" : "anyOf"))
  if (choices.length === 0 && (kinds.length === 0 || !kinds.every((kind) => kindNames.includes(kind))))
    return report(walk, path, untyped)
  return {
    ...(kinds.length === 0 ? {} : { type: kinds.length === 1 ? kinds[0] : kinds }),
    ...(typeof flat.description === "string" ? { description: flat.description } : {}),
    ...literalWords(flat, path, walk),
    ...constraintWords(flat, kinds),
    ...(kinds.includes("object") ? objectWords(flat, path, walk) : {}),
    ...(kinds.includes("array") ? arrayWords(flat, path, walk) : {}),
    ...(choices.length === 0 ? {} : { anyOf: choices.map((choice) => strictNode(choice, path, walk)) })
  }
}

/** The types that a schema allows; where it does not say so, by its other words. */
const kindsOf = (flat: Fields): ReadonlyArray<string> => {
  if ("type" in flat) return [flat.type].flat().map(String)
  if ("properties" in flat) return ["object"]
  if ("items" in flat) return ["array"]
  return [...new Set(literalsOf(flat).map((value) => (value === null ? "null" : typeof value)))]
}

const literalsOf = (flat: Fields): ReadonlyArray<unknown> => [
  ...listOf(flat.enum),
  ...("const" in flat ? [flat.const] : [])
]

const literalWords = (flat: Fields, path: string, walk: Walk): Fields => {
  const odd = literalsOf(flat).some(
    (value) => !(value === null || typeof value === "string" || typeof value === "boolean" || isNumber(value))
  )
  if (odd)
    return report(walk, path, {
      what: "one of its literals has no JSON form",
      fix: "take strings, numbers, booleans and null"
    })
  return { ...("enum" in flat ? { enum: flat.enum } : {}), ...("const" in flat ? { const: flat.const } : {}) }
}

const constraintWords = (flat: Fields, kinds: ReadonlyArray<string>): Fields =>
  Object.fromEntries(
    [...constraints].flatMap(([word, { takes, types }]) =>
      types.some((type) => kinds.includes(type)) && takes(flat[word]) ? [[word, flat[word]]] : []
    )
  )

const objectWords = (flat: Fields, path: string, walk: Walk): Fields => {
  const properties = Object.entries(isFields(flat.properties) ? flat.properties : {})
  const names = properties.map(([name]) => name)
  const required = listOf(flat.required)
  if (isFields(flat.additionalProperties)) return report(walk, path, record)
  if (names.length === 0 && flat.additionalProperties !== false) return report(walk, path, untyped)
  const unknown = required.find((name) => typeof name !== "string" || !names.includes(name))
  if (unknown !== undefined) return report(walk, fieldPath(path, String(unknown)), lost)
  const strict = properties.map(([name, schema]) => {
    const at = fieldPath(path, name)
    if (!required.includes(name)) report(walk, at, optional)
    return [name, strictNode(schema, at, walk)]
  })
  return { properties: Object.fromEntries(strict), required: names, additionalProperties: false }
}

const arrayWords = ({ items }: Fields, path: string, walk: Walk): Fields =>
  items === undefined || items === false || Array.isArray(items)
    ? report(walk, path, tuple)
    : { items: strictNode(items, `${path}[]`, walk) }

/** A schema inside a strict one, and how many objects deep it is. */
interface Part {
  readonly path: string
  readonly schema: Fields
  readonly level: number
}

const partsOf = (part: Part): ReadonlyArray<Part> => [part, ...childrenOf(part).flatMap(partsOf)]

const childrenOf = ({ level, path, schema }: Part): ReadonlyArray<Part> => {
  const named = (word: string) => Object.entries(isFields(schema[word]) ? schema[word] : {})
  const below = schema.properties === undefined ? level : level + 1
  const child = (path: string, schema: unknown, level: number) => (isFields(schema) ? [{ path, schema, level }] : [])
  return [
    ...named("properties").flatMap(([name, value]) => child(fieldPath(path, name), value, below)),
    ...child(`${path}[]`, schema.items, level),
    ...listOf(schema.anyOf).flatMap((choice) => child(path, choice, level)),
    ...named("$defs").flatMap(([name, value]) => child(`$defs.${name}`, value, 0))
  ]
}

const limits = { fields: 5000, levels: 10, characters: 120_000, literals: 1000, shortEnum: 250, enumCharacters: 15_000 }
const less = "ask for less in one answer: another agent can ask for the rest"
const fewer = "take Schema.String and check it with Schema.filter, or offer fewer literals"

const limitProblem = (root: Fields): Problem | undefined => {
  const parts = partsOf({ path: "", schema: root, level: 0 })
  const total = (count: (schema: Fields) => number) => parts.reduce((sum, { schema }) => sum + count(schema), 0)
  const over = (path: string, count: number, what: string, limit: number, fix: string): ReadonlyArray<Problem> =>
    count > limit ? [{ path, what: `it has ${count} ${what}; the limit is ${limit}`, fix }] : []
  const [problem] = [
    ...parts.flatMap(({ level, path, schema }) =>
      over(
        path,
        schema.properties === undefined ? 0 : level + 1,
        "levels of objects",
        limits.levels,
        "flatten it: name a field address_city"
      )
    ),
    ...over(
      "",
      total((schema) => namesIn(schema, "properties").length),
      "fields in all",
      limits.fields,
      less
    ),
    ...parts.flatMap(({ path, schema }) => {
      const { length } = listOf(schema.enum)
      const characters = length > limits.shortEnum ? charactersOf(listOf(schema.enum)) : 0
      return over(path, characters, `characters in the ${length} strings of an enum`, limits.enumCharacters, fewer)
    }),
    ...over(
      "",
      total((schema) => listOf(schema.enum).length),
      "enum values in all",
      limits.literals,
      fewer
    ),
    ...over("", total(charactersIn), "characters in all its names and literals", limits.characters, less)
  ]
  return problem
}

const namesIn = (schema: Fields, word: string) => Object.keys(isFields(schema[word]) ? schema[word] : {})
const charactersOf = (values: ReadonlyArray<unknown>): number =>
  values.reduce<number>((sum, value) => sum + (typeof value === "string" ? value.length : 0), 0)
const charactersIn = (schema: Fields): number =>
  charactersOf([...namesIn(schema, "properties"), ...namesIn(schema, "$defs"), ...literalsOf(schema)])

const bareOf = (schema: Fields): Fields =>
  Object.fromEntries(
    Object.entries(schema).flatMap(([word, value]) => (constraints.has(word) ? [] : [[word, bareWord(word, value)]]))
  )

const bareNode = (schema: unknown): unknown => (isFields(schema) ? bareOf(schema) : schema)

/** Below `properties` and `$defs` stand names, not words. */
const bareWord = (word: string, value: unknown): unknown => {
  if (word === "properties" || word === "$defs")
    return Object.fromEntries(
      Object.entries(isFields(value) ? value : {}).map(([name, schema]) => [name, bareNode(schema)])
    )
  return word === "anyOf" ? listOf(value).map(bareNode) : word === "items" ? bareNode(value) : value
}
