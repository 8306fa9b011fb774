/**
 * How a run is carried out: claimed, its rows loaded and worked through, its end recorded. Internal to Enrichment.
 *
 * @since 0.1.0
 */
import { Chunk, Clock, type Context, Effect, Option, Random, Schema, type Scope, Stream, Struct } from "effect"
import { allowed, isCooling, type State } from "../services/Admission.ts"
import type { Book, Fence, Limits, Phase } from "../services/Book.ts"
import { Budget } from "../services/Budget.ts"
import { Checkpointer } from "../services/Checkpointer.ts"
import * as CircuitBreaker from "../services/CircuitBreaker.ts"
import { RunRefused, type StopReason, type StorageError } from "../services/Errors.ts"
import { Journal, type JournalShape } from "../services/Journal.ts"
import { LLM, type LLMShape } from "../services/LLM.ts"
import * as Meter from "../services/Meter.ts"
import * as Models from "../services/Models.ts"
import * as MonotonicTime from "../services/MonotonicTime.ts"
import type { Outcome } from "../services/Outcome.ts"
import * as Price from "../services/Price.ts"
import { Store } from "../services/Store.ts"
import * as Tokenizer from "../services/Tokenizer.ts"
import { Usd } from "../services/Usd.ts"
import type { Batch, RunError, RunOptions, RunResult, Services, Snapshot } from "./Enrichment.ts"
import * as Invoker from "./Invoker.ts"
import type { Job } from "./Job.ts"
import * as Manifest from "./Manifest.ts"
import * as OrderWatch from "./OrderWatch.ts"
import * as Passes from "./Passes.ts"
import * as Reopen from "./Reopen.ts"
import * as Report from "./Report.ts"
import * as Routes from "./Routes.ts"
import * as RowLoop from "./RowLoop.ts"
import * as RunRecord from "./RunRecord.ts"
import * as Worker from "./Worker.ts"
import * as Workflow from "./Workflow.ts"

/**
 * A claimed run, before and while it is executed.
 *
 * @since 0.1.0
 */
export interface Live<Row, A, I> {
  readonly job: Job<Row, A, I>
  readonly options: RunOptions
  readonly journal: JournalShape
  readonly store: Context.Tag.Service<Store>
  readonly checkpointer: Context.Tag.Service<Checkpointer>
  readonly routes: Routes.Routes
  readonly tokenizer: Tokenizer.TokenizerShape
  readonly prices: ReadonlyArray<Price.PriceRow>
  readonly fence: Fence
  readonly limits: Limits
  readonly meter: Meter.Meter
  readonly clock: Clock.Clock
  readonly now: number
  /** The book when this process claimed the run. */
  readonly book: Book
  readonly counts: Counts
  readonly orders: OrderWatch.OrderWatch
}

/** What the progress line shows, kept in step with the loop. */
interface Counts {
  rows: number
  done: number
  partial: number
  failed: number
  loading: boolean
}

/**
 * Checks, opens and claims a run, for as long as the scope is open. Nothing was sent yet.
 *
 * @since 0.1.0
 */
export const begin = <Row, A, I>(
  asked: Job<Row, A, I>,
  options: RunOptions
): Effect.Effect<Live<Row, A, I>, RunError, Services | Scope.Scope> =>
  Effect.gen(function* () {
    const [journal, store, checkpointer, budget, llm] = yield* Effect.all([Journal, Store, Checkpointer, Budget, LLM])
    const job = fitted(asked, llm)
    const prices = yield* Price.Price
    yield* sameKind(journal.durable, store.durable, checkpointer.durable)
    const now = yield* Clock.currentTimeMillis
    const limits = yield* budget.limits
    const runId = options.runId ?? (yield* newRunId(job.name, now))
    yield* budget.bind(runId)
    const found = yield* journal.reads.book(runId)
    yield* acceptable(job, limits, found, prices, now)
    const clock = yield* Effect.clock
    const monotonic = () => MonotonicTime.at(clock)
    const routes = yield* Routes.make(llm, job.fallback, yield* CircuitBreaker.Breaker, monotonic)
    for (const model of modelsOf(job)) {
      const ending = Models.shutdownOf(model, now)
      if (ending !== undefined) yield* Effect.logWarning(ending)
    }
    if (found !== undefined && found.status !== "loading") {
      const changed = yield* RunRecord.sourceChange(found, job.source)
      if (changed !== undefined) yield* Effect.logWarning(changed)
    }
    const source = yield* RunRecord.sourceText(job.source)
    const wanted = { ...limits, settings: options.settings }
    const { book, fence, lost, says } = yield* RunRecord.open(journal, {
      fresh: {
        runId,
        job: job.name,
        scope: job.scope,
        status: "loading",
        source,
        createdAt: now,
        chunkSize: job.chunkSize,
        canary: options.canary === undefined ? null : { rows: options.canary, over: false }
      },
      limits: wanted,
      pool: yield* budget.pool,
      acceptLoss: options.acceptLoss
    })
    const meter = Meter.make({ journal, book, fence, clock, adaptive: budget.adaptive })
    budget.report(meter.state)
    yield* Effect.forkScoped(Effect.zipRight(lost, Effect.sync(meter.fenced)))
    const counts: Counts = { ...book, loading: book.status === "loading" }
    says(() => {
      const state = meter.state()
      return { phase: phaseOf(state, counts.loading), allowed: allowed(state) }
    })
    return {
      job,
      options,
      journal,
      store,
      checkpointer,
      routes,
      tokenizer: yield* Tokenizer.Tokenizer,
      prices,
      fence,
      limits: wanted,
      meter,
      clock,
      now,
      book,
      counts,
      orders: OrderWatch.make({ journal, fence, meter, book })
    }
  })

