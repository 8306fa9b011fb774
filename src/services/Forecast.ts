/**
 * What a run will cost, from what a sample of its rows did, as an interval; and how long it will take. Pure.
 *
 * The statistics. The rows are post-stratified by input length (Sample.strata), which is known for all. What is not measured is predicted by the mean of its stratum, with
 * the variance of a prediction for a finite population (R. M. Royall, Biometrika 57, 1970; the same as the stratified estimator with its finite-population correction in
 * W. G. Cochran, Sampling Techniques, 1977, chapters 5 and 5A): what is measured is certain, so a sample of all rows is exact. The longest and the shortest row, if
 * measured, stand for themselves only. Costs are skewed to the right and never negative, so the interval is one of the logarithm of the total (as in
 * K. P. Burnham et al., Wildlife Monographs 112, 1987), with Student's t. None of this can see what the sample has not met: rows so dear and so rare that no one of n was
 * drawn may still be a share of 1 - 0.1^(1/n) of all rows (J. A. Hanley and A. Lippman-Hand, JAMA 249, 1983, "If nothing goes wrong, is everything all right?", at 90 %).
 * The upper end has room for that share of rows at ten times the mean, added in quadrature.
 *
 * `npm run bench:forecast` measures how often the interval has the true total: it is to be at least 90 % for each of its distributions, and is about 95 %.
 *
 * @since 0.1.0
 */
import { Option } from "effect"
import * as Sample from "./Sample.ts"
import { Usd } from "./Usd.ts"

/**
 * A row, by its index in the list of lengths, and what it took: nano-dollars, milliseconds, tokens. What it took in all, so retries and repairs are in it.
 *
 * @since 0.1.0
 */
export interface Measured {
  readonly row: number
  readonly amount: number
}

/**
 * `lengths`: of the input of each row, in characters or tokens. `sample`: rows that were chosen by their length or at random, and ended. `paid`: other rows that ended:
 * they count as they are, and nothing is concluded from them. `most`: the most that one row can take, where that is known.
 *
 * @since 0.1.0
 */
export interface Input {
  readonly lengths: ReadonlyArray<number>
  readonly sample: ReadonlyArray<Measured>
  readonly paid?: ReadonlyArray<Measured> | undefined
  readonly most?: number | undefined
}

/** All finite, none negative, `low <= expected <= high`. @since 0.1.0 */
export interface Interval<N extends number = number> {
  readonly low: N
  readonly expected: N
  readonly high: N
}

/** `known`: what the rows that ended took. `left`: what the others will take. `total`: both. @since 0.1.0 */
export interface Forecast<N extends number = number> {
  readonly rowsLeft: number
  readonly known: N
  readonly left: Interval<N>
  readonly total: Interval<N>
}

/** Nominal level of the interval, two-sided: a little above what it is to reach, as t is too short for skewed costs. */
const LEVEL_Z = 2.17
/** How much dearer than the mean rows may be that the sample did not meet, and how surely it would have met them, were they more. */
const UNSEEN_TIMES = 10
const UNSEEN_MISSED = 0.1
/** Measured rows that a stratum needs for a variance of its own; with fewer it joins its neighbour. */
const LEAST = 4

/**
 * The sum over all rows. None: rows are left, and there is no sample to conclude from.
 *
 * @since 0.1.0
 */
export const total = (input: Input): Option.Option<Forecast> => {
  const { lengths, most } = input
  const sample = amountsOf(lengths, input.sample)
  const paid = amountsOf(lengths, input.paid ?? [])
  for (const row of sample.keys()) paid.delete(row)
  const known = sum(sample.values()) + sum(paid.values())
  const rowsLeft = lengths.length - sample.size - paid.size
  if (rowsLeft === 0) return Option.some(forecastOf(0, known, exactly(0)))
  if (sample.size === 0) return Option.none()
  const groups = groupsOf(lengths, sample, paid)
  return Option.some(forecastOf(rowsLeft, known, predicted(groups, rowsLeft, sample.size, most)))
}

