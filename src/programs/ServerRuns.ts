/**
 * The runs of a server: begun over HTTP, gone on with after a restart, each with a budget of its own under the server's cap.
 *
 * @since 0.1.0
 */
import {
  Clock,
  type ConfigError,
  Context,
  Deferred,
  Effect,
  ExecutionStrategy,
  Exit,
  Fiber,
  FiberId,
  Layer,
  Option,
  Schema,
  Scope,
  Stream
} from "effect"
import * as Budget from "../services/Budget.ts"
import type { Checkpointer } from "../services/Checkpointer.ts"
import type { InputError, StopReason, StorageError } from "../services/Errors.ts"
import * as Identity from "../services/Identity.ts"
import { Journal } from "../services/Journal.ts"
import type { LLM } from "../services/LLM.ts"
import * as MonotonicTime from "../services/MonotonicTime.ts"
import type { Store } from "../services/Store.ts"
import type { Caller, Enrich } from "./Api.ts"
import { Conflict, TooMany, Unavailable, Unprocessable } from "./ApiErrors.ts"
import * as Enrichment from "./Enrichment.ts"
import * as EventFeed from "./EventFeed.ts"
import * as EventLine from "./EventLine.ts"
import type { Job } from "./Job.ts"
import * as JobFile from "./JobFile.ts"
import * as JobSettings from "./JobSettings.ts"
import * as ProgressLine from "./ProgressLine.ts"
import * as Report from "./Report.ts"
import { maySee } from "./ServerAuth.ts"
import type { ServerConfig } from "./ServerConfig.ts"
import { acting, type BeginError, toBeginError } from "./ServerErrors.ts"

/** The pool of all runs that a server begins. @since 0.1.0 */
export const POOL = "server"

/** A run that this server works on. @since 0.1.0 */
export interface Working {
  readonly handle: Enrichment.Handle<unknown>
  readonly feed: EventFeed.EventFeed
  /** Rows a second, over the last half minute. */
  readonly rate: () => number
}

/** @since 0.1.0 */
export interface ServerRunsShape {
  readonly config: ServerConfig
  /** Begins a run, and gives its id. The same caller and key again give the same run; with another request they are refused. */
  readonly begin: (caller: string, asked: Enrich, key: string | undefined) => Effect.Effect<string, BeginError>
  /** Goes on with a run that nobody works on; nothing where this server does already. */
  readonly resume: (runId: string) => Effect.Effect<void, BeginError>
  readonly working: (runId: string) => Working | undefined
  readonly active: () => number
  /** Why a run that this caller began here is not in the database: its rows could not be listed. */
  readonly refused: (runId: string, caller: Context.Tag.Service<Caller>) => string | undefined
  /** Why a run is suspended, without a path of this machine. */
  readonly plain: (reason: StopReason | null) => StopReason | null
  readonly job: (name: string) => Job<unknown, unknown> | undefined
}

/** @since 0.1.0 */
export class ServerRuns extends Context.Tag("longhaul/ServerRuns")<ServerRuns, ServerRunsShape>() {}

/**
 * The runs of one server, for as long as the scope is open, with `spans` if somebody looks at them; closing it drains them. Runs that a crash or a stop of the server cut short go on at once.
 *
 * @since 0.1.0
 */
export const layer = (
  config: ServerConfig,
  spans: boolean
): Layer.Layer<ServerRuns, ConfigError.ConfigError | InputError | StorageError, Journal | Store | Checkpointer> =>
  Layer.scoped(
    ServerRuns,
    Effect.tap(make(config, spans), (runs) => goOn(runs))
  )

interface Prepared {
  readonly job: Job<unknown, unknown>
  readonly llm: Context.Context<LLM>
}

