/**
 * The row fan-out of a run: long-lived workers pull rows from the manifest page by page, ask the agent, and append each row's outcome. A chunk is a page and the
 * cadence of snapshots, never a barrier.
 *
 * @since 0.1.0
 */
import { type Clock, Deferred, Effect, Either, Exit, FiberId, FiberSet, Schema } from "effect"
import type { Fence, OutcomeFacts, OutcomeRecord, RowRecord } from "../services/Book.ts"
import type { LLMError, RunStopped, StorageError } from "../services/Errors.ts"
import * as Failure from "../services/Failure.ts"
import { deepFreeze } from "../services/Freeze.ts"
import * as Identity from "../services/Identity.ts"
import type { JournalShape } from "../services/Journal.ts"
import type { ChatRequest } from "../services/LLM.ts"
import type { Meter } from "../services/Meter.ts"
import { AgentResult, type Outcome } from "../services/Outcome.ts"
import * as Recipe from "../services/Recipe.ts"
import type { StoreShape } from "../services/Store.ts"
import * as Usage from "../services/Usage.ts"
import { primary } from "./FanOut.ts"
import { type Invoker, requestHash } from "./Invoker.ts"
import type { Job } from "./Job.ts"

/** One row's end, as the loop reports it. @since 0.1.0 */
export interface Ended<A> {
  readonly seq: number
  readonly id: string
  readonly outcome: Outcome<A>
  readonly fromStore: boolean
  /** Characters of the row as JSON. */
  readonly inputLength: number
}

/** @since 0.1.0 */
export interface LoopOptions<Row, A, I> {
  readonly job: Job<Row, A, I>
  readonly journal: JournalShape
  readonly store: StoreShape
  readonly feed: StoreFeed
  readonly meter: Meter
  readonly clock: Clock.Clock
  readonly fence: Fence
  /** Whether the source's cells are text. */
  readonly text: boolean
  /** How many rows are worked on at once, and who tells of more later. */
  readonly width: number
  readonly onWider: (listen: (more: number) => void) => void
  /** Rows that took a call before, in their present epoch: what the store has for them by now saves none. */
  readonly called: ReadonlySet<number>
  /** Only these rows, if any are named. */
  readonly only: ReadonlySet<number> | undefined
  /** How many rows have ended so far in this run: snapshots fall on its multiples of the chunk size. */
  readonly ended: number
  readonly failFast: boolean
  readonly spans: boolean
  readonly onRow: (ended: Ended<A>) => void
  readonly onSnapshot: (rows: number) => void
}

/**
 * Works until no pending row is left or the run stops. Rows that were not asked stay pending.
 *
 * @since 0.1.0
 */
export const run = <Row, A, I>(options: LoopOptions<Row, A, I>): Effect.Effect<void, StorageError, Invoker> =>
  Effect.suspend(() => {
    const next = puller(options)
    const work = worker(options)
    const stopFor = (error: StorageError) =>
      Effect.sync(() => options.meter.stop({ kind: "storage", message: error.message }))
    const loop: Effect.Effect<void, StorageError, Invoker> = Effect.gen(function* () {
      while (options.meter.state().stop === null) {
        const row = yield* Effect.tapError(next, stopFor)
        if (row === undefined) return
        yield* work(row)
      }
    })
    let failed: StorageError | undefined
    const member = Effect.catchAll(loop, (error) =>
      Effect.sync(() => {
        failed ??= error
      })
    )
    // No error goes through forEach: it would interrupt the others, and abort their calls.
    const crew = (width: number) => Effect.forEach(Array(width), () => member, { concurrency: width, discard: true })
    return Effect.scoped(
      Effect.gen(function* () {
        const more = yield* FiberSet.make<void>()
        const start = yield* FiberSet.runtime(more)<Invoker>()
        options.onWider((width) => void start(crew(width)))
        yield* crew(options.width)
        yield* FiberSet.awaitEmpty(more)
        return failed === undefined ? undefined : yield* failed
      })
    )
  })

/** A row's request as rendered, the key of its result, and what it is made with. @since 0.1.0 */
export interface Asked {
  readonly request: ChatRequest
  readonly key: string
  readonly made: string
}

/** A row with its request rendered and its key known, or the reason why it cannot be asked. */
interface Prepared<A> {
  readonly row: RowRecord
  readonly asked: Either.Either<Asked, Failure.Failure>
  readonly stored: AgentResult<A> | undefined
}

/** The key under which a row's result is stored: the row's identity and version, and all that its request and reading depend on. */
const keyOf = <Row, A, I>(job: Job<Row, A, I>, row: RowRecord, hash: string): Effect.Effect<string> =>
  Effect.orDie(Identity.idempotencyKey(job.scope, job.name, row.id, row.version, hash, job.agent.decoder))

