/**
 * Which rows to look at first, spread over input length: a canary of them says what a run will cost, see Forecast. Pure and deterministic, so that a resumed run picks
 * the same rows.
 *
 * The rows are ordered by length and taken at even distances (systematic sampling, W. G. Cochran, Sampling Techniques, 1977, chapter 8), besides the shortest and the
 * longest one, which are always taken and stand for themselves only. For the estimate the order is cut into strata of equal count, about five picked rows each.
 *
 * @since 0.1.0
 */

/** Picked rows a stratum: fewer say too little of how costs differ within it, more leave differences of length inside. */
const ROWS_A_STRATUM = 5

/**
 * Rows by length. Stratum `i` has the rows `order[bounds[i]]` up to, not including, `order[bounds[i + 1]]`; the first and the last one have one row each: the shortest
 * and the longest.
 *
 * @since 0.1.0
 */
export interface Strata {
  readonly order: Uint32Array
  readonly bounds: ReadonlyArray<number>
}

/**
 * The strata for a sample of `n` rows: equal in count to one row, ties of length by index.
 *
 * @since 0.1.0
 */
export const strata = (lengths: ReadonlyArray<number>, n: number): Strata => {
  const order = ordered(lengths)
  const rows = order.length
  if (rows <= 2) return { order, bounds: Array.from({ length: rows + 1 }, (_, i) => i) }
  const inner = rows - 2
  const parts = Math.min(inner, Math.max(1, Math.floor((wholeOf(n, rows) - 2) / ROWS_A_STRATUM)))
  const cuts = Array.from({ length: parts + 1 }, (_, i) => 1 + Math.floor((inner * i) / parts))
  return { order, bounds: [0, ...cuts, rows] }
}

/**
 * The indices of `n` rows to look at, ascending, spread evenly over the lengths. The longest is always among them, from two rows on the shortest too; all rows where
 * there are no more than `n`.
 *
 * For example:
 * pick([30, 10, 20, 50, 40], 3) // [0, 1, 3]: the shortest, one in the middle, the longest
 *
 * @since 0.1.0
 */
export const pick = (lengths: ReadonlyArray<number>, n: number): ReadonlyArray<number> => {
  const rows = lengths.length
  const wanted = wholeOf(n, rows)
  if (wanted === 0) return []
  if (wanted === rows) return Array.from({ length: rows }, (_, i) => i)
  const order = ordered(lengths)
  const inner = rows - 2
  const between = wanted - 2
  const places = [
    rows - 1,
    ...(wanted > 1 ? [0] : []),
    ...Array.from({ length: Math.max(0, between) }, (_, i) => 1 + Math.floor(((i + 0.5) * inner) / between))
  ]
  return places.map((place) => order[place] ?? 0).sort((a, b) => a - b)
}

const wholeOf = (n: number, most: number): number => Math.min(most, Math.max(0, Math.floor(Number.isNaN(n) ? 0 : n)))

const ordered = (lengths: ReadonlyArray<number>): Uint32Array => {
  const length = (i: number): number => {
    const own = lengths[i] ?? 0
    return Number.isFinite(own) ? own : 0
  }
  return Uint32Array.from({ length: lengths.length }, (_, i) => i).sort((a, b) => length(a) - length(b) || a - b)
}