const make = (config: ServerConfig, spans: boolean) =>
  Effect.gen(function* () {
    const services = yield* Effect.context<Journal | Store | Checkpointer>()
    const { location, reads } = Context.get(services, Journal)
    const hide = hiding(config, location)
    // All drain at once.
    const scope = yield* Effect.flatMap(Effect.scope, (outer) => Scope.fork(outer, ExecutionStrategy.parallel))
    const jobs = yield* prepared(config)
    const working = new Map<string, Working>()
    const begun = new Map<string, Deferred.Deferred<void, BeginError>>()
    const callers = new Map<string, string>()
    /** Runs that are over, and not yet given back. */
    const leaving = new Map<string, Deferred.Deferred<void>>()
    const refused = new Map<string, { readonly caller: string; readonly message: string }>()

    /**
     * Of those that begin or resume the same run at the same time the first does it, and all get its end. It is a fiber of the server's: who asked may hang up, and what is forked in it can be interrupted
     * when the server stops.
     */
    const once = (runId: string, work: Effect.Effect<void, BeginError>): Effect.Effect<void, BeginError> =>
      Effect.uninterruptibleMask((restore) =>
        Effect.suspend(() => {
          const before = begun.get(runId)
          if (before !== undefined) return restore(Deferred.await(before))
          const done = Deferred.unsafeMake<void, BeginError>(FiberId.none)
          begun.set(runId, done)
          return Effect.flatMap(Effect.forkIn(Effect.interruptible(work), scope), (fiber) => {
            fiber.addObserver((exit) => {
              begun.delete(runId)
              Deferred.unsafeDone(done, Exit.isInterrupted(exit) ? Exit.fail(stopping) : exit)
            })
            return restore(Deferred.await(done))
          })
        })
      )

    /** A place among the caller's active runs, kept if the work succeeds. */
    const counted = (runId: string, caller: string, work: Effect.Effect<void, BeginError>) =>
      Effect.suspend((): Effect.Effect<void, BeginError> => {
        if ([...callers.values()].filter((name) => name === caller).length >= config.maxActive) {
          return tooManyRuns(config.maxActive)
        }
        callers.set(runId, caller)
        return Effect.onError(work, () => Effect.sync(() => callers.delete(runId)))
      })

    /** Starts or resumes, and keeps the run until it ends. */
    const launch = (
      settings: Served,
      runId: string,
      budget: Budget.BudgetOptions,
      canary: number | undefined
    ): Effect.Effect<void, BeginError> =>
      Effect.gen(function* () {
        const found = jobs.get(settings.server.job)
        if (found === undefined) return yield* unknownJob(settings.server.job)
        const job = yield* JobSettings.overridden(found.job, settings)
        const own = yield* Scope.fork(scope, ExecutionStrategy.sequential)
        const handle = yield* Enrichment.start(job, {
          runId,
          canary,
          spans,
          settings: yield* Effect.orDie(Schema.encode(JobSettings.SettingsJson)(settings))
        }).pipe(
          // Innermost: the services below are a whole context, which has the server's scope.
          Scope.extend(own),
          Effect.provideService(
            Budget.Budget,
            Budget.make({ ...budget, pool: { id: POOL, maxCostUsd: config.maxTotalUsd } })
          ),
          Effect.provide(found.llm),
          Effect.provide(services),
          Effect.onError(() => Scope.close(own, Exit.void))
        )
        const rateAt = ProgressLine.recentRate()
        let rate = 0
        const feed = EventFeed.make(yield* Effect.sync(() => crypto.randomUUID().slice(0, 8)))
        working.set(runId, { handle, feed, rate: () => rate })
        refused.delete(runId)
        const tick = Effect.gen(function* () {
          const snapshot = yield* handle.progress
          rate = rateAt(ProgressLine.markOf(yield* MonotonicTime.now, snapshot))
          feed.append("Progress", EventLine.progress(snapshot, rate))
        })
        const telling = yield* Effect.forkIn(
          Stream.runForEach(handle.events, (event) =>
            Effect.sync(() => feed.append(event._tag, hide(EventLine.event(event))))
          ),
          own
        )
        const ended = handle.await.pipe(
          // Its last events are told before the feed ends.
          Effect.onExit((exit) => (Exit.isInterrupted(exit) ? Effect.void : Fiber.await(telling))),
          Effect.matchEffect({
            onFailure: (error) =>
              Effect.zipRight(
                Effect.logError(`run ${runId} stopped: ${error.message}`),
                Effect.sync(() => {
                  const { message } = toBeginError(error, hide)
                  feed.append("Failed", JSON.stringify({ _tag: "Failed", message }))
                  remember(refused, runId, { caller: settings.server.caller, message })
                })
              ),
            onSuccess: ({ reason, status }) => Effect.logInfo(`run ${runId} ended: ${reason?.message ?? status}`)
          }),
          Effect.ensuring(
            Effect.suspend(() => {
              const left = Deferred.unsafeMake<void>(FiberId.none)
              leaving.set(runId, left)
              working.delete(runId)
              callers.delete(runId)
              feed.end()
              return Effect.ensuring(
                Scope.close(own, Exit.void),
                Effect.sync(() => {
                  leaving.delete(runId)
                  Deferred.unsafeDone(left, Effect.void)
                })
              )
            })
          )
        )
        yield* Effect.forkIn(Effect.forever(Effect.delay(tick, "1 second")), own)
        yield* Effect.forkIn(ended, scope)
        yield* Effect.logInfo(`run ${runId} begins`)
      }).pipe((work) => acting(work, hide))

    const begin: ServerRunsShape["begin"] = (caller, asked, key) =>
      Effect.gen(function* () {
        const settings = yield* settingsOf(config, jobs, caller, asked)
        const { job } = settings.server
        const named = key === undefined ? yield* newRunId(job) : yield* keyedRunId(caller, key)
        const { budget, canary, maxCalls, requestsPerMinute, tokensPerMinute } = asked
        const maxConcurrency = asked.concurrency ?? Math.min(8, config.maxConcurrency)
        const limits = { maxCostUsd: budget, maxConcurrency, maxCalls, requestsPerMinute, tokensPerMinute }
        const book = acting(reads.book(named))
        const fresh = counted(named, caller, launch(settings, named, limits, canary))
        yield* once(
          named,
          Effect.flatMap(book, (found) => (found === undefined ? fresh : Effect.void))
        )
        const found = yield* book
        // Its rows could not be listed, and it is gone already: who asks about it is told why.
        if (found === undefined) return named
        const known = yield* served(found.settings)
        return known?.server.hash === settings.server.hash ? named : yield* otherRequest
      })

    const resume: ServerRunsShape["resume"] = (runId) =>
      Effect.gen(function* () {
        if (working.has(runId)) return
        const book = yield* acting(Effect.provide(Report.bookOf(runId), services))
        const settings = yield* served(book.settings)
        if (settings === undefined) return yield* notServed(runId)
        const again = counted(runId, settings.server.caller, launch(settings, runId, {}, undefined))
        yield* once(
          runId,
          Effect.suspend(() => {
            if (working.has(runId)) return Effect.void
            const left = leaving.get(runId)
            return left === undefined ? again : Effect.zipRight(Deferred.await(left), again)
          })
        )
      })

    return ServerRuns.of({
      config,
      begin,
      resume,
      working: (runId) => working.get(runId),
      active: () => working.size,
      refused: (runId, caller) => {
        const found = refused.get(runId)
        return maySee(caller, found?.caller) ? found?.message : undefined
      },
      plain: (reason) => (reason === null ? null : { ...reason, message: hide(reason.message) }),
      job: (name) => jobs.get(name)?.job
    })
  })

