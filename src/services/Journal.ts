/**
 * The one write path of a run: an ordered log of small operations. All that is appended in one turn of the event loop becomes one durable commit, so
 * a hundred rows cost a handful of fsyncs. Order is kept, so whatever is appended before a hold is durable when the hold is.
 *
 * Internal: programs use Budget, Store, Checkpointer and Enrichment, which stand on it.
 *
 * @since 0.1.0
 */
import { Cause, Context, Deferred, Effect, Exit, FiberId, Option, type Scheduler, type Scope } from "effect"
import type { Anchor } from "./Anchor.ts"
import {
  type Book,
  type CallId,
  type CallRecord,
  type CheckpointRecord,
  type CorrectionRecord,
  decide,
  type Facts,
  type Fence,
  type Needs,
  needs,
  type Op,
  type OrderRecord,
  type OutcomeRecord,
  type Pool,
  type RowRecord,
  type Verdict,
  type WorkerRecord,
  type Writes
} from "./Book.ts"
import { StorageError } from "./Errors.ts"

/** One row with its latest outcome, if it has one. @since 0.1.0 */
export interface RowResult {
  readonly row: RowRecord
  readonly outcome: OutcomeRecord | undefined
}

/** @since 0.1.0 */
export interface Audit {
  readonly book: Book
  readonly sums: Sums
}

/**
 * A call as it is known now: what was learned of it after it was closed counts.
 *
 * @since 0.1.0
 */
export const corrected = (call: CallRecord, correction: CorrectionRecord | undefined): CallRecord => {
  if (correction === undefined) return call
  const { answer, at, cost, note, source, ...tokens } = correction
  return { ...call, ...tokens, state: "settled", cost, answer: answer ?? call.answer, reason: source }
}

/** Sums over a run's records; money in nano-dollars. `ended`: rows with an outcome in their present epoch. @since 0.1.0 */
export interface Sums {
  readonly spent: number
  readonly uncertain: number
  readonly held: number
  readonly rows: number
  readonly ended: number
}

/** @since 0.1.0 */
export interface PoolAudit {
  readonly pool: Pool
  readonly sums: Pick<Sums, "spent" | "uncertain" | "held">
}

/**
 * What a backend reads outside the write path.
 *
 * @since 0.1.0
 */
export interface Reads {
  readonly book: (runId: string) => Effect.Effect<Book | undefined, StorageError>
  readonly books: Effect.Effect<ReadonlyArray<Book>, StorageError>
  /** A pool, and what the books of its runs add up to, at one instant: they must say the same. */
  readonly pool: (id: string) => Effect.Effect<PoolAudit | undefined, StorageError>
  readonly workers: (runId: string) => Effect.Effect<ReadonlyArray<WorkerRecord>, StorageError>
  /** Rows without an outcome in their present epoch, in order, after a `seq`. */
  readonly pending: (
    runId: string,
    after: number,
    limit: number
  ) => Effect.Effect<ReadonlyArray<RowRecord>, StorageError>
  /** All rows with their latest outcomes, in order, after a `seq`; `upto`: as of this `commitSeq`. */
  readonly results: (
    runId: string,
    after: number,
    limit: number,
    upto?: number
  ) => Effect.Effect<ReadonlyArray<RowResult>, StorageError>
  /** What a run was ordered, in order, after the n-th. */
  readonly orders: (runId: string, after: number) => Effect.Effect<ReadonlyArray<OrderRecord>, StorageError>
  /** The calls of rows that have no outcome in their present epoch, as they are known now. */
  readonly openCalls: (runId: string) => Effect.Effect<ReadonlyArray<CallRecord>, StorageError>
  /** All calls in the order of their ids after one of them, as they are known now. */
  readonly calls: (
    runId: string,
    after: Pick<CallId, "worker" | "n">,
    limit: number
  ) => Effect.Effect<ReadonlyArray<CallRecord>, StorageError>
  /** The calls that still count as uncertain. */
  readonly uncertain: (runId: string) => Effect.Effect<ReadonlyArray<CallRecord>, StorageError>
  /** A run's book and what its records add up to, at one instant: they must say the same. */
  readonly audit: (runId: string) => Effect.Effect<Audit | undefined, StorageError>
  /** How many calls may be under way. */
  readonly inFlight: (runId: string) => Effect.Effect<number, StorageError>
  /** The highest number of a worker's closed calls; 0: it has none. */
  readonly lastCall: (fence: Fence) => Effect.Effect<number, StorageError>
  /** The ids of the rows whose outcomes a snapshot covers, in order of `seq`. */
  readonly idsUpto: (runId: string, commitSeq: number) => Effect.Effect<ReadonlyArray<string>, StorageError>
  readonly checkpoints: (id: string) => Effect.Effect<ReadonlyArray<number>, StorageError>
  /** A version, or the latest. */
  readonly checkpoint: (id: string, version?: number) => Effect.Effect<CheckpointRecord | undefined, StorageError>
  readonly values: (keys: ReadonlyArray<string>) => Effect.Effect<ReadonlyMap<string, string>, StorageError>
}

/**
 * What a database is to a run, besides its records.
 *
 * @since 0.1.0
 */
