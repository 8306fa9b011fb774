/**
 * Two control charts of constant size that tell when a stream of rows is no longer what it was. Internal to Detectors.
 *
 * Both are CUSUMs (E. S. Page, Biometrika 41, 1954): a sum of steps that is never below 0 and raises an alarm at a height `h`. Each step `x` has E[exp x] <= 1 while
 * nothing changed, so that a chart raises a false alarm within T rows with probability T * exp(-h) at most (G. Lorden, Annals of Mathematical Statistics 42, 1971;
 * in this form by Doob's inequality for the Shiryaev-Roberts sum, which is above exp of the CUSUM). Many charts share an allowance by Bonferroni: see `height`.
 *
 * @since 0.1.0
 */

/**
 * Where a chart raises an alarm, so that all `charts` together raise a false one within `rows` rows with probability `falseAlarm` at most.
 *
 * @since 0.1.0
 */
export const height = (charts: number, rows: number, falseAlarm: number): number =>
  Math.log((Math.max(1, charts) * Math.max(1, rows)) / falseAlarm)

/**
 * Whether a share of rows has grown. `hits` of `n`: before; `newHits` of `newN`: since `since`, when the sum last left 0, the likeliest time of a change.
 *
 * @since 0.1.0
 */
export interface Share {
  readonly hits: number
  readonly n: number
  readonly newHits: number
  readonly newN: number
  readonly since: number
  readonly sum: number
}

/** A share of `n` rows, before anything is watched. @since 0.1.0 */
export const share = (hits: number, n: number): Share => ({ hits, n, newHits: 0, newN: 0, since: 0, sum: 0 })

/** Odds that have grown so many times are worth a stop; and a share below this one is not. */
const ODDS = 4
const LEAST_SHARE = 0.01
/** How sure the share before must be below what it is taken for, in standard errors: it was itself only measured. */
const SURE = 3

/**
 * The Bernoulli CUSUM (M. R. Reynolds and Z. G. Stoumbos, Journal of Quality Technology 31, 1999) between the share as it was, at the upper end of its Wilson interval, and
 * one of four times the odds. New rows become part of what was once the sum is back at 0, so that a change does not hide itself.
 *
 * @since 0.1.0
 */
export const addShare = (chart: Share, hit: boolean, seq: number): Share => {
  const before = Math.min(0.999, Math.max(LEAST_SHARE, wilson(chart.hits, chart.n)))
  const after = (ODDS * before) / (1 + (ODDS - 1) * before)
  const sum = chart.sum + (hit ? Math.log(after / before) : Math.log((1 - after) / (1 - before)))
  const one = hit ? 1 : 0
  if (sum <= 0) return share(chart.hits + chart.newHits + one, chart.n + chart.newN + 1)
  const since = chart.sum === 0 ? seq : chart.since
  return { ...chart, newHits: chart.newHits + one, newN: chart.newN + 1, since, sum }
}

/** The upper end of Wilson's interval. */
const wilson = (hits: number, n: number): number => {
  if (n === 0) return 1
  const p = hits / n
  const z2 = SURE ** 2 / n
  return (p + z2 / 2 + SURE * Math.sqrt((p * (1 - p)) / n + z2 / (4 * n))) / (1 + z2)
}

/**
 * Whether amounts have grown or shrunk as a whole. `edges`: ascending; `counts`: how many amounts lay below, on and between them. `up`, `down`: the two sums. The `new…`
 * figures are of the rows since the sum in question last left 0.
 *
 * @since 0.1.0
 */
export interface Ranks {
  readonly edges: ReadonlyArray<number>
  readonly counts: ReadonlyArray<number>
  readonly n: number
  readonly ties: number
  readonly amount: number
  readonly up: Side
  readonly down: Side
}

/** One side of a chart of ranks. @since 0.1.0 */
export interface Side {
  readonly sum: number
  readonly since: number
  readonly n: number
  readonly amount: number
}

const quiet: Side = { sum: 0, since: 0, n: 0, amount: 0 }
const EDGES = 20
/** A step weighs a score by this: the best one for a shift of 0.4 standard deviations, such as 1.6 times the cost where costs spread much. */
const WEIGHT = 0.4
/** A score has mean 0 and variance 1; a rare value's is cut, as the bound needs short tails. */
const LONGEST_SCORE = 2

/** A chart of ranks over amounts that are as they should be. @since 0.1.0 */
export const ranks = (amounts: ReadonlyArray<number>): Ranks => {
  const sorted = [...amounts].sort((a, b) => a - b)
  const cuts = Array.from({ length: EDGES - 1 }, (_, i) => sorted[Math.floor(((i + 1) * sorted.length) / EDGES)] ?? 0)
  const edges = [...new Set(cuts)]
  const counts = Array.from({ length: 2 * edges.length + 1 }, () => 0)
  const empty: Ranks = { edges, counts, n: 0, ties: 0, amount: 0, up: quiet, down: quiet }
  return amounts.reduce((chart, amount) => ({ ...addRank(chart, amount, 0), up: quiet, down: quiet }), empty)
}

/**
 * A CUSUM on sequential ranks (D. McDonald, Naval Research Logistics 37, 1990), ties at their middle: the rank of an amount among all that came before says nothing of
 * how amounts are distributed, so neither skew nor a small sample raises false alarms.
 *
 * @since 0.1.0
 */
export const addRank = (chart: Ranks, amount: number, seq: number): Ranks => {
  const bin = binOf(chart.edges, amount)
  const same = chart.counts[bin] ?? 0
  let below = 0
  for (let i = 0; i < bin; i++) below += chart.counts[i] ?? 0
  const n = chart.n + 1
  const ties = chart.ties + 3 * same * (same + 1)
  const variance = (n * n - 1 - ties / n) / 12
  const raw = variance > 1e-9 ? (below + same / 2 + 1 - (n + 1) / 2) / Math.sqrt(variance) : 0
  const score = Math.min(LONGEST_SCORE, Math.max(-LONGEST_SCORE, raw))
  const counts = chart.counts.slice()
  counts[bin] = same + 1
  return {
    edges: chart.edges,
    counts,
    n,
    ties,
    amount: chart.amount + amount,
    up: stepped(chart.up, score, amount, seq),
    down: stepped(chart.down, -score, amount, seq)
  }
}

const stepped = (side: Side, score: number, amount: number, seq: number): Side => {
  const sum = side.sum + WEIGHT * score - WEIGHT ** 2 / 2
  if (sum <= 0) return quiet
  return { sum, since: side.sum === 0 ? seq : side.since, n: side.n + 1, amount: side.amount + amount }
}

/** Below an edge, on it, or above: 0 to twice their number. */
const binOf = (edges: ReadonlyArray<number>, amount: number): number => {
  let low = 0
  let high = edges.length
  while (low < high) {
    const middle = (low + high) >> 1
    if ((edges[middle] ?? 0) < amount) low = middle + 1
    else high = middle
  }
  return edges[low] === amount ? 2 * low + 1 : 2 * low
}

/**
 * How many times as large the new amounts are as those before.
 *
 * @since 0.1.0
 */
export const growth = (chart: Ranks, side: Side): number => {
  const before = chart.n > side.n ? (chart.amount - side.amount) / (chart.n - side.n) : 0
  return before > 0 && side.n > 0 ? side.amount / side.n / before : 1
}