/**
 * The cost of a run in whole nano-dollars, the ends rounded outwards.
 *
 * For example:
 * const sample = [0, 1, 2, 3].map((row) => ({ row, amount: 1_000_000 + 1_000 * row }))
 * const all = cost({ lengths: [10, 20, 30, 40, 25, 25], sample }) // what rows 4 and 5 will cost too
 *
 * @since 0.1.0
 */
export const cost = (input: Input): Option.Option<Forecast<Usd>> =>
  Option.map(total(input), ({ known, left, rowsLeft, total }) => ({
    rowsLeft,
    known: usd(known, Math.round),
    left: dollars(left),
    total: dollars(total)
  }))

const usd = (nano: number, rounded: (n: number) => number): Usd =>
  Usd.nano(Math.min(Number.MAX_SAFE_INTEGER, Math.max(0, rounded(nano))))
const dollars = ({ expected, high, low }: Interval): Interval<Usd> => ({
  low: usd(low, Math.floor),
  expected: usd(expected, Math.round),
  high: usd(high, Math.ceil)
})

/** What does not name a row, or is no amount, is left out; of two amounts of a row the first counts. */
const amountsOf = (lengths: ReadonlyArray<number>, measured: ReadonlyArray<Measured>): Map<number, number> => {
  const amounts = new Map<number, number>()
  for (const { amount, row } of measured) {
    const isRow = Number.isInteger(row) && row >= 0 && row < lengths.length
    if (isRow && Number.isFinite(amount) && amount >= 0 && !amounts.has(row)) amounts.set(row, amount)
  }
  return amounts
}

const sum = (amounts: Iterable<number>): number => {
  let all = 0
  for (const amount of amounts) all += amount
  return all
}

const exactly = (n: number): Interval => ({ low: n, expected: n, high: n })

const forecastOf = (rowsLeft: number, known: number, left: Interval): Forecast => ({
  rowsLeft,
  known,
  left,
  total: { low: known + left.low, expected: known + left.expected, high: known + left.high }
})

/** Rows of like length: what was measured among them, and how many are left. */
interface Group {
  readonly amounts: Array<number>
  left: number
}

const groupsOf = (
  lengths: ReadonlyArray<number>,
  sample: ReadonlyMap<number, number>,
  paid: ReadonlyMap<number, number>
): ReadonlyArray<Group> => {
  const { bounds, order } = Sample.strata(lengths, sample.size)
  const groups: Array<Group> = []
  let open: Group = { amounts: [], left: 0 }
  for (let i = 0; i + 1 < bounds.length; i++) {
    const [from = 0, to = 0] = [bounds[i], bounds[i + 1]]
    for (let place = from; place < to; place++) {
      const row = order[place] ?? 0
      const amount = sample.get(row)
      const isEnd = place === 0 || place === order.length - 1
      if (amount === undefined) open.left += paid.has(row) ? 0 : 1
      else if (!isEnd) open.amounts.push(amount)
    }
    if (open.amounts.length < LEAST) continue
    groups.push(open)
    open = { amounts: [], left: 0 }
  }
  const last = groups.pop()
  const rest: Group =
    last === undefined ? open : { amounts: [...last.amounts, ...open.amounts], left: last.left + open.left }
  // A sample of two or three rows: then the ends have to speak for the others.
  if (last === undefined && rest.amounts.length < 2) return [{ amounts: [...sample.values()], left: rest.left }]
  return [...groups, rest]
}

