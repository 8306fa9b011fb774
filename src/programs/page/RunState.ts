/**
 * What the page knows of a run that it follows: the last view of it, moved on by each event.
 *
 * @since 0.1.0
 */

import type { Run } from "../ApiViews.ts"
import type { CanaryReport, RunEvent, Snapshot } from "../Enrichment.ts"
import type { ServerEvent } from "./EventStream.ts"
import { count, ended, many, money, span } from "./Format.ts"

/** Where a run was at a time of this page, in milliseconds. @since 0.1.0 */
export interface Sample {
  readonly at: number
  readonly ended: number
  readonly working: number
  readonly isRunning: boolean
}

/** @since 0.1.0 */
export interface LogEntry {
  readonly at: number
  readonly kind: string
  readonly text: string
}

/** @since 0.1.0 */
export interface RunState {
  readonly run: Run | undefined
  readonly samples: ReadonlyArray<Sample>
  readonly log: ReadonlyArray<LogEntry>
  readonly canary: CanaryReport | undefined
  /** What the run will cost by what it cost so far, in nano-dollars. */
  readonly costInAll: number | null
  readonly isOver: boolean
  /** When the last progress was heard. */
  readonly heardAt: number
  /** The id of the last event that had one. */
  readonly lastId: string
}

/** @since 0.1.0 */
export const nothing: RunState = {
  run: undefined,
  samples: [],
  log: [],
  canary: undefined,
  costInAll: null,
  isOver: false,
  heardAt: 0,
  lastId: ""
}

type Progress = Snapshot & {
  readonly _tag: "Progress"
  readonly rowsPerSecond: number
  readonly secondsLeft: number | null
  readonly costInAll: number | null
}
type Told =
  | Progress
  | Exclude<RunEvent<unknown>, { _tag: "Row" | "Finished" | "ProviderDown" }>
  | { readonly _tag: "Row" }
  | { readonly _tag: "ProviderDown"; readonly message: string | null }
  | { readonly _tag: "Finished"; readonly status: Run["status"]; readonly reason: Run["reason"] }
  | { readonly _tag: "Failed"; readonly message: string }

const SAMPLES_MS = 300_000
const LOGGED = 40

const FRESH_MS = 3_000

/**
 * The state with a whole view. Its figures are the database's, which come a moment after what the worker itself says: while that is heard, it stands, or the numbers would go to and fro.
 *
 * @since 0.1.0
 */
export const viewed = (state: RunState, view: Run, at: number): RunState => {
  const isHeard = view.phase !== "idle" && at - state.heardAt < FRESH_MS
  const run = isHeard && state.run !== undefined ? { ...view, ...figuresOf(state.run) } : view
  return { ...state, run, isOver: view.phase === "idle" && view.status !== "running" && view.status !== "loading" }
}

const figuresOf = ({ allowed, done, failed, partial, pending, rows, rowsPerSecond, ...more }: Run) => ({
  allowed,
  done,
  failed,
  partial,
  pending,
  rows,
  rowsPerSecond,
  secondsLeft: more.secondsLeft,
  spent: more.spent,
  uncertain: more.uncertain,
  working: more.working
})

/** The state after an event that came at this time. @since 0.1.0 */
export const heard = (before: RunState, { data, id, name }: ServerEvent, at: number): RunState => {
  const state = id === "" ? before : { ...before, lastId: id }
  if (name === "snapshot" || name === "gap") {
    const run: Run = JSON.parse(data)
    return sampled(viewed({ ...state, heardAt: 0 }, run, at), run, at)
  }
  const told: Told = JSON.parse(data)
  if (told._tag === "Progress") return state.run === undefined ? state : moved(state, state.run, told, at)
  if (told._tag === "Row") return state
  const logged = withLog(state, told._tag, wordsOf(told), at)
  if (told._tag === "Canary") return { ...logged, canary: told.report }
  return told._tag === "Finished" || told._tag === "Failed" ? { ...logged, isOver: true } : logged
}

/** The state with a canary's report that came before this page looked. @since 0.1.0 */
export const recalled = (state: RunState, { data }: ServerEvent): RunState => {
  const told: Told = JSON.parse(data)
  return told._tag === "Canary" ? { ...state, canary: told.report } : state
}

const moved = (state: RunState, before: Run, progress: Progress, at: number): RunState => {
  const { allowed, concurrency, costInAll, done, failed, partial, paused, phase, rows } = progress
  const { rowsPerSecond, secondsLeft, spent, uncertain, working } = progress
  const run: Run = {
    ...before,
    status: phase === "loading" ? "loading" : "running",
    reason: null,
    phase,
    paused,
    rows,
    done,
    partial,
    failed,
    pending: rows - done - partial - failed,
    spent,
    uncertain,
    working,
    allowed,
    maxConcurrency: concurrency,
    rowsPerSecond,
    secondsLeft
  }
  return sampled({ ...state, run, costInAll, isOver: false, heardAt: at }, run, at)
}

