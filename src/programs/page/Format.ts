/**
 * Numbers and words of the page: the same as the command's, see ProgressLine, without what that needs of Effect.
 *
 * @since 0.1.0
 */
import type { Run } from "../ApiViews.ts"

const NANO = 1_000_000_000

/** `10,000`. @since 0.1.0 */
export const count = (n: number): string => n.toLocaleString("en-US")

/** Nano-dollars at a glance: cents, and below a cent four digits, rounded up so that something never looks like nothing. @since 0.1.0 */
export const money = (usd: number): string => {
  if (usd === 0 || usd >= 10_000_000) return `$${(Math.floor(usd / 10_000_000) / 100).toLocaleString("en-US", cents)}`
  return `$${(Math.ceil(usd / 100_000) / 10_000).toFixed(4)}`
}

const cents = { minimumFractionDigits: 2, maximumFractionDigits: 2 }

/** Nano-dollars with every digit, for a bill. @since 0.1.0 */
export const exact = (usd: number): string => {
  const whole = Math.floor(usd / NANO).toLocaleString("en-US")
  const digits = String(usd % NANO)
    .padStart(9, "0")
    .replace(/0+$/, "")
  return `$${whole}.${digits.padEnd(2, "0")}`
}

/** Nano-dollars as the plain number of dollars that a form takes. @since 0.1.0 */
export const dollars = (usd: number): string => String(usd / NANO)

/** `7.1`, `120`. @since 0.1.0 */
export const rate = (perSecond: number): string =>
  perSecond < 10 ? perSecond.toFixed(1) : count(Math.round(perSecond))

/** `40 s`, `18 min`, `2 h 5 min`. @since 0.1.0 */
export const span = (seconds: number): string => {
  if (seconds < 90) return `${seconds} s`
  const minutes = Math.ceil(seconds / 60)
  return minutes < 120 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`
}

/** `850 ms`, `1.2 s`. @since 0.1.0 */
export const took = (ms: number): string => (ms < 1_000 ? `${Math.round(ms)} ms` : `${(ms / 1_000).toFixed(1)} s`)

/** `23.4 %`; a part that is not all never looks like all. @since 0.1.0 */
export const percent = (part: number, whole: number): string =>
  whole === 0 ? "0.0 %" : `${(Math.floor((part / whole) * 1_000) / 10).toFixed(1)} %`

/** `1 row`, `2 rows`. @since 0.1.0 */
export const many = (n: number, one: string, more = `${one}s`): string => `${count(n)} ${n === 1 ? one : more}`

const two = (n: number): string => String(n).padStart(2, "0")

/** `14:05:09`, in the reader's time zone. @since 0.1.0 */
export const clock = (ms: number): string => {
  const at = new Date(ms)
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`
}

/** `2026-07-03 14:05:09`. @since 0.1.0 */
export const time = (ms: number): string => {
  const at = new Date(ms)
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(ms)}`
}

/** Rows that have ended. @since 0.1.0 */
export const ended = ({ done, failed, partial }: Pick<Run, "done" | "failed" | "partial">): number =>
  done + partial + failed

/** Whether a server works on it. @since 0.1.0 */
export const isLive = ({ phase, status }: Run): boolean => phase !== "idle" || status === "running"

/**
 * The operator's line, as parts: `2,347 / 10,000 done`, `$12.30 spent`, `8 workers active`, `est. 18 min remaining`.
 *
 * @since 0.1.0
 */
export const line = (run: Run): ReadonlyArray<string> => {
  if (run.status === "loading" || run.phase === "loading") return ["loading rows"]
  const active = run.allowed < run.maxConcurrency && isLive(run) ? `${run.working} of ${run.allowed}` : `${run.working}`
  return [
    `${count(ended(run))} / ${count(run.rows)} done`,
    `${money(run.spent)} spent`,
    ...(run.phase === "idle" && run.working === 0 ? [] : [`${active} ${active === "1" ? "worker" : "workers"} active`]),
    ...(run.phase === "paused" || run.phase === "idle" ? [] : [left(run)])
  ]
}

const left = ({ pending, secondsLeft }: Run): string => {
  if (pending === 0) return "nothing remaining"
  return `est. ${secondsLeft === null ? "–" : span(secondsLeft)} remaining`
}

/** A state of a run in a word, and how it looks. @since 0.1.0 */
export interface State {
  readonly word: string
  readonly tone: "live" | "wait" | "bad" | "good" | "calm"
}

/** @since 0.1.0 */
export const state = (run: Run): State => {
  if (run.status === "done") {
    return run.failed + run.partial > 0
      ? { word: "Complete, with failures", tone: "wait" }
      : { word: "Done", tone: "good" }
  }
  if (run.status === "cancelled") return { word: "Cancelled", tone: "calm" }
  if (run.paused !== null) return { word: "Paused", tone: "wait" }
  switch (run.phase) {
    case "cooling":
      return { word: "Cooling down", tone: "wait" }
    case "provider_down":
      return { word: "Provider down, probing", tone: "bad" }
    case "stopping":
      return { word: "Stopping", tone: "wait" }
    case "loading":
      return { word: "Loading rows", tone: "live" }
    case "running":
    case "paused":
      return { word: "Running", tone: "live" }
    case "idle":
      if (run.status === "running") return { word: "Running elsewhere", tone: "live" }
      return run.status === "loading" ? { word: "Not begun", tone: "calm" } : { word: "Suspended", tone: "wait" }
  }
}