/** Each job is loaded once, and its provider with it: what the provider says of its limits and its health holds for all runs. */
const prepared = (config: ServerConfig) =>
  Effect.gen(function* () {
    const jobs = new Map<string, Prepared>()
    for (const [name, { file, llm, model, profile, timeout }] of Object.entries(config.jobs)) {
      const loaded = yield* JobFile.load(file)
      const provider = JobSettings.providerOf({ job: file, llm, model, profile, timeout }, loaded.simulated)
      jobs.set(name, { job: loaded.job, llm: yield* Layer.build(provider) })
    }
    return jobs
  })

/** What was cut short goes on; what cannot is in the log. */
const goOn = (runs: ServerRunsShape) =>
  Effect.gen(function* () {
    const { reads } = yield* Journal
    for (const { reason, runId, settings, status } of yield* reads.books) {
      const isCut =
        status === "suspended" ? reason?.kind === "interrupted" : status === "running" || status === "loading"
      if (!isCut || (yield* served(settings)) === undefined) continue
      yield* Effect.catchAll(runs.resume(runId), (error) =>
        Effect.logWarning(`run ${runId} cannot go on: ${error.message}`)
      )
    }
  })

type Served = JobSettings.Settings & { readonly server: NonNullable<JobSettings.Settings["server"]> }

/**
 * What a run's record says of the request that began it; `undefined`: it was not begun over HTTP.
 *
 * @since 0.1.0
 */
export const served = (settings: string): Effect.Effect<Served | undefined> =>
  Effect.map(Effect.option(Schema.decode(JobSettings.SettingsJson)(settings)), (found) =>
    Option.match(found, {
      onNone: () => undefined,
      onSome: ({ server, ...rest }) => (server === undefined ? undefined : { ...rest, server })
    })
  )

