/**
 * The one write path of a run: an ordered log of small operations. All that is appended in one turn of the event loop becomes one durable commit, so
 * a hundred rows cost a handful of fsyncs. Order is kept, so whatever is appended before a hold is durable when the hold is.
 *
 * Internal: programs use Budget, Store, Checkpointer and Enrichment, which stand on it.
 *
 * @since 0.1.0
 */
import { Cause, Context, Deferred, Effect, FiberId, Option, type Scope } from "effect"
import {
  type Book,
  type CallRecord,
  type CheckpointRecord,
  decide,
  type Facts,
  type Needs,
  needs,
  type Op,
  type OutcomeRecord,
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

/**
 * What a backend reads outside the write path.
 *
 * @since 0.1.0
 */
export interface Reads {
  readonly book: (runId: string) => Effect.Effect<Book | undefined, StorageError>
  readonly books: Effect.Effect<ReadonlyArray<Book>, StorageError>
  readonly workers: (runId: string) => Effect.Effect<ReadonlyArray<WorkerRecord>, StorageError>
  /** Rows without an outcome in their present epoch, in order, after a `seq`. */
  readonly pending: (
    runId: string,
    after: number,
    limit: number
  ) => Effect.Effect<ReadonlyArray<RowRecord>, StorageError>
  /** All rows with their latest outcomes, in order, after a `seq`. */
  readonly results: (
    runId: string,
    after: number,
    limit: number
  ) => Effect.Effect<ReadonlyArray<RowResult>, StorageError>
  /** The calls of rows that have no outcome in their present epoch. */
  readonly openCalls: (runId: string) => Effect.Effect<ReadonlyArray<CallRecord>, StorageError>
  /** The ids of the rows whose outcomes a snapshot covers, in order of `seq`. */
  readonly idsUpto: (runId: string, commitSeq: number) => Effect.Effect<ReadonlyArray<string>, StorageError>
  readonly checkpoints: (id: string) => Effect.Effect<ReadonlyArray<number>, StorageError>
  /** A version, or the latest. */
  readonly checkpoint: (id: string, version?: number) => Effect.Effect<CheckpointRecord | undefined, StorageError>
  readonly values: (keys: ReadonlyArray<string>) => Effect.Effect<ReadonlyMap<string, string>, StorageError>
}

/**
 * All that a backend must get right: read the facts, apply the writes that `decide` gives, as one atomic, durable and serialised step.
 *
 * @since 0.1.0
 */
export interface Driver {
  readonly durable: boolean
  /** A file or a server, for messages; `memory` for the memory driver. */
  readonly location: string
  readonly reads: Reads
  readonly transact: (needs: Needs, decide: (facts: Facts) => Writes) => Effect.Effect<void, StorageError>
  /** When a durable driver's next group is written; default `setImmediate`: at the end of this turn of the event loop. A simulator has turns of its own. */
  readonly later?: (write: () => void) => void
}

/**
 * `append`: in order, not awaited. `commit`: the verdict, once durable. `flush`: all that was appended is durable. After a failed commit the journal stays
 * broken: nothing that was appended later can be trusted, so every later commit fails and nothing more is sent.
 *
 * @since 0.1.0
 */
export interface JournalShape {
  readonly durable: boolean
  readonly location: string
  readonly reads: Reads
  readonly append: (op: Op) => void
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
  readonly done: (verdict: Effect.Effect<Verdict, StorageError>) => void
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
    for (const ticket of group) ticket.done(Effect.fail(error))
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
        for (const [i, ticket] of group.entries()) ticket.done(Effect.succeed(verdicts[i] ?? ok))
      }
    })
  }

  const turn = () => {
    const group = queue
    queue = []
    if (failure !== undefined) return fail(group, failure)
    writing = true
    Effect.runCallback(write(group), {
      onExit: () => {
        writing = false
        if (queue.length > 0) later(turn)
      }
    })
  }

  const push = (ticket: Ticket) => {
    if (failure !== undefined) return ticket.done(Effect.fail(failure))
    // Memory has no fsync to share, and stays in step with a TestClock.
    if (!driver.durable) return Effect.runSync(write([ticket]))
    queue.push(ticket)
    if (queue.length === 1 && !writing) later(turn)
  }

  const commit = (op: Op) =>
    Effect.uninterruptible(Effect.async<Verdict, StorageError>((resume) => push({ op, done: resume })))
  return {
    durable: driver.durable,
    location: driver.location,
    reads: driver.reads,
    append: (op) => push({ op, done: ignore }),
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
