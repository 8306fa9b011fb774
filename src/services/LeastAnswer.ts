/**
 * The shortest JSON that fits a JSON schema, or nearly: what a typed answer has at the least, for a forecast before any call. Internal to Plan.
 *
 * @since 0.1.0
 */

type Fields = Readonly<Record<string, unknown>>
const isFields = (value: unknown): value is Fields =>
  typeof value === "object" && value !== null && !Array.isArray(value)
const listOf = (value: unknown): ReadonlyArray<unknown> => (Array.isArray(value) ? value : [])
const countOf = (value: unknown): number =>
  typeof value === "number" && Number.isFinite(value) ? Math.min(MOST, Math.max(0, Math.floor(value))) : 0

/** A schema that asks for more items, letters or levels is taken to ask for so many. */
const MOST = 1_000
const DEEPEST = 20

/**
 * The text of the shortest answer. Patterns and formats are not looked at: a text has the least length that the schema says, or none.
 *
 * @since 0.1.0
 */
export const text = (schema: object): string => {
  const definitions = isFields(schema) && isFields(schema.$defs) ? schema.$defs : {}
  return JSON.stringify(leastOf(schema, definitions, 0))
}

const leastOf = (schema: unknown, definitions: Fields, depth: number): unknown => {
  if (!isFields(schema) || depth > DEEPEST) return null
  const least = (part: unknown) => leastOf(part, definitions, depth + 1)
  if (typeof schema.$ref === "string") return least(definitions[schema.$ref.replace(/^#\/\$defs\//, "")])
  if ("const" in schema) return schema.const
  const choices = [...listOf(schema.anyOf), ...listOf(schema.oneOf)]
  if (Array.isArray(schema.enum)) return shortest(schema.enum)
  if (choices.length > 0) return shortest(choices.map(least))
  const [all] = listOf(schema.allOf)
  const kinds = [schema.type].flat()
  if (kinds.includes("null")) return null
  if (kinds.includes("object")) return objectOf(schema, least)
  if (kinds.includes("array")) return Array.from({ length: countOf(schema.minItems) }, () => least(schema.items))
  if (kinds.includes("string")) return "x".repeat(countOf(schema.minLength))
  if (kinds.includes("boolean")) return true
  if (kinds.includes("number") || kinds.includes("integer")) return numberOf(schema)
  return all === undefined ? null : least(all)
}

const objectOf = ({ properties, required }: Fields, least: (part: unknown) => unknown): unknown => {
  const named = isFields(properties) ? properties : {}
  return Object.fromEntries(listOf(required).map((name) => [String(name), least(named[String(name)])]))
}

const numberOf = ({ exclusiveMinimum, minimum }: Fields): number => {
  if (typeof minimum === "number" && minimum > 0) return minimum
  return typeof exclusiveMinimum === "number" && exclusiveMinimum >= 0 ? Math.floor(exclusiveMinimum) + 1 : 0
}

const shortest = (values: ReadonlyArray<unknown>): unknown =>
  values.reduce((best, value) => (lengthOf(value) < lengthOf(best) ? value : best), values[0])
const lengthOf = (value: unknown): number => (JSON.stringify(value) ?? "").length
