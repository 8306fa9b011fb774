/**
 * Dollars as an integer of nano-dollars (1 USD = 1,000,000,000): a safe integer, so up to $9.0 million, exact under addition.
 *
 * @since 0.1.0
 */
import { Brand, Schema } from "effect"

/** @since 0.1.0 */
export type Usd = number & Brand.Brand<"Usd">

const NANO = 1_000_000_000
const brand = Brand.refined<Usd>(
  (n) => Number.isSafeInteger(n) && n >= 0,
  (n) => Brand.error(`${n} is not an amount of nano-dollars: a safe integer >= 0 is expected`)
)

const schema = Schema.Number.pipe(Schema.fromBrand(brand))

/**
 * An amount from nano-dollars. Throws on a fraction, a negative or an unsafe integer: that is a bug, not an input.
 *
 * @since 0.1.0
 */
const nano = (n: number): Usd => brand(n)

/**
 * A cap or budget from dollars, rounded down to a whole nano-dollar, so that a cap is never widened. `undefined` if it is not a finite amount >= 0.
 *
 * @since 0.1.0
 */
const fromDollars = (dollars: number): Usd | undefined => {
  const n = Math.floor(Number((dollars * NANO).toPrecision(15)))
  return Number.isFinite(dollars) && dollars >= 0 && Number.isSafeInteger(n) ? brand(n) : undefined
}

/**
 * Dollars as a float, for output only: never compute with it.
 *
 * @since 0.1.0
 */
const toDollars = (usd: Usd): number => usd / NANO

/**
 * Exact sum.
 *
 * @since 0.1.0
 */
const add = (a: Usd, b: Usd): Usd => brand(a + b)

/**
 * `$12.30`; below a dollar as many digits as the amount has, at least two: `$0.000189`.
 *
 * @since 0.1.0
 */
const format = (usd: Usd): string => {
  if (usd >= NANO)
    return `$${(Math.floor(usd / 10_000_000) / 100).toLocaleString("en-US", { minimumFractionDigits: 2 })}`
  const digits = String(usd).padStart(9, "0").replace(/0+$/, "")
  return `$0.${digits.padEnd(2, "0")}`
}

/**
 * The schema and the functions on nano-dollars.
 *
 * @since 0.1.0
 */
export const Usd = Object.assign(schema, { nano, fromDollars, toDollars, add, format, zero: brand(0) })
