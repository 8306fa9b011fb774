/** Rows of every kind that has a canonical form, drawn from a seed, and the same rows with the properties, entries and items of everything in another order. */
import { inspect } from "node:util"
import { Either } from "effect"
import fc from "fast-check"
import * as Identity from "../../src/services/Identity.ts"

/** The sequence by Park and Miller: the order must differ between processes, and be the same each time. */
const diceOf = (seed: number) => {
  let state = seed
  return () => {
    state = (state * 48_271) % 2_147_483_647
    return state
  }
}

const text = fc.string({ unit: fc.constantFrom("a", "B", "0", "$", "é", "ß", "\u0000", "\u2028", "😀", "\ud800", '"') })
const leaf: fc.Arbitrary<unknown> = fc.oneof(
  text,
  fc.integer(),
  fc.constantFrom(0, -0, 1e21, 5e-324, Number.MAX_SAFE_INTEGER, true, false, null, "", "null", "true", "0"),
  fc.double({ noNaN: true, noDefaultInfinity: true }),
  fc.bigInt(),
  fc.date({ noInvalidDate: true }),
  fc.uint8Array({ maxLength: 4 })
)
const value = fc.letrec<{ value: unknown }>((tie) => ({
  value: fc.oneof(
    { maxDepth: 3, depthSize: "small" },
    { weight: 5, arbitrary: leaf },
    { weight: 1, arbitrary: fc.array(tie("value"), { maxLength: 3 }) },
    { weight: 2, arbitrary: fc.dictionary(text, tie("value"), { maxKeys: 4, noNullPrototype: true }) },
    { weight: 1, arbitrary: fc.array(fc.tuple(leaf, tie("value")), { maxLength: 3 }).map((all) => new Map(all)) },
    { weight: 1, arbitrary: fc.array(leaf, { maxLength: 3 }).map((all) => new Set(all)) }
  )
})).value
const row = fc.dictionary(text, value, { minKeys: 1, maxKeys: 6, noNullPrototype: true })

export const rowsOf = (numRuns: number): ReadonlyArray<unknown> => fc.sample(row, { numRuns, seed: 20_260_703 })

const inOrder = <A>(items: Iterable<A>, dice: () => number): Array<A> =>
  Array.from(items, (item) => ({ item, place: dice() }))
    .sort((a, b) => a.place - b.place)
    .map(({ item }) => item)

/** Equal to the value, with everything that has no order in another one. */
export const shuffled = (from: unknown, dice: () => number): unknown => {
  if (Array.isArray(from)) return from.map((item) => shuffled(item, dice))
  if (from instanceof Map) {
    return new Map(inOrder(from, dice).map(([key, item]) => [shuffled(key, dice), shuffled(item, dice)]))
  }
  if (from instanceof Set) return new Set(inOrder(from, dice).map((item) => shuffled(item, dice)))
  if (from instanceof Date) return new Date(from)
  if (from instanceof Uint8Array) return new Uint8Array(from)
  if (typeof from !== "object" || from === null) return from
  const out: Record<string, unknown> = {}
  for (const [key, item] of inOrder(Object.entries(from), dice)) {
    Object.defineProperty(out, key, {
      value: shuffled(item, dice),
      enumerable: true,
      configurable: true,
      writable: true
    })
  }
  return out
}

/** The hashes of the rows, each in an order of this seed. */
export const hashesOf = (numRuns: number, seed: number): ReadonlyArray<string> => {
  const dice = diceOf(seed)
  return rowsOf(numRuns).map((one) => Either.getOrThrow(Identity.stableHash(shuffled(one, dice))))
}

/** A text of the platform's own that differs whenever two rows do: the witness against which hashes are counted. JSON has no `-0`, and the canonical form neither. */
export const witnessOf = (one: unknown): string =>
  inspect(one, {
    sorted: true,
    depth: null,
    maxArrayLength: null,
    maxStringLength: null,
    breakLength: Number.POSITIVE_INFINITY,
    compact: true
  }).replaceAll(/(?<=[ [{(:]|^)-0(?=[ ,\]})]|$)/g, "0")
