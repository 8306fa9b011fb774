/**
 * How the server answers each request: by the same programs that the command and a user's own code call.
 *
 * @since 0.1.0
 */
import * as FileSystem from "@effect/platform/FileSystem"
import * as HttpApiBuilder from "@effect/platform/HttpApiBuilder"
import * as HttpApp from "@effect/platform/HttpApp"
import * as HttpServerRequest from "@effect/platform/HttpServerRequest"
import * as HttpServerResponse from "@effect/platform/HttpServerResponse"
import * as NodeHttpServerRequest from "@effect/platform-node/NodeHttpServerRequest"
import { Context, Effect, Either, Layer, Option, Schedule, Schema, Stream } from "effect"
import { Checkpointer } from "../services/Checkpointer.ts"
import type { RunRefused, StorageError } from "../services/Errors.ts"
import { Journal } from "../services/Journal.ts"
import { Api, Caller, type Page, type Scope } from "./Api.ts"
import { Forbidden, NotFound, type TooMany, Unavailable, type Unprocessable } from "./ApiErrors.ts"
import type { Row, Run } from "./ApiViews.ts"
import type * as EventFeed from "./EventFeed.ts"
import * as FailureGroups from "./FailureGroups.ts"
import * as ProgressLine from "./ProgressLine.ts"
import * as Prometheus from "./Prometheus.ts"
import * as Receipt from "./Receipt.ts"
import * as Report from "./Report.ts"
import * as RunExport from "./RunExport.ts"
import * as ServerAuth from "./ServerAuth.ts"
import { acting, noRun, reading } from "./ServerErrors.ts"
import { ServerRuns, served, within } from "./ServerRuns.ts"
import * as Steering from "./Steering.ts"
import * as Watch from "./Watch.ts"

/** The run, if the caller may see it and has the scope. */
const allowed = (runId: string, scope: Scope) =>
  Effect.gen(function* () {
    yield* need(scope)
    const caller = yield* Caller
    const runs = yield* ServerRuns
    const refused = runs.refused(runId, caller)
    const book = yield* Effect.mapError(reading(Report.bookOf(runId)), (error) =>
      error._tag === "NotFound" && refused !== undefined ? new NotFound({ code: "bad_input", message: refused }) : error
    )
    const settings = yield* served(book.settings)
    if (!ServerAuth.maySee(caller, settings?.server.caller)) return yield* noRun
    return settings
  })

const need = (scope: Scope): Effect.Effect<void, Forbidden, Caller> =>
  Effect.flatMap(Caller, ({ scopes }) =>
    scopes.has(scope)
      ? Effect.void
      : new Forbidden({ code: "scope", message: `this token may not ${scope}: it lacks the scope ${scope}` })
  )

/** A request that changes something: within the caller's rate. */
const changing = <A, E, R>(work: Effect.Effect<A, E, R>) =>
  Effect.gen(function* () {
    const { name } = yield* Caller
    const { config } = yield* ServerRuns
    yield* Effect.tapErrorTag(ServerAuth.withinRate(name, config.requestsPerMinute), "TooMany", retryAfter)
    return yield* work
  })

const retryAfter = ({ retryAfterSeconds }: TooMany) =>
  HttpApp.appendPreResponseHandler((_, response) =>
    Effect.succeed(HttpServerResponse.setHeader(response, "retry-after", String(retryAfterSeconds)))
  )

/** Runs that a list shows: the newest ones. */
const MOST_RUNS = 200

const viewOf = (runId: string): Effect.Effect<Run, NotFound | Unavailable, Journal | ServerRuns> =>
  Effect.gen(function* () {
    const { plain, working } = yield* ServerRuns
    const { phase: _phase, worker: _worker, ...look } = yield* reading(Watch.look(runId))
    const sight = { ...look, reason: plain(look.reason) }
    const live = working(runId)
    if (live === undefined) {
      return { ...sight, phase: "idle", allowed: 0, rowsPerSecond: null, secondsLeft: null }
    }
    const progress = yield* live.handle.progress
    const { allowed, phase } = progress
    const rate = live.rate()
    return {
      ...sight,
      phase,
      working: progress.working,
      allowed,
      rowsPerSecond: rate,
      secondsLeft: ProgressLine.secondsLeft(sight.pending, rate)
    }
  })

