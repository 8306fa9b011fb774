/**
 * The worker of a run: this process, as the book knows it. One live worker a run; a dead one is taken over and its open holds become uncertain.
 *
 * @since 0.1.0
 */
import { hostname } from "node:os"
import { Clock, Deferred, Effect, Schedule, type Scope } from "effect"
import type { Fence, Sign, Verdict, WorkerRecord } from "../services/Book.ts"
import { RunRefused, type StorageError } from "../services/Errors.ts"
import type { JournalShape } from "../services/Journal.ts"
import * as MonotonicTime from "../services/MonotonicTime.ts"
import { Usd } from "../services/Usd.ts"

/** How often a worker says that it lives, and looks whether it still may; what has changed of its sign is said within `LOOK_MS`. */
const BEAT_MS = 10_000
const LOOK_MS = 1_000

/** A run that is claimed. `lost` completes when another process took it over. @since 0.1.0 */
export interface Claim {
  readonly fence: Fence
  readonly lost: Effect.Effect<void>
  /** What the worker says of itself from now on. */
  readonly says: (sign: () => Sign) => void
}

/**
 * Claims a run for this process, for as long as the scope is open. The database's lock says whether another one has it; who has the lock finds all other workers
 * dead, whatever the book says of them. `ready`: what must hold once the lock is there and before anything is written; it gives the money that the database lost.
 *
 * @since 0.1.0
 */
export const claim = <E = never>(
  journal: JournalShape,
  runId: string,
  ready: Effect.Effect<Usd, E> = Effect.succeed(Usd.zero)
): Effect.Effect<Claim, RunRefused | StorageError | E, Scope.Scope> =>
  Effect.gen(function* () {
    const locked = yield* journal.lock(runId)
    const now = yield* Clock.currentTimeMillis
    const workers = yield* journal.reads.workers(runId)
    const live = workers.filter((worker) => worker.live)
    if (!locked) return yield* busy(runId, live.at(-1), now)
    const lost = yield* ready
    const fence: Fence = { runId, worker: Math.max(0, ...workers.map((worker) => worker.worker)) + 1 }
    const record = {
      ...fence,
      live: true,
      host: hostname(),
      pid: process.pid,
      startedAt: STARTED_AT,
      beatAt: now,
      sign: null
    }
    const dead = live.map((worker) => worker.worker)
    // Only who was given the claim gives it back: the number of one who came too late is the winner's.
    const verdict = yield* Effect.acquireRelease(
      journal.commit({ _tag: "Claim", worker: record, dead, lost }),
      (verdict) => (verdict._tag === "Ok" ? Effect.ignore(journal.commit({ _tag: "Quit", fence })) : Effect.void)
    )
    if (verdict._tag !== "Ok") return yield* takenOver(runId)
    const taken = yield* Deferred.make<void>()
    let signOf: () => Sign | null = () => null
    yield* Effect.forkScoped(Effect.ignore(beating(journal, fence, taken, () => signOf())))
    return {
      fence,
      lost: Deferred.await(taken),
      says: (sign) => {
        signOf = sign
      }
    }
  })

const STARTED_AT = Math.round(Date.now() - process.uptime() * 1000)

/** A worker that has nothing to write learns of its end by this. */
const beating = (
  journal: JournalShape,
  fence: Fence,
  taken: Deferred.Deferred<void>,
  signOf: () => Sign | null
): Effect.Effect<void, StorageError> => {
  let said: Sign | null = null
  let saidAt = Number.NEGATIVE_INFINITY
  const look = Effect.gen(function* () {
    const sign = signOf()
    const now = yield* MonotonicTime.now
    if (now - saidAt < BEAT_MS && sign?.phase === said?.phase && sign?.allowed === said?.allowed) return
    said = sign
    saidAt = now
    const at = yield* Clock.currentTimeMillis
    const verdict: Verdict = yield* journal.commit({ _tag: "Beat", fence, at, sign })
    if (verdict._tag === "Fenced") yield* Deferred.succeed(taken, undefined)
  })
  return Effect.repeat(Effect.delay(look, LOOK_MS), Schedule.forever)
}

/**
 * What a process reads whose run another one has taken over.
 *
 * @since 0.1.0
 */
export const takenOver = (runId: string): RunRefused =>
  new RunRefused({ reason: "busy", message: `run ${runId} was taken over by another process` })

const busy = (runId: string, holder: WorkerRecord | undefined, now: number) =>
  new RunRefused({
    reason: "busy",
    message: `run ${runId} is being worked on by ${holder === undefined ? "another process, which has just begun" : nameOf(holder, now)}; stop that one first`
  })

const nameOf = ({ beatAt, host, pid, startedAt, worker }: WorkerRecord, now: number): string =>
  `process ${pid} on ${host} (worker ${worker}, started ${ago(now - startedAt)}, last sign of life ${ago(now - beatAt)})`

const ago = (ms: number): string => {
  const seconds = Math.max(0, Math.round(ms / 1000))
  return seconds < 120 ? `${seconds} s ago` : `${Math.round(seconds / 60)} min ago`
}