const predicted = (
  groups: ReadonlyArray<Group>,
  rowsLeft: number,
  sampled: number,
  most: number | undefined
): Interval => {
  let expected = 0
  let variance = 0
  let freedom = 0
  for (const { amounts, left } of groups) {
    const n = amounts.length
    const mean = sum(amounts) / n
    const square = sum(amounts.map((amount) => (amount - mean) ** 2))
    // One row says nothing of how rows differ: taken as exponential.
    const spread = n > 1 ? square / (n - 1) : mean ** 2
    expected += left * mean
    variance += spread * (left ** 2 / n + left)
    freedom += Math.max(n > 1 ? 0 : 1, n - 1)
  }
  const unseen = 1 - UNSEEN_MISSED ** (1 / sampled)
  const mean = expected / rowsLeft
  const dearest = expected === 0 ? (most ?? 0) : Math.min(UNSEEN_TIMES * mean, most ?? Number.POSITIVE_INFINITY)
  const room = rowsLeft * unseen * Math.max(0, dearest - mean)
  // Above e^20 there is no bound worth the name; it keeps the figure finite.
  const width = expected === 0 ? 0 : Math.min(20, (quantile(freedom) * Math.sqrt(variance)) / expected)
  const ceiling = Math.max(expected, rowsLeft * (most ?? Number.POSITIVE_INFINITY))
  return {
    low: expected * Math.exp(-width),
    expected,
    high: Math.min(ceiling, expected + Math.hypot(expected * Math.expm1(width), room))
  }
}

/** Student's t by the expansion of Cornish and Fisher (Abramowitz and Stegun, 26.7.5), cut off below three degrees of freedom, where it is too short. */
const quantile = (freedom: number): number => {
  const z = LEVEL_Z
  const v = Math.max(3, freedom)
  return z + (z ** 3 + z) / (4 * v) + (5 * z ** 5 + 16 * z ** 3 + 3 * z) / (96 * v ** 2)
}

/** What a row took besides money. `latencyMs`: of its calls and the waits between them. @since 0.1.0 */
export interface Pace {
  readonly row: number
  readonly latencyMs: number
  readonly calls: number
  readonly tokens: number
}

/**
 * `paid`: rows that ended and are not in the sample. `ahead`: the sample's rows are still to be run, and their figures are supposed. The limits are those of the run or the provider, a minute.
 *
 * @since 0.1.0
 */
export interface TimeInput {
  readonly lengths: ReadonlyArray<number>
  readonly sample: ReadonlyArray<Pace>
  readonly paid?: ReadonlyArray<number> | undefined
  readonly ahead?: boolean | undefined
  readonly concurrency: number
  readonly requestsPerMinute?: number | undefined
  readonly tokensPerMinute?: number | undefined
}

/**
 * How long the rows that are left will take, in milliseconds: the longest of the calls' own time shared by the workers, the calls by their limit a minute and the tokens by
 * theirs. The upper end has the longest row besides, which may come last (R. L. Graham, Bell System Technical Journal 45, 1966: no order of rows takes longer than the
 * shared time and one row). Outages and the time in which the operator sleeps are not in it. None: there is no sample.
 *
 * @since 0.1.0
 */
export const time = (input: TimeInput): Option.Option<Interval> => {
  const { lengths, sample } = input
  const paid = (input.paid ?? []).map((row) => ({ row, amount: 0 }))
  const leftOf = (amount: (pace: Pace) => number) =>
    total({ lengths, paid, sample: sample.map((pace) => ({ row: pace.row, amount: amount(pace) })) })
  return Option.map(
    Option.all([leftOf((pace) => pace.latencyMs), leftOf((pace) => pace.calls), leftOf((pace) => pace.tokens)]),
    ([work, calls, tokens]) => {
      const workers = Math.max(1, Math.floor(Number.isFinite(input.concurrency) ? input.concurrency : 1))
      const part = input.ahead === true ? "total" : "left"
      const rows = work.rowsLeft + (input.ahead === true ? sample.length : 0)
      const at = (end: keyof Interval) =>
        Math.max(
          work[part][end] / Math.min(workers, Math.max(1, rows)),
          minutes(calls[part][end], input.requestsPerMinute),
          minutes(tokens[part][end], input.tokensPerMinute)
        )
      const longest = Math.max(0, ...sample.map(({ latencyMs }) => (Number.isFinite(latencyMs) ? latencyMs : 0)))
      const last = rows === 0 ? 0 : longest
      return { low: at("low"), expected: at("expected"), high: at("high") + last }
    }
  )
}

/**
 * Milliseconds in which so many begin under a limit a minute; 0 without one.
 *
 * @since 0.1.0
 */
export const minutes = (n: number, perMinute: number | undefined): number =>
  perMinute === undefined || !(perMinute > 0) ? 0 : (n / perMinute) * 60_000
