/**
 * The rows that run first, spread over the lengths of all, and what they say of the rest: what the run will cost, how many rows fail, what looks wrong. Afterwards each row is compared with them, and the run
 * is paused when it is no longer like them.
 *
 * @since 0.1.0
 */
import { Effect, Either, Option, Schema, Stream } from "effect"
import type { Book, Order } from "../services/Book.ts"
import * as Detectors from "../services/Detectors.ts"
import type { StorageError } from "../services/Errors.ts"
import * as Forecast from "../services/Forecast.ts"
import type { JournalShape } from "../services/Journal.ts"
import { type AgentResult, type Outcome, Stored } from "../services/Outcome.ts"
import * as Pages from "../services/Pages.ts"
import * as Sample from "../services/Sample.ts"
import { Usd } from "../services/Usd.ts"
import type { Live } from "./Execution.ts"
import * as Report from "./Report.ts"
import type { Ended } from "./RowLoop.ts"

/**
 * What the canary says: of `rows` rows `rates.rows` were run. `alarms`: what looks wrong; empty: nothing. `cost`: of the whole run, none where nothing was measured. `answers`: the first three.
 * `goesOn`: nothing looks wrong and the upper end of the cost fits under the cap; else the run waits for an approval.
 *
 * @since 0.1.0
 */
export interface CanaryReport {
  readonly rows: number
  readonly rates: Detectors.Rates
  readonly alarms: ReadonlyArray<string>
  readonly cost: Option.Option<Forecast.Forecast<Usd>>
  readonly answers: ReadonlyArray<{ readonly id: string; readonly output: string }>
  readonly goesOn: boolean
}

/** The rows of a canary, and the length of every row by its place. @since 0.1.0 */
export interface Chosen {
  readonly seqs: ReadonlySet<number>
  readonly lengths: ReadonlyArray<number>
  readonly places: ReadonlyMap<number, number>
}

const PAGE = 500

const noRows = (): { readonly lengths: Array<number>; readonly seqs: Array<number> } => ({ lengths: [], seqs: [] })

/**
 * Chooses a run's canary: the same rows each time.
 *
 * @since 0.1.0
 */
export const choose = ({ reads }: JournalShape, runId: string, rows: number): Effect.Effect<Chosen, StorageError> =>
  Effect.map(
    Stream.runFold(Pages.results(reads, runId, { size: PAGE }), noRows(), (all, page) => {
      for (const { row } of page) {
        all.lengths.push(row.value.length)
        all.seqs.push(row.seq)
      }
      return all
    }),
    ({ lengths, seqs }) => {
      const picked = Sample.pick(lengths, rows).flatMap((place) => {
        const seq = seqs[place]
        return seq === undefined ? [] : [[seq, place] as const]
      })
      return { seqs: new Set(picked.map(([seq]) => seq)), lengths, places: new Map(picked) }
    }
  )

/** What the rows of a canary came to; `pending`: how many have not ended. */
interface Measured {
  readonly observed: Array<Detectors.Observation>
  readonly answers: Array<CanaryReport["answers"][number]>
  pending: number
}
const nothing = (): Measured => ({ observed: [], answers: [], pending: 0 })

const measure = <Row, A, I>(
  { fence, job, journal }: Live<Row, A, I>,
  { seqs }: Chosen
): Effect.Effect<Measured, StorageError> => {
  const decode = Schema.decodeOption(Schema.parseJson(Stored(job.agent.output)))
  return Stream.runFold(Pages.results(journal.reads, fence.runId, { size: PAGE }), nothing(), (all, page) => {
    for (const { outcome, row } of page) {
      if (!seqs.has(row.seq)) continue
      if (outcome === undefined || outcome.epoch !== row.epoch) {
        all.pending++
        continue
      }
      // A result of another schema says nothing of this one.
      const end = Option.getOrUndefined(decode(outcome.value))
      if (end === undefined) continue
      const ended = Report.toOutcome(end)
      all.observed.push(observe(row.seq, row.value.length, ended))
      if (Either.isRight(ended) && all.answers.length < 3) all.answers.push({ id: row.id, output: ended.right.output })
    }
    return all
  })
}