const settingsOf = (
  config: ServerConfig,
  jobs: ReadonlyMap<string, Prepared>,
  caller: string,
  asked: Enrich
): Effect.Effect<Served, Unprocessable> =>
  Effect.gen(function* () {
    const names = [...jobs.keys()]
    const job = asked.job ?? (names.length === 1 ? names[0] : undefined)
    if (job === undefined) return yield* unprocessable("bad_job", `name one of the jobs: ${names.join(", ")}`)
    const configured = Object.hasOwn(config.jobs, job) ? config.jobs[job] : undefined
    if (configured === undefined) return yield* unknownJob(job)
    const source = Object.hasOwn(config.sources, asked.source) ? config.sources[asked.source] : undefined
    if (source === undefined) {
      return yield* unprocessable("bad_source", `name one of the sources: ${Object.keys(config.sources).join(", ")}`)
    }
    yield* within(config, asked)
    const hash = yield* Effect.orDie(Identity.stableHash({ ...asked, job }, 32))
    const { file, llm, model, profile, timeout } = configured
    return { job: file, source, llm, model, profile, timeout, server: { caller, job, source: asked.source, hash } }
  })

/**
 * That no more is asked for than a run may have here.
 *
 * @since 0.1.0
 */
export const within = (
  { maxConcurrency, maxRunUsd, maxTotalUsd }: ServerConfig,
  { budget = 0, concurrency = 0 }: { readonly budget?: number | undefined; readonly concurrency?: number | undefined }
): Effect.Effect<void, Unprocessable> => {
  const most = maxRunUsd ?? maxTotalUsd
  if (budget > most) return unprocessable("bad_limit", `a run may cost at most $${most} here, not $${budget}`)
  return concurrency > maxConcurrency
    ? unprocessable("bad_limit", `a run may have ${maxConcurrency} calls in flight here`)
    : Effect.void
}

/** Of the caller and the key alone: with another job in it too the request is another one, and is refused. */
const keyedRunId = (caller: string, key: string) =>
  Effect.map(Effect.orDie(Identity.stableHash({ caller, key }, 16)), (hash) => `run-${hash}`)

const newRunId = (job: string) =>
  Effect.gen(function* () {
    const now = yield* Clock.currentTimeMillis
    const random = yield* Effect.sync(() => crypto.randomUUID().replaceAll("-", "").slice(0, 16))
    return `${job}-${new Date(now).toISOString().slice(0, 10)}-${random}`
  })

const MOST_REFUSED = 1_000
const remember = <A>(refused: Map<string, A>, runId: string, what: A) => {
  const [first] = refused.keys()
  if (refused.size >= MOST_REFUSED && first !== undefined) refused.delete(first)
  refused.set(runId, what)
}

/** Where files lie is this machine's matter: a caller knows them by their names in the configuration. */
const hiding = ({ jobs, sources }: ServerConfig, database: string) => {
  const pathOf = (source: string) => source.replace(/^sqlite:/, "").split("#")[0] ?? ""
  const paths = [
    [database, "the database"] as const,
    ...Object.entries(jobs).map(([name, { file }]) => [file, `job ${name}`] as const),
    ...Object.entries(sources).map(([name, source]) => [pathOf(source), `source ${name}`] as const)
  ]
    .filter(([path]) => path !== "")
    .sort(([a], [b]) => b.length - a.length)
  return (text: string): string => paths.reduce((said, [path, name]) => said.replaceAll(path, name), text)
}

const unprocessable = (code: string, message: string) => new Unprocessable({ code, message })
const unknownJob = (name: string) => unprocessable("bad_job", `there is no job ${name} here`)
const otherRequest = unprocessable(
  "key_reused",
  "this Idempotency-Key began another request; take a new key for a new request"
)
const stopping = new Unavailable({ code: "stopping", message: "the server stops" })
const tooManyRuns = (most: number) =>
  new TooMany({
    code: "too_many_runs",
    message: `${most} runs are active; wait for one of them, or cancel it`,
    retryAfterSeconds: 30
  })
const notServed = (runId: string) =>
  new Conflict({ code: "wrong_job", message: `run ${runId} was not begun over HTTP: resume it where it was begun` })
