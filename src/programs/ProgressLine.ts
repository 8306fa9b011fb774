/**
 * A run at a glance, as one line for an operator.
 *
 * @since 0.1.0
 */
import { Option } from "effect"
import { Usd } from "../services/Usd.ts"
import type { Snapshot } from "./Enrichment.ts"

/** Rows ended at a time, in milliseconds. @since 0.1.0 */
export interface Mark {
  readonly at: number
  readonly ended: number
}

/**
 * Where a run is at a time.
 *
 * @since 0.1.0
 */
export const markOf = (at: number, { done, failed, partial }: Pick<Snapshot, "done" | "failed" | "partial">): Mark => ({
  at,
  ended: done + partial + failed
})

/**
 * Seconds until that many rows have ended; null where nothing can be said.
 *
 * @since 0.1.0
 */
export const secondsLeft = (rows: number, rowsPerSecond: number): number | null => {
  if (rows === 0) return 0
  return rowsPerSecond > 0 ? Math.ceil(rows / rowsPerSecond) : null
}

/**
 * Rows a second between two marks; 0 where no time has passed.
 *
 * @since 0.1.0
 */
export const rate = (from: Mark, to: Mark): number =>
  to.at > from.at ? Math.max(0, ((to.ended - from.ended) * 1000) / (to.at - from.at)) : 0

const RECENT_MS = 30_000

/**
 * Rows a second over the last half a minute, mark by mark: a run that was paused or resumed is not slow for it.
 *
 * @since 0.1.0
 */
export const recentRate = (): ((mark: Mark) => number) => {
  const marks: Array<Mark> = []
  return (mark) => {
    marks.push(mark)
    while (marks.length > 2 && mark.at - (marks[1]?.at ?? mark.at) >= RECENT_MS) marks.shift()
    return rate(marks[0] ?? mark, mark)
  }
}

/**
 * `2,347 / 10,000 done · $12.30 spent · 8 workers active · est. 18 min remaining · 7.1 rows/s · ≈ $52.41 in all`; failed, partial and uncertain only where there are any. Where the
 * provider takes fewer calls at once: `2 of 3 workers active`. What the run waits for comes first. Above `width` characters the words get shorter, the rate goes, and then
 * whole parts from the end.
 *
 * @since 0.1.0
 */
export const render = (snapshot: Snapshot, rowsPerSecond: number, width = Number.POSITIVE_INFINITY): string => {
  if (snapshot.phase === "loading") return "loading rows"
  const long = partsOf(snapshot, rowsPerSecond, true).join(" · ")
  if (long.length <= width) return long
  const short = partsOf(snapshot, rowsPerSecond, false)
  const fitting = short.filter((_, i) => short.slice(0, i + 1).join(" · ").length <= width)
  return fitting.join(" · ")
}

const partsOf = (snapshot: Snapshot, rowsPerSecond: number, long: boolean): ReadonlyArray<string> => {
  const { failed, partial, phase, rows, spent, uncertain, working } = snapshot
  const ended = snapshot.done + partial + failed
  const active = snapshot.allowed < snapshot.concurrency ? `${working} of ${snapshot.allowed}` : `${working}`
  const workers = active === "1" ? "worker" : "workers"
  const left = remaining(rows - ended, rowsPerSecond)
  const rate = rowsPerSecond < 10 ? rowsPerSecond.toFixed(1) : count(Math.round(rowsPerSecond))
  return [
    ...noteOf(snapshot),
    `${count(ended)} / ${count(rows)} done`,
    `${money(spent)} spent`,
    long ? `${active} ${workers} active` : `${active} active`,
    ...(phase === "paused"
      ? []
      : [long ? `${left.startsWith("nothing") ? "" : "est. "}${left} remaining` : `${left} left`]),
    ...(long ? [`${rate} rows/s`, ...forecastOf(snapshot)] : []),
    ...(failed > 0 ? [`${count(failed)} failed`] : []),
    ...(partial > 0 ? [`${count(partial)} partial`] : []),
    ...(uncertain > 0 ? [`${money(uncertain)} uncertain`] : [])
  ]
}

/** By what the rows cost so far; of too few of them, or at the end, nothing is said. */
const forecastOf = ({ done, failed, partial, rows, spent, uncertain }: Snapshot): ReadonlyArray<string> => {
  const ended = done + partial + failed
  if (ended < 20 || ended === rows || spent === 0) return []
  return [`≈ ${money(Usd.nano(Math.round(((spent + uncertain) / ended) * rows)))} in all`]
}

const noteOf = ({ paused, phase }: Snapshot): ReadonlyArray<string> => {
  if (phase === "paused" && paused !== null) return [oneLine(paused.message)]
  return Option.toArray(Option.fromNullable(notes[phase]))
}

const notes: Partial<Record<Snapshot["phase"], string>> = {
  cooling: "cooling down",
  provider_down: "provider down, probing",
  stopping: "stopping"
}

/**
 * Text that came from outside, as it may stand in a line for a terminal: nothing may move the cursor or start a new line.
 *
 * @since 0.1.0
 */
export const oneLine = (text: string): string => text.replace(/[\p{Cc}\p{Cf}\u2028\u2029]+/gu, " ").slice(0, 300)

/**
 * Money at a glance: cents, and below a cent four digits, rounded up so that something never looks like nothing.
 *
 * @since 0.1.0
 */
export const money = (usd: Usd): string => {
  if (usd === 0 || usd >= 10_000_000) return `$${(Math.floor(usd / 10_000_000) / 100).toLocaleString("en-US", cents)}`
  return `$${(Math.ceil(usd / 100_000) / 10_000).toFixed(4)}`
}

const cents = { minimumFractionDigits: 2, maximumFractionDigits: 2 }

/**
 * `10,000`.
 *
 * @since 0.1.0
 */
export const count = (n: number): string => n.toLocaleString("en-US")

const remaining = (rows: number, rowsPerSecond: number): string => {
  if (rows === 0) return "nothing"
  if (rowsPerSecond <= 0) return "–"
  const seconds = Math.ceil(rows / rowsPerSecond)
  if (seconds < 90) return `${seconds} s`
  const minutes = Math.ceil(seconds / 60)
  return minutes < 120 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`
}
