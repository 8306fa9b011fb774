/**
 * The worker of a run: this process, as the book knows it. One live worker a run; a dead one is taken over and its open holds become uncertain.
 *
 * @since 0.1.0
 */
import { readFileSync } from "node:fs"
import { hostname } from "node:os"
import { Clock, Effect, GlobalValue, Schedule, type Scope } from "effect"
import type { Fence, WorkerRecord } from "../services/Book.ts"
import { RunRefused, type StorageError } from "../services/Errors.ts"
import type { JournalShape } from "../services/Journal.ts"

/** A worker on another host is taken for dead after this long without a sign of life; it gives one every `BEAT_MS`. */
const SILENT_MS = 60_000
const BEAT_MS = 10_000

/**
 * Claims a run for this process, for as long as the scope is open. Refused while a live process works on it.
 *
 * @since 0.1.0
 */
export const claim = (
  journal: JournalShape,
  runId: string
): Effect.Effect<Fence, RunRefused | StorageError, Scope.Scope> =>
  Effect.gen(function* () {
    const now = yield* Clock.currentTimeMillis
    const workers = yield* journal.reads.workers(runId)
    const live = workers.filter((worker) => worker.live)
    for (const worker of live) if (isAlive(worker, now, journal.location)) return yield* busy(runId, worker, now)
    const fence: Fence = { runId, worker: Math.max(0, ...workers.map((worker) => worker.worker)) + 1 }
    const record = { ...fence, live: true, host: hostname(), pid: process.pid, startedAt: STARTED_AT, beatAt: now }
    const dead = live.map((worker) => worker.worker)
    const name = `${journal.location}/${runId}/${fence.worker}`
    // Only who was given the claim gives it back: the number of one who came too late is the winner's.
    const verdict = yield* Effect.acquireRelease(
      Effect.tap(journal.commit({ _tag: "Claim", worker: record, dead }), (verdict) =>
        verdict._tag === "Ok" ? Effect.sync(() => ours.add(name)) : Effect.void
      ),
      (verdict) =>
        verdict._tag === "Ok"
          ? Effect.ensuring(
              Effect.ignore(journal.commit({ _tag: "Quit", fence })),
              Effect.sync(() => ours.delete(name))
            )
          : Effect.void
    )
    if (verdict._tag !== "Ok")
      return yield* new RunRefused({ reason: "busy", message: `run ${runId} was just taken over by another process` })
    const beat = Effect.map(Clock.currentTimeMillis, (at) => journal.append({ _tag: "Beat", fence, at }))
    yield* Effect.forkScoped(Effect.repeat(Effect.delay(beat, BEAT_MS), Schedule.forever))
    return fence
  })

const STARTED_AT = Math.round(Date.now() - process.uptime() * 1000)

const busy = (runId: string, { beatAt, host, pid }: WorkerRecord, now: number) =>
  new RunRefused({
    reason: "busy",
    message: `run ${runId} is being worked on by process ${pid} on ${host} (last sign of life ${Math.max(0, Math.round((now - beatAt) / 1000))} s ago)`
  })

/** The claims of this process, shared by all copies of this module in it. What is not there is not alive: a broken journal could not give it back. */
const ours: Set<string> = GlobalValue.globalValue(Symbol.for("longhaul/claims"), () => new Set())

const isAlive = (worker: WorkerRecord, now: number, location: string): boolean => {
  if (worker.host !== hostname()) return now - worker.beatAt < SILENT_MS
  if (worker.pid === process.pid) return ours.has(`${location}/${worker.runId}/${worker.worker}`)
  return exists(worker.pid) && !isReused(worker)
}

const exists = (pid: number): boolean => {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return error instanceof Error && "code" in error && error.code === "EPERM"
  }
}

/** Linux tells when a process started (proc(5): stat field 22, in 1/100 s since boot); elsewhere a pid is trusted. */
const isReused = ({ pid, startedAt }: WorkerRecord): boolean => {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8")
    const ticks = Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19])
    const boot = Number(/^btime (\d+)$/m.exec(readFileSync("/proc/stat", "utf8"))?.[1])
    return Math.abs(boot * 1000 + ticks * 10 - startedAt) > 5_000
  } catch {
    return false
  }
}