const runs = HttpApiBuilder.group(Api, "runs", (handlers) =>
  handlers
    .handle("enrich", ({ headers, payload }) =>
      changing(
        Effect.gen(function* () {
          yield* need("run")
          const { name } = yield* Caller
          const { begin } = yield* ServerRuns
          const begun = begin(name, payload, headers["idempotency-key"])
          return { runId: yield* Effect.tapErrorTag(begun, "TooMany", retryAfter) }
        })
      )
    )
    .handle("jobs", () =>
      Effect.gen(function* () {
        yield* need("read")
        const { config } = yield* ServerRuns
        return {
          jobs: Object.keys(config.jobs),
          sources: Object.keys(config.sources),
          maxRunUsd: config.maxRunUsd ?? config.maxTotalUsd,
          maxConcurrency: config.maxConcurrency
        }
      })
    )
    .handle("list", () =>
      Effect.gen(function* () {
        yield* need("read")
        const caller = yield* Caller
        const { reads } = yield* Journal
        const books = yield* reading(reads.books)
        const seen = yield* Effect.filter(books, ({ settings }) =>
          Effect.map(served(settings), (found) => ServerAuth.maySee(caller, found?.server.caller))
        )
        return yield* Effect.forEach(seen.slice(-MOST_RUNS).reverse(), ({ runId }) => viewOf(runId))
      })
    )
    .handle("run", ({ path: { runId } }) => Effect.zipRight(allowed(runId, "read"), viewOf(runId)))
    .handle("rows", ({ path: { runId }, urlParams }) =>
      Effect.zipRight(allowed(runId, "read"), rowsOf(runId, urlParams))
    )
    .handle("calls", ({ path: { rowId, runId } }) =>
      Effect.zipRight(
        allowed(runId, "read"),
        Effect.map(reading(Receipt.rowCalls(runId, rowId)), (calls) =>
          calls.map((call) => ({ ...call, requestId: Option.getOrNull(call.requestId) }))
        )
      )
    )
    .handle("failures", ({ path: { runId } }) =>
      Effect.zipRight(allowed(runId, "read"), reading(FailureGroups.groups(runId)))
    )
    .handle("receipt", ({ path: { runId } }) =>
      Effect.gen(function* () {
        yield* allowed(runId, "read")
        const receipt = yield* reading(Receipt.receipt(runId))
        return { ...receipt, reason: (yield* ServerRuns).plain(receipt.reason) }
      })
    )
    .handle("checkpoints", ({ path: { runId } }) => Effect.zipRight(allowed(runId, "read"), checkpointsOf(runId)))
    .handleRaw("export", ({ path: { runId }, urlParams }) =>
      Effect.flatMap(allowed(runId, "read"), (settings) =>
        exported(runId, settings?.server.job, urlParams.format ?? "csv", urlParams.asOf)
      )
    )
    .handleRaw("events", ({ path: { runId } }) => Effect.zipRight(allowed(runId, "read"), eventsOf(runId)))
)

/** Rows that a page looks at, at most: a search goes on with the next page. */
const MOST_SEEN = 10_000

const rowsOf = (runId: string, { after = -1, end, limit = 100, search }: typeof Page.Type) =>
  Effect.gen(function* () {
    const wanted = search?.toLowerCase()
    const found: Array<Row> = []
    let seen = 0
    let last: number | null = null
    const rows = Stream.map(Report.results(runId, Schema.Unknown, { after }), rowOf)
    yield* reading(
      Stream.runForEachWhile(rows, (row) =>
        Effect.sync(() => {
          if (found.length === limit || seen === MOST_SEEN) return false
          seen++
          last = row.seq
          const matches = wanted === undefined || JSON.stringify(row).toLowerCase().includes(wanted)
          if (matches && (end === undefined || row.end === end)) found.push(row)
          return true
        })
      )
    )
    return { rows: found, next: found.length === limit || seen === MOST_SEEN ? last : null }
  })