export interface Backend {
  readonly durable: boolean
  /** A file or a server, for messages; `memory` for the memory driver. */
  readonly location: string
  readonly reads: Reads
  /**
   * Keeps every other process off a run, for as long as the scope is open and this process lives; false: another one has it. It decides *when* a run may be taken over; that a
   * stale worker can write nothing rests on the worker's number alone.
   */
  readonly lock: (runId: string) => Effect.Effect<boolean, StorageError, Scope.Scope>
  /** Fails where the database is damaged. */
  readonly check: Effect.Effect<void, StorageError>
  /** What is known of a run from outside the database, if anything. */
  readonly anchor: (runId: string) => Effect.Effect<Anchor | undefined, StorageError>
}

/**
 * All that a backend must get right: read the facts, apply the writes that `decide` gives, as one atomic, durable and serialised step.
 *
 * @since 0.1.0
 */
export interface Driver extends Backend {
  readonly transact: (needs: Needs, decide: (facts: Facts) => Writes) => Effect.Effect<void, StorageError>
  /** When a durable driver's next group is written; default `setImmediate`: at the end of this turn of the event loop. A simulator has turns of its own. */
  readonly later?: (write: () => void) => void
  /** What the writes themselves run by; a simulator has one of its own. */
  readonly scheduler?: Scheduler.Scheduler
}

/**
 * `append`: in order, not awaited; `heard` learns the verdict, unless the journal breaks. `commit`: the verdict, once durable. `flush`: all that was appended is durable. After a failed commit the journal stays
 * broken: nothing that was appended later can be trusted, so every later commit fails and nothing more is sent.
 *
 * @since 0.1.0
 */
export interface JournalShape extends Backend {
  readonly append: (op: Op, heard?: (verdict: Verdict) => void) => void
  readonly commit: (op: Op) => Effect.Effect<Verdict, StorageError>
  readonly flush: Effect.Effect<void, StorageError>
  /** Fails when the journal breaks; never succeeds. */
  readonly broken: Effect.Effect<never, StorageError>
}

/**
 * The journal.
 *
 * @since 0.1.0
 */
export class Journal extends Context.Tag("longhaul/Journal")<Journal, JournalShape>() {}

interface Ticket {
  readonly op: Op
  readonly done: (verdict: Exit.Exit<Verdict, StorageError>) => void
}

const ignore = () => {}
const barrier: Op = { _tag: "Barrier" }

/**
 * A journal over a driver. It is flushed when the scope closes.
 *
 * @since 0.1.0
 */
export const make = (driver: Driver): Effect.Effect<JournalShape, never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.sync(() => makeUnsafe(driver)),
    (journal) => Effect.ignore(journal.flush)
  )

const makeUnsafe = (driver: Driver): JournalShape => {
  const broken = Deferred.unsafeMake<never, StorageError>(FiberId.none)
  let failure: StorageError | undefined
  const later = driver.later ?? setImmediate
  let queue: Array<Ticket> = []
  let writing = false

  const fail = (group: ReadonlyArray<Ticket>, error: StorageError) => {
    failure = error
    Deferred.unsafeDone(broken, Effect.fail(error))
    for (const ticket of group) ticket.done(Exit.fail(error))
  }

  const write = (group: ReadonlyArray<Ticket>) => {
    const ops = group.map((ticket) => ticket.op)
    let verdicts: ReadonlyArray<Verdict> = []
    const transact = driver.transact(needs(ops), (facts) => {
      const decided = decide(ops, facts)
      verdicts = decided.verdicts
      return decided.writes
    })
    return Effect.matchCause(transact, {
      onFailure: (cause) => fail(group, toStorageError(cause)),
      onSuccess: () => {
        for (const [i, ticket] of group.entries()) ticket.done(Exit.succeed(verdicts[i] ?? ok))
      }
    })
  }

  const turn = () => {
    const group = queue
    queue = []
    if (failure !== undefined) return fail(group, failure)
    writing = true
    Effect.runCallback(write(group), {
      scheduler: driver.scheduler,
      onExit: () => {
        writing = false
        if (queue.length > 0) later(turn)
      }
    })
  }

  const push = (ticket: Ticket) => {
    if (failure !== undefined) return ticket.done(Exit.fail(failure))
    // Memory has no fsync to share, and stays in step with a TestClock.
    if (!driver.durable) return Effect.runSync(write([ticket]))
    queue.push(ticket)
    if (queue.length === 1 && !writing) later(turn)
  }

  const commit = (op: Op) =>
    Effect.uninterruptible(Effect.async<Verdict, StorageError>((resume) => push({ op, done: resume })))
  const { check, anchor, durable, location, lock, reads } = driver
  return {
    durable,
    location,
    reads,
    lock,
    check,
    anchor,
    append: (op, heard) =>
      push({ op, done: heard === undefined ? ignore : (exit) => Exit.isSuccess(exit) && heard(exit.value) }),
    commit,
    flush: Effect.asVoid(commit(barrier)),
    broken: Deferred.await(broken)
  }
}

const ok: Verdict = { _tag: "Ok" }

const toStorageError = (cause: Cause.Cause<StorageError>): StorageError =>
  Option.getOrElse(
    Cause.failureOption(cause),
    () =>
      new StorageError({
        reason: "broken",
        message: `the journal broke: ${Cause.pretty(cause)}`,
        cause: Cause.squash(cause)
      })
  )