/** The output is asked for as this provider can give it: the mode is part of the request, and so of every row's key. */
const fitted = <Row, A, I>(job: Job<Row, A, I>, { outputMode }: LLMShape): Job<Row, A, I> =>
  outputMode === undefined ? job : { ...job, agent: job.agent.forMode(outputMode) }

const sameKind = (...durable: ReadonlyArray<boolean>): Effect.Effect<void, RunRefused> =>
  durable.every((one) => one === durable[0])
    ? Effect.void
    : new RunRefused({
        reason: "mixed",
        message:
          "a durable part stands beside one in memory: a crash would lose half of the run; use one bundle for all"
      })

const newRunId = (job: string, now: number): Effect.Effect<string> =>
  Effect.map(
    Effect.replicateEffect(Random.nextIntBetween(0, 36), 3),
    (digits) => `${job}-${new Date(now).toISOString().slice(0, 10)}-${digits.map((n) => n.toString(36)).join("")}`
  )

const modelsOf = <Row, A, I>({ agent, fallback }: Job<Row, A, I>): ReadonlyArray<string> => [
  agent.model,
  ...fallback.map(({ model }) => model)
]

/** What is refused before anything is written or sent. */
const acceptable = <Row, A, I>(
  job: Job<Row, A, I>,
  limits: Limits,
  found: Book | undefined,
  prices: ReadonlyArray<Price.PriceRow>,
  now: number
): Effect.Effect<void, RunRefused> => {
  const cap = limits.cap === undefined ? found?.cap : limits.cap
  const isFree = cap === null || cap === undefined
  for (const model of modelsOf(job)) {
    const price = Price.find(prices, model, now)
    const problem = Option.match(price, {
      onNone: () => (isFree ? undefined : Invoker.unpriced(model)),
      onSome: (row) => Price.problem(row) ?? (isFree ? undefined : Price.tierProblem(row, job.agent.tier))
    })
    if (problem !== undefined) return new RunRefused({ reason: "unpriced", message: problem })
  }
  return Effect.void
}

/**
 * The run as a workflow of two nodes, then its result.
 *
 * @since 0.1.0
 */
export const execute = <Row, A, I>(
  live: Live<Row, A, I>,
  publish: Passes.Publish<A>
): Effect.Effect<RunResult<A>, RunError> =>
  Effect.gen(function* () {
    const graph = Workflow.make({ name: live.job.name })
      .fn("load_rows", () => loadRows(live))
      .subworkflow("enrich_batch", { run: () => batch(live, publish) }, { after: "load_rows" })
    const ran = yield* Effect.withSpan(graph.run(), "longhaul.run", {
      attributes: { "longhaul.run.id": live.fence.runId, "longhaul.job": live.job.name },
      captureStackTrace: false
    })
    const book = yield* Passes.bookNow(live)
    const result: RunResult<A> = Object.freeze({
      ...Report.totals(book),
      stopReason: book.status === "done" ? "complete" : "suspended",
      thisProcess: Object.freeze({
        calls: book.calls - live.book.calls,
        spent: Usd.nano(book.spent - live.book.spent),
        rows: book.commitSeq - live.book.commitSeq
      }),
      workflow: live.options.collect === true ? Option.some(ran) : Option.none()
    })
    if (Passes.isFenced(live)) return yield* Worker.takenOver(book.runId)
    publish({ _tag: "Finished", result })
    return result
  })

/** The first node: the manifest, and with `collect` its rows. */
const loadRows = <Row, A, I>(live: Live<Row, A, I>): Effect.Effect<ReadonlyArray<unknown>, RunError> =>
  Effect.gen(function* () {
    const { counts, fence, job, journal, options } = live
    if (live.book.status === "loading") yield* Manifest.load(journal, fence, job)
    const book = yield* Passes.bookNow(live)
    counts.rows = book.rows
    counts.loading = false
    if (options.collect !== true) return []
    // The records alone: results of an older schema are the drift check's matter.
    const rows = Stream.provideService(Report.results(fence.runId, Schema.Unknown), Journal, journal)
    return Chunk.toReadonlyArray(yield* Stream.runCollect(rows)).map((row) => row.record)
  })

