/**
 * The passes of a run over its pending rows: one, and another one while rows were queued again or a limit that stopped the run was raised; then the run's end, as far as it came. Internal to Execution.
 *
 * @since 0.1.0
 */
import { Clock, Effect, Either, Option, type Scope } from "effect"
import type { Book, Order, OrderRecord, Verdict } from "../services/Book.ts"
import type { StopReason, StorageError } from "../services/Errors.ts"
import { Journal } from "../services/Journal.ts"
import type { Outcome } from "../services/Outcome.ts"
import * as Telemetry from "../services/Telemetry.ts"
import * as Canary from "./Canary.ts"
import type { RunEvent } from "./Enrichment.ts"
import type { Live } from "./Execution.ts"
import * as Invoker from "./Invoker.ts"
import * as Report from "./Report.ts"
import * as Routes from "./Routes.ts"
import * as RowLoop from "./RowLoop.ts"
import * as RunRecord from "./RunRecord.ts"
import * as Stalls from "./Stalls.ts"

/** @since 0.1.0 */
export type Publish<A> = (event: RunEvent<A>) => void

/** What the passes need of the run besides itself. @since 0.1.0 */
export interface PassOptions<A> {
  /** See `Reopen`. */
  readonly reused: ReadonlyMap<number, number>
  readonly feed: RowLoop.StoreFeed
  readonly publish: Publish<A>
}

/**
 * Works until the run is done or stops.
 *
 * @since 0.1.0
 */
export const run = <Row, A, I>(live: Live<Row, A, I>, options: PassOptions<A>): Effect.Effect<void, StorageError> =>
  Effect.gen(function* () {
    const { canary } = yield* bookNow(live)
    const chosen = canary === null ? undefined : yield* Canary.choose(live.journal, live.fence.runId, canary.rows)
    let goesOn = true
    while (goesOn) {
      const heard = live.orders.heard()
      yield* live.orders.hear((record) => options.publish({ _tag: "Ordered", ...record }))
      const book = yield* bookNow(live)
      countAll(live, book)
      if (live.meter.state().stop === null) yield* Effect.scoped(pass(live, book, chosen, options))
      const isDecided = chosen !== undefined && isFirst(book) && (yield* decide(live, chosen, options))
      goesOn = isDecided || (yield* finish(live, { ...book, orders: heard }, options))
    }
  })

/**
 * The run's book as it is now. The run is claimed, so its record is there; a database that cannot be read stays a typed error.
 *
 * @since 0.1.0
 */
export const bookNow = <Row, A, I>(live: Live<Row, A, I>): Effect.Effect<Book, StorageError> =>
  Effect.provideService(Report.bookOf(live.fence.runId), Journal, live.journal).pipe(
    Effect.catchTag("RunRefused", Effect.die)
  )

/** Rows that have ended. @since 0.1.0 */
export const endedOf = (book: Book): number => book.done + book.partial + book.failed

/** Another process has the run: what it makes of it is not this one's to tell. @since 0.1.0 */
export const isFenced = <Row, A, I>({ meter }: Live<Row, A, I>): boolean => meter.state().stop?.kind === "fenced"

/** Whether the rows of the canary are to run, and no others. */
const isFirst = ({ canary, paused }: Book): boolean => canary?.over === false && paused?.by !== "canary"

/** Once the canary has ended: the run goes on, or is paused until it is approved. False: it has not. */
const decide = <Row, A, I>(
  live: Live<Row, A, I>,
  chosen: Canary.Chosen,
  { publish }: PassOptions<A>
): Effect.Effect<boolean, StorageError> =>
  Effect.gen(function* () {
    const { journal, meter, orders } = live
    yield* journal.flush
    if (meter.state().stop !== null) return false
    const report = yield* Canary.report(live, yield* bookNow(live), chosen)
    if (Option.isNone(report)) return false
    publish({ _tag: "Canary", report: report.value })
    yield* order(live, Canary.orderOf(report.value), "canary")
    yield* orders.hear((record) => publish({ _tag: "Ordered", ...record }))
    return true
  })

const order = <Row, A, I>({ fence, journal }: Live<Row, A, I>, order: Order, by: string) =>
  Effect.flatMap(Clock.currentTimeMillis, (at) => journal.commit({ _tag: "Order", runId: fence.runId, by, order, at }))

/** One pass over the rows that are pending. */
const pass = <Row, A, I>(
  live: Live<Row, A, I>,
  book: Book,
  chosen: Canary.Chosen | undefined,
  { feed, publish, reused }: PassOptions<A>
): Effect.Effect<void, StorageError, Scope.Scope> =>
  Effect.gen(function* () {
    const { fence, job, journal, meter, options, orders, routes, store } = live
    const openCalls = yield* journal.reads.openCalls(fence.runId)
    const invoker = Invoker.make({
      routes,
      switch: yield* watch(live, publish),
      meter,
      tokenizer: live.tokenizer,
      prices: live.prices,
      now: live.now,
      retry: job.retry,
      memo: job.memo,
      openCalls,
      reused,
      spans: options.spans === true
    })
    const isCompared = chosen !== undefined && !isFirst(book)
    const comparison = isCompared ? yield* Canary.compare(live, book, chosen) : undefined
    if (book.status === "suspended") journal.append({ _tag: "Status", fence, status: "running", reason: null })
    let width = widthOf(meter.state().maxConcurrency)
    let widen = (_more: number): void => {}
    const loop = RowLoop.run({
      job,
      journal,
      store,
      feed,
      meter,
      clock: live.clock,
      fence,
      text: RunRecord.isText(book),
      width: Math.min(width, Math.max(1, book.rows - endedOf(book))),
      onWider: (listen) => {
        widen = listen
      },
      called: new Set(openCalls.map(({ seq }) => seq)),
      only: isFirst(book) ? chosen?.seqs : undefined,
      ended: endedOf(book),
      failFast: options.mode === "failFast",
      spans: options.spans === true,
      onRow: (ended) => {
        const end = endOf(ended.outcome)
        live.counts[end]++
        Telemetry.rowEnded(job.name, end)
        publish({ _tag: "Row", ...ended })
        const pause = comparison?.see(ended)
        if (pause === undefined) return
        // At once, and in the book as soon as it can be.
        meter.dispatch({ _tag: "Pause", pause })
        const at = live.clock.unsafeCurrentTimeMillis()
        journal.append({ _tag: "Order", runId: fence.runId, by: "detector", order: pause, at })
      },
      onSnapshot: (rows) => publish({ _tag: "Checkpoint", rows })
    })
    yield* orders.watch((record) => {
      publish({ _tag: "Ordered", ...record })
      recount(live, record)
      if (record.order._tag === "Approve" || record.order._tag === "Unpause") comparison?.accept()
      const wanted = widthOf(meter.state().maxConcurrency)
      if (wanted > width) widen(wanted - width)
      width = Math.max(width, wanted)
    })
    yield* Effect.provideService(loop, Invoker.Invoker, invoker)
  })

