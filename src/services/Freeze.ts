/**
 * Freezing, to the bottom: `Object.isFrozen(deepFreeze({ models: ["small"] }).models)`. Effect and Schema type values as readonly but freeze nothing, so a value
 * that is stored is frozen here.
 *
 * @since 0.1.0
 */
import { Schema } from "effect"

/**
 * Freezes plain data, in place, and returns it: arrays and plain objects, and what they hold. Anything else (a Map, a Set, a Date, a class
 * instance) is left as it is: freezing does not stop a Map, and another's instance is not ours to lock.
 *
 * @since 0.1.0
 */
export const deepFreeze = <A>(value: A): A => {
  freezeAll(value, new Set())
  return value
}

/**
 * The same schema, whose decoded values are deeply frozen. It freezes what the schema built; a part the schema passes through by reference
 * (`Schema.Unknown`) is frozen where it stands.
 *
 * @since 0.1.0
 */
export const frozen = <A, I, R>(schema: Schema.Schema<A, I, R>): Schema.Schema<A, I, R> =>
  // the target only tests the value: a target that parsed it would build a new, unfrozen one
  Schema.transform(schema, Schema.declare(Schema.is(Schema.typeSchema(schema))), {
    strict: true,
    decode: deepFreeze,
    encode: (value) => value
  })

const isPlain = (value: object) => {
  const prototype = Object.getPrototypeOf(value)
  return Array.isArray(value) || prototype === Object.prototype || prototype === null
}

// walks also what is frozen already: a frozen object may hold one that is not
const freezeAll = (value: unknown, seen: Set<object>): void => {
  if (typeof value !== "object" || value === null || seen.has(value) || !isPlain(value)) return
  seen.add(Object.freeze(value))
  for (const item of Object.values(value)) freezeAll(item, seen)
}
