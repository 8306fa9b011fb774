/**
 * Keys that are the same in every process and on every machine: canonical JSON, a stable hash, and the idempotency key of a row.
 *
 * The canonical form is written here and not taken from a library: the walk that must refuse what has no canonical form, and tag what JSON
 * would collapse (a Map, a Date, a bigint), already visits each value, and RFC 8785 libraries do neither.
 *
 * @example
 * import { Either } from "effect"
 * import { Identity } from "longhaul"
 * Either.getOrThrow(Identity.idempotencyKey("vendors", "enrich", 42, "2026-07-03")) // "idem:" and 24 hex digits
 *
 * @since 0.1.0
 */
import { hash } from "node:crypto"
import { Either } from "effect"
import { UnsupportedValue } from "./Errors.ts"

/**
 * JSON with sorted keys (by UTF-16 code unit) and no spaces. A Date, Map, Set, bigint and Uint8Array are tagged (`{"$date":…}`), a plain key that
 * starts with `$` is escaped with a second one, so no two different values share a form. A property that is `undefined` is absent; `-0` is `0`.
 * A class instance is taken by its own `toJSON`. Anything else without a canonical form is an {@link UnsupportedValue}.
 *
 * @since 0.1.0
 */
export const canonicalJson = (value: unknown): Either.Either<string, UnsupportedValue> =>
  Either.try({
    try: () => write(value, "$", new Set()),
    catch: (error) =>
      error instanceof UnsupportedValue ? error : new UnsupportedValue({ path: "$", message: String(error) })
  })

/**
 * The first `length` hex digits (default 64, all) of the SHA-256 of the canonical JSON.
 *
 * @since 0.1.0
 */
export const stableHash = (value: unknown, length = 64): Either.Either<string, UnsupportedValue> =>
  Either.map(canonicalJson(value), (json) => sha256(json).slice(0, length))

/**
 * `idem:` and 24 hex digits of the stable hash of the parts, in order. Parts keep their boundaries: `("a", "bc")` differs from `("ab", "c")`.
 *
 * @since 0.1.0
 */
export const idempotencyKey = (...parts: ReadonlyArray<unknown>): Either.Either<string, UnsupportedValue> =>
  Either.map(stableHash(parts, 24), (hash) => `idem:${hash}`)

/**
 * The SHA-256 of a text, in hex.
 *
 * @since 0.1.0
 */
export const sha256 = (text: string): string => hash("sha256", text, "hex")

const byCodeUnit = (a: string, b: string) => (a < b ? -1 : a > b ? 1 : 0)
const refuse = (path: string, message: string): never => {
  throw new UnsupportedValue({ path, message: `${path}: ${message}` })
}

const write = (value: unknown, path: string, above: Set<object>): string => {
  switch (typeof value) {
    case "string":
    case "boolean":
      return JSON.stringify(value)
    case "number":
      return Number.isFinite(value) ? JSON.stringify(value) : refuse(path, `${value} has no JSON form`)
    case "bigint":
      return `{"$bigint":"${value}"}`
    case "object":
      return value === null ? "null" : writeObject(value, path, above)
    default:
      return refuse(path, `a ${typeof value} has no canonical form`)
  }
}

const writeObject = (value: object, path: string, above: Set<object>): string => {
  if (above.has(value)) return refuse(path, "a cycle has no canonical form")
  above.add(value)
  const json = writeNew(value, path, above)
  above.delete(value)
  return json
}

const writeNew = (value: object, path: string, above: Set<object>): string => {
  if (Array.isArray(value)) return `[${Array.from(value, (item, i) => write(item, `${path}[${i}]`, above)).join(",")}]`
  if (value instanceof Date) {
    return Number.isNaN(value.getTime()) ? refuse(path, "an invalid Date") : `{"$date":"${value.toISOString()}"}`
  }
  if (value instanceof Uint8Array) return `{"$bytes":"${Buffer.from(value).toString("hex")}"}`
  if (value instanceof Set) {
    const items = Array.from(value, (item, i) => write(item, `${path}.<${i}>`, above))
    return `{"$set":[${items.sort(byCodeUnit).join(",")}]}`
  }
  if (value instanceof Map) {
    const entries = Array.from(
      value,
      ([key, item], i) => `[${write(key, `${path}.<key ${i}>`, above)},${write(item, `${path}.<${i}>`, above)}]`
    )
    return `{"$map":[${entries.sort(byCodeUnit).join(",")}]}`
  }
  const prototype = Object.getPrototypeOf(value)
  if (prototype === Object.prototype || prototype === null) return writePlain(Object.entries(value), path, above)
  if ("toJSON" in value && typeof value.toJSON === "function") return write(value.toJSON(), path, above)
  return refuse(
    path,
    `an instance of ${prototype.constructor?.name ?? "a class"} has no canonical form: pass plain data`
  )
}

const writePlain = (entries: ReadonlyArray<[string, unknown]>, path: string, above: Set<object>): string => {
  const parts: Array<string> = []
  for (const [key, item] of [...entries].sort(([a], [b]) => byCodeUnit(a, b))) {
    if (item === undefined) continue
    const name = key.startsWith("$") ? `$${key}` : key
    parts.push(`${JSON.stringify(name)}:${write(item, `${path}.${key}`, above)}`)
  }
  return `{${parts.join(",")}}`
}