/** The limits that were given, in force from now on; what an order has set since the claim stands above them. */
const limit = <Row, A, I>(live: Live<Row, A, I>): Effect.Effect<void, StorageError> =>
  Effect.gen(function* () {
    const { book, fence, journal, limits } = live
    const since = yield* journal.reads.orders(fence.runId, book.orders)
    const set = since.map(({ order }) => (order._tag === "Set" ? Struct.omit(order, "_tag") : {}))
    const heard = since.at(-1)?.n ?? book.orders
    const wanted: Limits = Object.assign({}, limits, ...set.map(defined))
    const verdict = yield* journal.commit({ _tag: "Limits", fence, limits: wanted, heard })
    if (verdict._tag === "Refused") yield* limit(live)
  })

const defined = (limits: Limits): Limits =>
  Object.fromEntries(Object.entries(limits).filter(([, value]) => value !== undefined))

const reported = <Row, A, I>(live: Live<Row, A, I>) =>
  Stream.provideService(Report.results(live.fence.runId, live.job.agent.output), Journal, live.journal)

/** The second node: all pending rows, then the last snapshot. */
const batch = <Row, A, I>(
  live: Live<Row, A, I>,
  publish: Passes.Publish<A>
): Effect.Effect<Workflow.WorkflowResult<Batch<A>>, RunError> =>
  Effect.scoped(
    Effect.gen(function* () {
      const feed = RowLoop.storeFeed(live.store)
      const reused = yield* Reopen.reopen(live, feed)
      // Only now: a run that was refused keeps its limits and settings.
      yield* limit(live)
      const book = yield* Passes.bookNow(live)
      const ended = Passes.endedOf(book)
      publish({ _tag: "Started", runId: book.runId, rows: book.rows, ended })
      if (book.status !== "done" || ended < book.rows) {
        const whole = Passes.run(live, { reused, feed, publish })
        const suspend = (kind: StopReason["kind"], message: string) =>
          Effect.ignore(Effect.zipRight(Effect.sync(feed.flush), Passes.suspendAs(live, { kind, message })))
        const kept = whole.pipe(
          Effect.onInterrupt(() => suspend("interrupted", "interrupted; calls in flight were abandoned")),
          Effect.tapError((error) => suspend("storage", error.message))
        )
        yield* Meter.drained(live.meter, live.options.graceMs ?? 10_000, kept)
      }
      return yield* batchResult(live)
    })
  )

/** The batch in the shape of a workflow's result: one output a chunk, with `collect`; one step for the manifest and one for each chunk. */
const batchResult = <Row, A, I>(live: Live<Row, A, I>): Effect.Effect<Workflow.WorkflowResult<Batch<A>>, RunError> =>
  Effect.gen(function* () {
    const { job, options } = live
    const book = yield* Passes.bookNow(live)
    const outcomes =
      options.collect === true
        ? Chunk.toReadonlyArray(yield* Stream.runCollect(reported(live))).map((row) => row.outcome)
        : []
    const outputs: Record<`chunk_${number}`, ReadonlyArray<Outcome<A>>> = {}
    for (let i = 0; i * job.chunkSize < outcomes.length; i++) {
      const chunk = outcomes.slice(i * job.chunkSize, (i + 1) * job.chunkSize)
      outputs[`chunk_${i}`] = Object.freeze(chunk.flatMap(Option.toArray))
    }
    Object.freeze(outputs)
    const { usage } = Report.totals(book)
    const steps = 1 + Math.ceil(Passes.endedOf(book) / job.chunkSize)
    if (book.status === "done") return { stopReason: "complete", outputs, usage, steps, suspended: Option.none() }
    const suspended = Workflow.suspend({ reason: book.reason?.message ?? "", pending: [] }).suspended
    return { stopReason: "suspended", outputs, usage, steps, suspended: Option.some(suspended) }
  })

/**
 * Where the run is.
 *
 * @since 0.1.0
 */
export const snapshotOf = <Row, A, I>({ counts, fence, meter }: Live<Row, A, I>): Snapshot => {
  const state = meter.state()
  return {
    runId: fence.runId,
    phase: phaseOf(state, counts.loading),
    paused: state.paused,
    rows: counts.rows,
    done: counts.done,
    partial: counts.partial,
    failed: counts.failed,
    spent: state.spent,
    uncertain: state.uncertain,
    working: state.inFlight,
    allowed: allowed(state),
    concurrency: state.maxConcurrency
  }
}

const phaseOf = (state: State, loading: boolean): Phase => {
  if (loading) return "loading"
  if (state.stop !== null) return "stopping"
  if (state.paused !== null) return "paused"
  if (state.provider !== "up") return "provider_down"
  return isCooling(state) ? "cooling" : "running"
}