/** A row that backs off leaves its permit to others only if there are others. */
const widthOf = (concurrency: number): number => 2 * concurrency

const countAll = <Row, A, I>({ counts }: Live<Row, A, I>, { done, failed, partial, rows }: Book): void =>
  void Object.assign(counts, { rows, done, partial, failed })

const endOf = (outcome: Outcome<unknown>) =>
  Either.match(outcome, { onLeft: () => "failed" as const, onRight: ({ partial }) => (partial ? "partial" : "done") })

/** Rows that were queued again are no more ended. */
const recount = <Row, A, I>({ counts }: Live<Row, A, I>, { order }: OrderRecord): void => {
  if (order._tag === "Requeue") for (const { kind } of order.rows) counts[kind]--
}

/** Hands the providers' health, the journal's and the stop on to whom they concern. */
const watch = <Row, A, I>(
  { journal, meter, routes }: Live<Row, A, I>,
  publish: Publish<A>
): Effect.Effect<Routes.Switch, never, Scope.Scope> =>
  Effect.gen(function* () {
    const switching = yield* Routes.watch(routes, meter, {
      provider: (provider, error) => {
        if (provider === "down") publish({ _tag: "ProviderDown", error })
        if (provider === "up") publish({ _tag: "ProviderUp" })
      },
      left: (message) => publish({ _tag: "ProviderLeft", message })
    })
    yield* Stalls.watch((ms) => {
      publish({ _tag: "Stalled", ms })
      return Effect.logWarning(stalled(ms))
    })
    yield* Effect.forkScoped(Effect.map(meter.stopped, (reason) => publish({ _tag: "Stopping", reason })))
    const broke = Effect.catchAll(journal.broken, (error) =>
      Effect.sync(() => meter.stop({ kind: "storage", message: error.message }))
    )
    yield* Effect.forkScoped(broke)
    return switching
  })

const stalled = (ms: number): string =>
  `the event loop stood still for ${(ms / 1000).toFixed(1)} s, and every call with it: nothing is lost, but some calls may have timed out. Does a prompt, id or where function work too long?`

/** The end of a pass, durable: the run's status and its last snapshots, unless there is more to do. */
const finish = <Row, A, I>(
  live: Live<Row, A, I>,
  before: Book,
  { feed, publish }: PassOptions<A>
): Effect.Effect<boolean, StorageError> =>
  Effect.gen(function* () {
    const { checkpointer, fence, journal, meter, options, orders } = live
    feed.flush()
    yield* journal.flush
    if (isFenced(live)) return false
    yield* orders.hear((record) => publish({ _tag: "Ordered", ...record }))
    const book = yield* bookNow(live)
    const { stop } = meter.state()
    const isLeft = endedOf(book) < book.rows
    const hasMoved = book.commitSeq > before.commitSeq || book.orders > before.orders
    if (isLeft && stop === null && hasMoved) return true
    const verdict = yield* isLeft ? suspendAs(live, stop ?? unexplained, orders.heard()) : complete(live, book)
    // Another process was quicker: rows were queued again, or an order came that was not heard yet.
    if (verdict._tag === "Refused") return true
    if (!isLeft && options.onDone === "reclaim") yield* checkpointer.delete(fence.runId)
    return false
  })

const unexplained: StopReason = { kind: "operator", message: "the run stopped" }

const complete = <Row, A, I>({ fence, job, journal }: Live<Row, A, I>, book: Book) =>
  Effect.flatMap(Clock.currentTimeMillis, (at) => {
    const snapshot = { _tag: "RunSnapshot" as const, fence, keep: job.keep, at }
    if (book.rows % job.chunkSize !== 0) journal.append({ ...snapshot, status: "RUNNING" })
    return journal.commit({ ...snapshot, status: "DONE" })
  })

/**
 * The run's end for now. With `heard` it is refused if there is an order after that one.
 *
 * @since 0.1.0
 */
export const suspendAs = <Row, A, I>(
  { fence, job, journal }: Live<Row, A, I>,
  reason: StopReason,
  heard?: number
): Effect.Effect<Verdict, StorageError> =>
  Effect.flatMap(Clock.currentTimeMillis, (at) => {
    const snapshot = { _tag: "RunSnapshot" as const, fence, status: "SUSPENDED" as const, reason, keep: job.keep, at }
    return journal.commit(heard === undefined ? snapshot : { ...snapshot, heard })
  })
