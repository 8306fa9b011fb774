/** Fuzzing by fast-check, which prints the seed of a failure. `LONGHAUL_FUZZ=10` tries ten times as many cases. */
import fc from "fast-check"

const factor = Number(process.env.LONGHAUL_FUZZ ?? 1)
export const runs = (cases: number): { readonly numRuns: number } => ({ numRuns: Math.ceil(cases * factor) })

const PART = 1_000
/** A property over so many cases, in parts: between them the process hears of other things, as the test runner wants. */
export const fuzz = async <A>(property: fc.IProperty<A>, cases: number): Promise<void> => {
  for (let left = runs(cases).numRuns; left > 0; left -= PART) {
    fc.assert(property, { numRuns: Math.min(PART, left) })
    await new Promise((resolve) => setImmediate(resolve))
  }
}