const rowOf = ({ id, outcome, record, seq }: Report.ReportedRow<unknown>): Row =>
  Option.match(outcome, {
    onNone: (): Row => ({ seq, id, record, end: "pending" }),
    onSome: Either.match({
      onLeft: ({ category, message, reason, source }): Row => ({
        seq,
        id,
        record,
        end: "failed",
        failure: { category, source, reason, message }
      }),
      onRight: ({ output, parsed, partial, usage }): Row =>
        partial
          ? { seq, id, record, end: "partial", output, cost: usage.cost }
          : { seq, id, record, end: "done", parsed, cost: usage.cost }
    })
  })

const checkpointsOf = (runId: string) =>
  Effect.gen(function* () {
    const checkpointer = yield* Checkpointer
    const versions = yield* reading(checkpointer.listVersions(runId))
    const found = yield* Effect.forEach(versions, (version) =>
      Effect.option(checkpointer.get(runId, version, Report.Progress))
    )
    return found.flatMap((one) =>
      Option.match(Option.flatten(one), {
        onNone: () => [],
        onSome: ({ at, state, status, version }) => [{ at, status, version, progress: state }]
      })
    )
  })

const types = {
  csv: "text/csv; charset=utf-8",
  jsonl: "application/x-ndjson",
  parquet: "application/vnd.apache.parquet"
}

/** Written whole beside, then sent: a download is never half of a run. */
const exported = (runId: string, jobName: string | undefined, format: keyof typeof types, asOf: number | undefined) =>
  Effect.gen(function* () {
    const job = jobName === undefined ? undefined : (yield* ServerRuns).job(jobName)
    if (job === undefined) {
      return yield* new NotFound({
        code: "wrong_job",
        message: "this run's job is not one of this server's: export it with the command"
      })
    }
    const fs = yield* FileSystem.FileSystem
    const directory = yield* Effect.orDie(fs.makeTempDirectoryScoped({ prefix: "longhaul-" }))
    const file = `${directory}/rows.${format}`
    yield* reading(RunExport.exportRun(job, runId, file, { asOf }))
    return yield* Effect.orDie(
      HttpServerResponse.file(file, {
        headers: {
          "content-type": types[format],
          "content-disposition": `attachment; filename="${runId.replaceAll(/[^\w.-]/g, "_")}.${format}"`
        }
      })
    )
  })

const encodeRun = (view: Run) => JSON.stringify(view)
const textOf = ({ data, name }: EventFeed.Entry, id?: string) =>
  `${id === undefined ? "" : `id: ${id}\n`}event: ${name}\ndata: ${data}\n\n`

/** A listener is told that the line lives, and one that takes nothing is let go, in milliseconds. */
const BEAT_MS = 10_000
const SILENCE_MS = 60_000

const eventsOf = (runId: string) =>
  Effect.gen(function* () {
    const context = yield* Effect.context<Journal | ServerRuns>()
    const request = yield* HttpServerRequest.HttpServerRequest
    const { headers } = request
    const live = Context.get(context, ServerRuns).working(runId)
    const snapshot = (n: number, name: string) =>
      Effect.map(viewOf(runId), (view): EventFeed.Entry => ({ n, name, data: encodeRun(view) }))
    const seen = headers["last-event-id"] || undefined
    const entries = live === undefined ? watched(runId, seen) : heard(live.feed, seen, snapshot)
    const beats = Stream.schedule(Stream.repeatValue(": alive\n\n"), Schedule.spaced(BEAT_MS))
    const lines = Stream.merge(entries, beats, { haltStrategy: "left" })
    // Who does not read any more is let go: the line would else be full for ever.
    NodeHttpServerRequest.toIncomingMessage(request).socket.setTimeout(SILENCE_MS)
    return HttpServerResponse.stream(
      lines.pipe(
        Stream.provideContext(context),
        Stream.catchAll(() => Stream.empty),
        Stream.encodeText
      ),
      { contentType: "text/event-stream", headers: { "x-accel-buffering": "no" } }
    )
  })