/**
 * Renders a row's request and key.
 *
 * @since 0.1.0
 */
export const prepare = Effect.fnUntraced(function* <Row, A, I>(job: Job<Row, A, I>, row: RowRecord, text: boolean) {
  const decoded = job.decode(JSON.parse(row.value), text)
  if (Either.isLeft(decoded)) return Either.left(unfit(decoded.left.message))
  const request = Either.try({ try: () => job.agent.request(decoded.right), catch: Failure.fromUnknown })
  if (Either.isLeft(request)) return Either.left(request.left)
  const key = yield* keyOf(job, row, yield* requestHash(request.right))
  const { promptVersion, reading } = job.agent
  const made = Recipe.of(request.right, { promptVersion, reading, version: row.version })
  const asked: Asked = { request: request.right, key, made }
  return Either.right(asked)
})

const unfit = (message: string) =>
  Failure.make({ category: "PERMANENT", source: "row", reason: "bad_row", message, cause: [] })

/** Hands out pending rows in order. One worker reads the next page while the others wait for it. */
const puller = <Row, A, I>(options: LoopOptions<Row, A, I>): Effect.Effect<Prepared<A> | undefined, StorageError> => {
  const { fence, job, journal, only, spans, store, text } = options
  const schema = AgentResult(job.agent.output)
  let page: Array<Prepared<A>> = []
  let at = 0
  let after = -1
  let ended = false
  let reading: Deferred.Deferred<void> | undefined

  const read = Effect.gen(function* () {
    const pending = yield* journal.reads.pending(fence.runId, after, job.chunkSize)
    const rows = only === undefined ? pending : pending.filter(({ seq }) => only.has(seq))
    const asked = yield* Effect.forEach(rows, (row) => prepare(job, row, text))
    const keys = asked.flatMap((either) => (Either.isRight(either) ? [either.right.key] : []))
    // A re-run asks anew: what it would find in the store is the result that is to be replaced.
    const fresh = rows.some((row) => row.epoch === 0)
    const stored = fresh ? yield* store.getMany(keys, schema) : new Map<string, AgentResult<A>>()
    page = rows.flatMap((row, i) => {
      const one = asked[i]
      if (one === undefined) return []
      const hit = Either.isRight(one) && row.epoch === 0 ? stored.get(one.right.key) : undefined
      return [{ row, asked: one, stored: hit }]
    })
    at = 0
    after = pending.at(-1)?.seq ?? after
    ended = pending.length === 0
  })

  const refill = Effect.suspend(() => {
    if (reading !== undefined) return Deferred.await(reading)
    const own = Deferred.unsafeMake<void>(FiberId.none)
    reading = own
    return Effect.ensuring(
      spans ? Effect.withSpan(read, "longhaul.chunk", { captureStackTrace: false }) : read,
      Effect.sync(() => {
        reading = undefined
        Deferred.unsafeDone(own, Effect.void)
      })
    )
  })

  const pull: Effect.Effect<Prepared<A> | undefined, StorageError> = Effect.suspend(() => {
    if (at < page.length) return Effect.succeed(page[at++])
    return ended ? Effect.succeed(undefined) : Effect.zipRight(refill, pull)
  })
  return pull
}

type Answered<A> = readonly [Either.Either<AgentResult<A>, LLMError>, OutcomeFacts]

/** What is done with one row: from the store, or asked; then its outcome. */
const worker = <Row, A, I>(options: LoopOptions<Row, A, I>) => {
  const { called, job, meter, spans } = options
  const finish = finisher(options)

  const settle = (row: RowRecord, made: Made, exit: Exit.Exit<Answered<A>, RunStopped | StorageError>) => {
    if (Exit.isSuccess(exit))
      return finish(row, made, Either.mapLeft(exit.value[0], Failure.fromLLMError), exit.value[1])
    const reason = primary(exit.cause)
    if (reason._tag === "Die") return finish(row, made, Either.left(Failure.fromUnknown(reason.defect)), noFacts)
    if (reason._tag === "Interrupt") return Effect.interrupt
    // The run stops and the row stays pending; what stopped it is told elsewhere.
    return Effect.void
  }

  return ({ asked, row, stored }: Prepared<A>): Effect.Effect<void, never, Invoker> => {
    if (Either.isLeft(asked)) return finish(row, neverMade, Either.left(asked.left), { ...noFacts, unasked: true })
    const { request } = asked.right
    if (stored !== undefined) {
      return finish(row, asked.right, Either.right(deepFreeze({ ...stored, usage: Usage.zero })), {
        ...noFacts,
        storeHit: !called.has(row.seq)
      })
    }
    const place = { seq: row.seq, epoch: row.epoch }
    const work = Effect.flatMap(
      Effect.exit(meter.row(row.seq, job.agent.work(request, place, isAbout(job, row.id)))),
      (exit) => settle(row, asked.right, exit)
    )
    return spans
      ? Effect.withSpan(work, "longhaul.row", {
          attributes: { "longhaul.run.id": row.runId, "longhaul.row.seq": row.seq },
          captureStackTrace: false
        })
      : work
  }
}