const observe = <A>(seq: number, inputLength: number, outcome: Outcome<A>): Detectors.Observation =>
  Either.match(outcome, {
    onLeft: ({ reason }) => ({
      seq,
      inputLength,
      kind: "failed",
      refusal: reason === "refusal",
      cost: 0,
      outputTokens: 0,
      fields: {}
    }),
    onRight: ({ parsed, partial, usage }: AgentResult<A>) => ({
      seq,
      inputLength,
      kind: partial ? "partial" : "done",
      refusal: false,
      cost: usage.cost,
      outputTokens: usage.outputTokens,
      fields: Option.match(Option.fromNullable(parsed), { onNone: () => ({}), onSome: Detectors.fieldsOf })
    })
  })

/**
 * What the canary says, once all its rows have ended; none before.
 *
 * @since 0.1.0
 */
export const report = <Row, A, I>(
  live: Live<Row, A, I>,
  book: Book,
  chosen: Chosen
): Effect.Effect<Option.Option<CanaryReport>, StorageError> =>
  Effect.gen(function* () {
    const { answers, observed, pending } = yield* measure(live, chosen)
    if (pending > 0) return Option.none()
    const { lengths, places } = chosen
    const paid = yield* paidFor(live, chosen)
    const sample = [...places].map(([seq, row]) => ({ row, amount: paid.get(seq) ?? 0 }))
    const cost = Forecast.cost({ lengths, sample })
    const ignored = Detectors.constantFields(live.job.agent.output)
    const alarms = Detectors.review(observed, { ignored }).map(({ message }) => message)
    const { cap } = book
    const high = Option.match(cost, { onNone: () => 0, onSome: ({ total }) => total.high })
    if (cap !== null && high > cap) {
      alarms.push(`the run may cost ${Usd.format(Usd.nano(high))}, more than its cap of ${Usd.format(cap)}`)
    }
    return Option.some({
      rows: book.rows,
      rates: Detectors.rates(observed),
      alarms,
      cost,
      answers,
      goesOn: alarms.length === 0
    })
  })

/** What each row of the canary cost in all: tries, repairs and uncertain calls are in it. */
const paidFor = <Row, A, I>({ fence, journal }: Live<Row, A, I>, { seqs }: Chosen) =>
  Stream.runFold(Pages.calls(journal.reads, fence.runId), new Map<number, number>(), (paid, page) => {
    for (const { cost, seq } of page) if (seqs.has(seq)) paid.set(seq, (paid.get(seq) ?? 0) + cost)
    return paid
  })

/**
 * What the report orders the run to do.
 *
 * @since 0.1.0
 */
export const orderOf = ({ alarms, goesOn }: CanaryReport): Order =>
  goesOn ? { _tag: "Approve" } : { _tag: "Pause", by: "canary", message: `paused by its canary: ${alarms.join("; ")}` }

/** Compares each row with the canary. @since 0.1.0 */
export interface Comparison {
  /** The order to pause, at the first alarm. */
  readonly see: <A>(ended: Ended<A>) => Extract<Order, { readonly _tag: "Pause" }> | undefined
  /** What was found is accepted: the rows that end from now on become the measure. */
  readonly accept: () => void
}

/** So many rows are a measure; until they have ended nothing is compared. */
const MEASURE = 100

/**
 * A comparison with the canary of a run.
 *
 * @since 0.1.0
 */
export const compare = <Row, A, I>(
  live: Live<Row, A, I>,
  book: Book,
  chosen: Chosen
): Effect.Effect<Comparison, StorageError> =>
  Effect.map(measure(live, chosen), ({ observed }) => {
    const options = { ignored: Detectors.constantFields(live.job.agent.output), rows: Math.max(10_000, book.rows) }
    let state: Detectors.State | undefined = Detectors.make(observed, options)
    let next: Array<Detectors.Observation> = []
    const alarm = () => (state === undefined ? Option.none() : Detectors.verdict(state))
    return {
      see: ({ inputLength, outcome, seq }) => {
        if (chosen.seqs.has(seq) || Option.isSome(alarm())) return undefined
        const observation = observe(seq, inputLength, outcome)
        if (state === undefined) {
          next.push(observation)
          if (next.length >= MEASURE) state = Detectors.make(next, options)
          return undefined
        }
        state = Detectors.add(state, observation)
        return Option.getOrUndefined(Option.map(alarm(), pauseFor))
      },
      accept: () => {
        if (Option.isNone(alarm())) return
        state = undefined
        next = []
      }
    }
  })

const pauseFor = ({ message }: Detectors.Alarm) => ({
  _tag: "Pause" as const,
  by: "detector" as const,
  message: `paused by a detector: ${message}`
})