/** A run that this server works on. Who comes anew gets where it is, and what happens from then on. */
const heard = <E, R>(
  feed: EventFeed.EventFeed,
  seen: string | undefined,
  snapshot: (n: number, name: string) => Effect.Effect<EventFeed.Entry, E, R>
) => {
  const gap = (n: number) => snapshot(n, "gap")
  const latest = feed.latest()
  const entries =
    seen === undefined
      ? Stream.concat(Stream.fromEffect(snapshot(latest, "snapshot")), feed.after(latest, gap))
      : feed.after(feed.numberOf(seen), gap)
  return Stream.map(entries, (entry) => textOf(entry, feed.idOf(entry.n)))
}

/** A run that another process works on, or nobody: a look each second, for as long as it may go on. Who has `seen` events has missed some. */
const watched = (runId: string, seen: string | undefined) => {
  const looks = Stream.mapEffect(Stream.drop(Watch.watch(runId, { everyMs: 1_000 }), 1), () => viewOf(runId))
  const lookOf = (name: string) => (view: Run) => textOf({ n: 0, name, data: encodeRun(view) })
  return Stream.concat(
    Stream.map(Stream.fromEffect(viewOf(runId)), lookOf(seen === undefined ? "snapshot" : "gap")),
    Stream.map(looks, lookOf("snapshot"))
  )
}

type Order = (
  runId: string,
  options: Steering.SteerOptions
) => Effect.Effect<Report.Totals, Unprocessable | RunRefused | StorageError, Journal | ServerRuns>

const steer = (runId: string, order: Order) =>
  changing(
    Effect.gen(function* () {
      yield* allowed(runId, "steer")
      const { name } = yield* Caller
      yield* acting(order(runId, { by: name }))
      return yield* viewOf(runId)
    })
  )

const steering = HttpApiBuilder.group(Api, "steering", (handlers) =>
  handlers
    .handle("pause", ({ path: { runId }, payload: { message } }) =>
      steer(runId, (id, options) => Steering.pause(id, { ...options, ...(message === undefined ? {} : { message }) }))
    )
    .handle("unpause", ({ path: { runId } }) => steer(runId, Steering.unpause))
    .handle("approve", ({ path: { runId } }) => steer(runId, Steering.approve))
    .handle("drain", ({ path: { runId } }) => steer(runId, Steering.drain))
    .handle("cancel", ({ path: { runId } }) => steer(runId, Steering.cancel))
    .handle("resume", ({ path: { runId } }) =>
      changing(
        Effect.gen(function* () {
          yield* allowed(runId, "run")
          yield* Effect.tapErrorTag((yield* ServerRuns).resume(runId), "TooMany", retryAfter)
          return yield* viewOf(runId)
        })
      )
    )
    .handle("limits", ({ path: { runId }, payload }) =>
      steer(runId, (id, options) => {
        const { budget, concurrency, ...rest } = payload
        const limits = { maxCostUsd: budget, maxConcurrency: concurrency, ...rest }
        return Effect.flatMap(ServerRuns, ({ config }) =>
          Effect.zipRight(within(config, payload), Steering.set(id, limits, options))
        )
      })
    )
    .handle("requeue", ({ path: { runId }, payload: { rows } }) =>
      changing(
        Effect.gen(function* () {
          yield* allowed(runId, "steer")
          const { name } = yield* Caller
          const which = typeof rows === "string" ? rows : { rows }
          return { rows: yield* acting(Steering.requeue(runId, which, { by: name })) }
        })
      )
    )
)

const health = HttpApiBuilder.group(Api, "health", (handlers) =>
  handlers.handle("health", () =>
    Effect.gen(function* () {
      const { reads } = yield* Journal
      // That the database answers.
      yield* Effect.mapError(
        reads.book(""),
        ({ reason }) => new Unavailable({ code: reason, message: "the database does not answer" })
      )
      return { status: "ok" as const, active: (yield* ServerRuns).active() }
    })
  )
)

const metrics = HttpApiBuilder.group(Api, "metrics", (handlers) =>
  handlers.handle("metrics", () => Effect.zipRight(need("read"), Prometheus.text))
)

/**
 * All handlers.
 *
 * @since 0.1.0
 */
export const layer = Layer.provide(HttpApiBuilder.api(Api), [runs, steering, health, metrics])