const sampled = (state: RunState, run: Run, at: number): RunState => ({
  ...state,
  samples: [
    ...state.samples.filter((sample) => at - sample.at <= SAMPLES_MS && sample.at < at),
    { at, ended: ended(run), working: run.working, isRunning: run.phase === "running" }
  ]
})

/** Of several checkpoints on end the latest is enough. */
const withLog = (state: RunState, kind: string, text: string, at: number): RunState => {
  const rest = kind === "Checkpoint" && state.log[0]?.kind === kind ? state.log.slice(1) : state.log
  return { ...state, log: [{ at, kind, text }, ...rest].slice(0, LOGGED) }
}

const wordsOf = (told: Exclude<Told, Progress | { _tag: "Row" }>): string => {
  switch (told._tag) {
    case "Started":
      return told.ended > 0
        ? `went on at ${count(told.ended)} of ${many(told.rows, "row")}`
        : `began, ${many(told.rows, "row")}`
    case "Checkpoint":
      return `checkpoint at ${many(told.rows, "row")}`
    case "ProviderDown":
      return `the provider is down${told.message === null ? "" : `: ${told.message}`}`
    case "ProviderUp":
      return "the provider is up again"
    case "ProviderLeft":
      return `the provider was left for the next one: ${told.message}`
    case "Stalled":
      return `the server stood still for ${span(Math.ceil(told.ms / 1_000))}`
    case "Canary":
      return told.report.goesOn ? "the canary found nothing wrong" : "the canary waits for an approval"
    case "Ordered":
      return `${told.by}: ${orderWords(told.order)}`
    case "Stopping":
      return `stopping: ${told.reason.message}`
    case "Finished":
      return told.reason === null ? `ended: ${told.status}` : `ended: ${told.reason.message}`
    case "Failed":
      return `stopped by an error: ${told.message}`
  }
}

type Ordered = Extract<RunEvent<unknown>, { _tag: "Ordered" }>["order"]

/** An order in words. @since 0.1.0 */
export const orderWords = (order: Ordered): string => {
  switch (order._tag) {
    case "Pause":
      return `pause${order.message === "" ? "" : ` (${order.message})`}`
    case "Set":
      return `set ${limitWords(order)}`
    case "Requeue":
      return `queue ${many(order.rows.length, "row")} again`
    default:
      return order._tag.toLowerCase()
  }
}

const limitWords = ({
  cap,
  maxCalls,
  maxConcurrency,
  requestsPerMinute,
  tokensPerMinute
}: Extract<Ordered, { _tag: "Set" }>) => {
  const plain = {
    "max. calls": maxCalls,
    workers: maxConcurrency,
    "requests/min": requestsPerMinute,
    "tokens/min": tokensPerMinute
  }
  const parts = Object.entries(plain).flatMap(([name, value]) =>
    value === undefined ? [] : [`${name} ${value === null ? "none" : count(value)}`]
  )
  return [...(cap === undefined ? [] : [`cap ${cap === null ? "none" : money(cap)}`]), ...parts].join(", ")
}

const SMOOTH_MS = 5_000

/** Rows a second, one point a sample, each over the five seconds before it. @since 0.1.0 */
export const throughput = (
  samples: ReadonlyArray<Sample>
): ReadonlyArray<{ readonly at: number; readonly rate: number }> =>
  samples.flatMap((sample, i) => {
    const from = samples.slice(0, i).findLast(({ at }) => sample.at - at >= SMOOTH_MS)
    if (from === undefined) return []
    return [{ at: sample.at, rate: Math.max(0, ((sample.ended - from.ended) * 1_000) / (sample.at - from.at)) }]
  })

const WINDOW_MS = 30_000
const FEWEST = 10

/**
 * How long a row's calls are in flight, in milliseconds, on average over the last half minute: calls in flight by rows a second (Little's law). `undefined` where that says nothing: too few looks, or not running
 * all the while.
 *
 * @since 0.1.0
 */
export const inFlightMs = (samples: ReadonlyArray<Sample>): number | undefined => {
  const last = samples.at(-1)
  if (last === undefined) return undefined
  const recent = samples.filter(({ at }) => last.at - at <= WINDOW_MS)
  const first = recent[0]
  if (first === undefined || recent.length < FEWEST || recent.some(({ isRunning }) => !isRunning)) return undefined
  const rows = last.ended - first.ended
  if (rows < FEWEST) return undefined
  const working = recent.reduce((sum, sample) => sum + sample.working, 0) / recent.length
  return (working * (last.at - first.at)) / rows
}