type Made = Pick<Asked, "key" | "made">
const neverMade: Made = { key: "", made: "" }

/** A row that took nothing but its own calls. @since 0.1.0 */
export const noFacts: OutcomeFacts = {
  storeHit: false,
  memoHits: 0,
  replays: 0,
  freeRepairs: 0,
  unasked: false,
  fallback: false
}

/** Whether an answer is about the row that was asked, where it says so: the row's own id is the truth. @since 0.1.0 */
export const isAbout = <Row, A, I>({ outputId }: Job<Row, A, I>, id: string) => {
  if (outputId === undefined) return undefined
  return (value: A): string | undefined => {
    const said = String(outputId(value))
    return said === id
      ? undefined
      : `the answer is about id ${JSON.stringify(said)}, but it must be about ${JSON.stringify(id)}`
  }
}

/** Appends a row's outcome, the snapshot that falls due with it, and hands the result on to the store. */
const finisher = <Row, A, I>(options: LoopOptions<Row, A, I>) => {
  const { clock, fence, job, journal, meter } = options
  const encode = encoder(job.agent.output)
  let ended = options.ended

  return (row: RowRecord, { key, made }: Made, reached: Outcome<A>, facts: OutcomeFacts): Effect.Effect<void> =>
    Effect.sync(() => {
      const [outcome, value] = encode(reached)
      const { epoch, seq } = row
      const record = { runId: fence.runId, seq, epoch, key, fallback: facts.fallback, made, value, ...kindOf(outcome) }
      journal.append({ _tag: "Outcome", fence, outcome: record, facts })
      ended++
      if (ended % job.chunkSize === 0) {
        const at = clock.unsafeCurrentTimeMillis()
        journal.append({ _tag: "RunSnapshot", fence, status: "RUNNING", keep: job.keep, at })
        options.onSnapshot(ended)
      }
      // What another model answered is not the result of this key: no other run may find it there.
      if (record.kind === "done" && !facts.fallback && !facts.storeHit) options.feed.add(key, value, epoch > 0)
      options.onRow({ seq, id: row.id, outcome, fromStore: facts.storeHit, inputLength: row.value.length })
      if (options.failFast && Either.isLeft(outcome)) {
        meter.stop({ kind: "fail_fast", message: `row ${row.id} failed: ${outcome.left.message}` })
      }
    })
}

/** An outcome and its JSON; a result that its own schema cannot write is a failure of the row. @since 0.1.0 */
export const encoder = <A, I>(output: Schema.Schema<A, I>) => {
  // One schema for each side, as their union tries the other first.
  const failed = Schema.encodeEither(Schema.parseJson(Failure.Failure))
  const ended = Schema.encodeEither(Schema.parseJson(AgentResult(output)))
  return (outcome: Outcome<A>): readonly [Outcome<A>, string] => {
    const json = Either.isLeft(outcome) ? failed(outcome.left) : ended(outcome.right)
    if (Either.isRight(json)) return [outcome, json.right]
    const failure = Failure.fromUnknown(json.left)
    return [Either.left(failure), JSON.stringify(failure)]
  }
}

/** Collects finished results and hands them to the store sorted by key: keys are hashes, and one by one each would touch a page of its own. @since 0.1.0 */
export interface StoreFeed {
  /** `again`: the result of a re-run, which replaces the stored one. */
  readonly add: (key: string, json: string, again: boolean) => void
  readonly flush: () => void
}

/**
 * A feed into a store.
 *
 * @since 0.1.0
 */
export const storeFeed = (store: StoreShape): StoreFeed => {
  const first: Array<readonly [string, string]> = []
  const again: Array<readonly [string, string]> = []
  const drain = (entries: Array<readonly [string, string]>) => entries.splice(0).sort(([a], [b]) => (a < b ? -1 : 1))
  let size = 0
  const flush = () => {
    size = 0
    store.putMany(drain(first))
    store.putMany(drain(again), true)
  }
  return {
    add: (key, json, isAgain) => {
      const entries = isAgain ? again : first
      entries.push([key, json])
      size += json.length
      // A result may have megabytes: not only their number counts.
      if (entries.length >= 2_000 || size >= 8_000_000) flush()
    },
    flush
  }
}

const kindOf = <A>(outcome: Outcome<A>): Pick<OutcomeRecord, "kind" | "category"> =>
  Either.match(outcome, {
    onLeft: (failure) => ({ kind: "failed", category: failure.category }),
    onRight: (result) => ({ kind: result.partial ? "partial" : "done", category: "" })
  })
