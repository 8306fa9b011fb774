import { assert } from "@effect/vitest"

/** The named parts of a value are as expected; branded numbers compare with plain ones. */
export const assertIncludes = <A extends object>(actual: A, expected: { readonly [K in keyof A]?: unknown }): void => {
  const parts = Object.keys(expected).map((key): [string, unknown] => [key, Reflect.get(actual, key)])
  assert.deepStrictEqual(Object.fromEntries(parts), { ...expected })
}
