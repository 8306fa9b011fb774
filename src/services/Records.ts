/**
 * What the book of a run holds, and the operations that change it. Types only; the rule is in Book.
 *
 * @since 0.1.0
 */
import type { StopReason } from "./Errors.ts"
import type { TokenUsage } from "./LLM.ts"
import type * as Orders from "./Orders.ts"
import type { Usd } from "./Usd.ts"

/** `cancelled`: given up for good; what it paid for stays. @since 0.1.0 */
export type RunStatus = "loading" | "running" | "suspended" | "done" | "cancelled"

/**
 * One run's settings and totals over its whole life. Money in nano-dollars; `cap` null: the operator said "no cap". `done`, `partial` and `failed` count
 * each row once, by its latest epoch; `commitSeq` counts outcomes ever appended.
 *
 * @since 0.1.0
 */
export interface Book {
  readonly runId: string
  readonly job: string
  readonly scope: string
  readonly status: RunStatus
  readonly reason: StopReason | null
  /** Why no call may begin, whoever works on the run; null: it is not paused. */
  readonly paused: Pause | null
  /** The rows that run first, if any. */
  readonly canary: Canary | null
  /** How many orders the run was given. */
  readonly orders: number
  /** JSON: what a door (the CLI) needs to resume without flags. */
  readonly settings: string
  readonly source: string
  readonly createdAt: number
  readonly cap: Usd | null
  /** The pool whose cap it shares with other runs; null: none. */
  readonly pool: string | null
  readonly maxCalls: number | null
  readonly maxConcurrency: number
  /** The operator's own limits of requests and tokens a minute; null: what the provider says. */
  readonly requestsPerMinute: number | null
  readonly tokensPerMinute: number | null
  readonly chunkSize: number
  readonly rows: number
  readonly filtered: number
  readonly spent: Usd
  readonly uncertain: Usd
  readonly held: Usd
  readonly calls: number
  readonly retries: number
  readonly repairs: number
  readonly replays: number
  readonly storeHits: number
  readonly memoHits: number
  readonly unasked: number
  readonly reruns: number
  readonly inputTokens: number
  readonly cachedTokens: number
  readonly cacheWriteTokens: number
  readonly outputTokens: number
  readonly reasoningTokens: number
  readonly done: number
  readonly partial: number
  readonly failed: number
  /** Rows whose results were kept although they were made with another prompt, schema, model or parameter. */
  readonly kept: number
  readonly commitSeq: number
}

/**
 * A cap that several runs share. Money in nano-dollars, the sums of what its runs' books say; `cap` null: none.
 *
 * @since 0.1.0
 */
export interface Pool {
  readonly id: string
  readonly cap: Usd | null
  readonly spent: Usd
  readonly uncertain: Usd
  readonly held: Usd
}

/** Why no call may begin. See `Orders`. @since 0.1.0 */
export type Pause = typeof Orders.Pause.Type
/** What an operator orders a run to do. See `Orders`. @since 0.1.0 */
export type Order = typeof Orders.Order.Type
/** The rows that run first. See `Orders`. @since 0.1.0 */
export type Canary = typeof Orders.Canary.Type

/** An order that a run was given; append-only. `n` numbers them from 1, `by` says who gave it. @since 0.1.0 */
export interface OrderRecord {
  readonly runId: string
  readonly n: number
  readonly by: string
  readonly order: Order
  readonly at: number
}

/** One row of the manifest: `value` is the row's encoded JSON, `epoch` its current pass. @since 0.1.0 */
export interface RowRecord {
  readonly runId: string
  readonly seq: number
  readonly id: string
  readonly version: string
  readonly line: number
  readonly value: string
  readonly epoch: number
}

/** Names one row. @since 0.1.0 */
export type RowId = Pick<RowRecord, "runId" | "seq">

/** What a run's process is at: `paused`, by an operator or a detector; `cooling`, for as long as the provider asked for; `provider_down`, one call asks whether it is back; `stopping`, no call begins any more. @since 0.1.0 */
export type Phase = "loading" | "running" | "paused" | "cooling" | "provider_down" | "stopping"

/** What a worker says of itself: its phase, and how many calls it may have in flight. @since 0.1.0 */
export interface Sign {
  readonly phase: Phase
  readonly allowed: number
}

/** A worker process of a run: `worker` numbers them from 1 and fences the dead ones. @since 0.1.0 */
export interface WorkerRecord {
  readonly runId: string
  readonly worker: number
  readonly live: boolean
  readonly host: string
  readonly pid: number
  /** When the process started, in milliseconds since 1970: tells a reused pid from the same process. */
  readonly startedAt: number
  /** When the worker last said that it lives. */
  readonly beatAt: number
  /** What it said of itself then; null where it has nothing to say, or has not yet. */
  readonly sign: Sign | null
}

/** An open hold: a call that may be under way. `attempt` numbers the calls of one turn from 0. @since 0.1.0 */
export interface HoldRecord {
  readonly runId: string
  readonly worker: number
  readonly n: number
  readonly seq: number
  readonly epoch: number
  readonly turn: number
  readonly attempt: number
  readonly request: string
  readonly model: string
  readonly amount: Usd
  readonly price: string
  readonly at: number
}

/** A closed call; append-only. `cost` is what it counts: the reported cost, its hold (uncertain), or 0 (released). @since 0.1.0 */
export interface CallRecord extends HoldRecord, TokenUsage {
  readonly state: "settled" | "uncertain" | "released"
  readonly cost: Usd
  readonly reason: string
  readonly answer: string | null
  readonly finish: string | null
  readonly requestId: string | null
  readonly closedAt: number
}

/** Names one call: the worker that made it, and its number there. @since 0.1.0 */
export interface CallId extends Fence {
  readonly n: number
}

/**
 * What became known of an uncertain call later; append-only, one a call, so that every change of the bill can be audited. `late`: its answer came after its worker was
 * taken over; `report`: the operator says so; `lookup`: the provider does. The call then counts as settled at `cost`.
 *
 * @since 0.1.0
 */
export interface CorrectionRecord extends CallId, TokenUsage {
  readonly source: "late" | "report" | "lookup"
  readonly cost: Usd
  readonly answer: string | null
  readonly note: string
  readonly at: number
}

/** The end of one row in one epoch; append-only. `value` is the encoded `AgentResult` or `Failure`. @since 0.1.0 */
export interface OutcomeRecord {
  readonly runId: string
  readonly seq: number
  readonly epoch: number
  readonly commitSeq: number
  readonly kind: "done" | "partial" | "failed"
  readonly category: string
  readonly key: string
  /** Another model than the job's own answered: the result counts for this run only. */
  readonly fallback: boolean
  /** Digests of what the result was made with, so that a later change can be named; empty if the row was never asked. See `Recipe`. */
  readonly made: string
  readonly value: string
}

/** That a row has ended, and how: what it takes to run it again. @since 0.1.0 */
export type Ended = Pick<OutcomeRecord, "seq" | "epoch" | "kind">

/** A numbered snapshot; immutable. For a run, `uptoCommitSeq` says which outcomes it covers. @since 0.1.0 */
export interface CheckpointRecord {
  readonly id: string
  readonly version: number
  readonly status: "RUNNING" | "SUSPENDED" | "DONE"
  readonly state: string
  readonly metadata: string
  readonly uptoCommitSeq: number
  readonly at: number
}

/** Who writes: a run and its worker. @since 0.1.0 */
export interface Fence {
  readonly runId: string
  readonly worker: number
}

/** How an outcome came about, for the run's counters. @since 0.1.0 */
export interface OutcomeFacts {
  readonly storeHit: boolean
  readonly memoHits: number
  readonly replays: number
  /** Repair turns that cost no call (replayed or from the memo). */
  readonly freeRepairs: number
  /** No turn was asked: the row failed before its first request. */
  readonly unasked: boolean
  /** Another model than the job's own answered. */
  readonly fallback: boolean
}

/**
 * The operations. Money moves by `Hold` and the three ways to close it; all else follows.
 *
 * @since 0.1.0
 */
export type Op =
  | { readonly _tag: "Create"; readonly book: Book }
  /** Makes a pool, or sets its cap. */
  | ({ readonly _tag: "Pool" } & Pick<Pool, "id" | "cap">)
  | {
      readonly _tag: "Load"
      readonly fence: Fence
      readonly rows: ReadonlyArray<RowRecord>
      readonly filtered: number
      readonly last: boolean
    }
  | {
      /** `lost`: money of which the database has no record any more; it counts as uncertain from this commit on. */
      readonly _tag: "Claim"
      readonly worker: WorkerRecord
      readonly dead: ReadonlyArray<number>
      readonly lost: Usd
    }
  | { readonly _tag: "Beat"; readonly fence: Fence; readonly at: number; readonly sign: Sign | null }
  | { readonly _tag: "Quit"; readonly fence: Fence }
  | { readonly _tag: "Unload"; readonly fence: Fence; readonly discard: boolean }
  /** `heard`, here and below: the last order that the writer knows; refused where there is a later one. */
  | { readonly _tag: "Limits"; readonly fence: Fence; readonly limits: Limits; readonly heard?: number }
  | { readonly _tag: "Status"; readonly fence: Fence; readonly status: RunStatus; readonly reason: StopReason | null }
  | { readonly _tag: "Reopen"; readonly fence: Fence; readonly rows: ReadonlyArray<Ended> }
  | { readonly _tag: "Refresh"; readonly fence: Fence; readonly changes: Changes; readonly heard?: number }
  | { readonly _tag: "Kept"; readonly fence: Fence; readonly rows: number }
  /** Not fenced: an operator's word, from any process. The verdict's version is its number. */
  | ({ readonly _tag: "Order" } & Omit<OrderRecord, "n">)
  /** Not fenced: it may come from a worker that was taken over. */
  | { readonly _tag: "Correct"; readonly correction: CorrectionRecord }
  | { readonly _tag: "Hold"; readonly hold: HoldRecord }
  | { readonly _tag: "Settle"; readonly hold: HoldRecord; readonly close: Settled }
  | {
      readonly _tag: "Uncertain"
      readonly hold: HoldRecord
      readonly reason: string
      readonly answer: string | null
      readonly requestId: string | null
      readonly at: number
    }
  | {
      readonly _tag: "Release"
      readonly hold: HoldRecord
      readonly reason: string
      readonly sent: boolean
      readonly at: number
    }
  | {
      readonly _tag: "Outcome"
      readonly fence: Fence
      readonly outcome: Omit<OutcomeRecord, "commitSeq">
      readonly facts: OutcomeFacts
    }
  | {
      /** DONE and SUSPENDED are the run's status too, in the same commit; `reason` says why it is suspended. DONE is refused where rows are pending. */
      readonly _tag: "RunSnapshot"
      readonly fence: Fence
      readonly status: CheckpointRecord["status"]
      readonly reason?: StopReason
      readonly heard?: number
      readonly keep: Keep
      readonly at: number
    }
  | {
      readonly _tag: "Snapshot"
      readonly id: string
      readonly status: CheckpointRecord["status"]
      readonly state: string
      readonly metadata: string
      readonly keep: Keep
      readonly at: number
    }
  | { readonly _tag: "DropCheckpoints"; readonly id: string }
  | {
      readonly _tag: "Put"
      readonly entries: ReadonlyArray<readonly [key: string, value: string]>
      readonly replace: boolean
    }
  | { readonly _tag: "Barrier" }

/** What became of the source since its rows were listed. @since 0.1.0 */
export interface Changes {
  readonly added: ReadonlyArray<RowRecord>
  /** Rows with a new content. */
  readonly changed: ReadonlyArray<RowRecord>
  /** The ends of those that are to be run again. */
  readonly again: ReadonlyArray<Ended>
  /** Pending rows that are gone. */
  readonly removed: ReadonlyArray<RowRecord>
  /** The source as it is now, for the run's record. */
  readonly source: string
}

/** How many snapshots stay: all, or the latest n (the terminal one always stays). @since 0.1.0 */
export type Keep = "all" | number

/** What a settled call brought. @since 0.1.0 */
export interface Settled {
  readonly usage: TokenUsage
  readonly cost: Usd
  readonly answer: string | null
  readonly finish: string | null
  readonly requestId: string | null
  readonly reason: string
  readonly at: number
}

/** The limits a run was given; what is `undefined` stays as the run's record has it. @since 0.1.0 */
export interface Limits {
  readonly cap?: Usd | null | undefined
  readonly maxCalls?: number | null | undefined
  readonly maxConcurrency?: number | undefined
  readonly requestsPerMinute?: number | null | undefined
  readonly tokensPerMinute?: number | null | undefined
  readonly settings?: string | undefined
}

/**
 * The answer to one operation. `Refused`: it does not fit what the book says; `Fenced`: the writer was taken over, nothing was written.
 *
 * @since 0.1.0
 */
export type Verdict =
  | { readonly _tag: "Ok" }
  | {
      readonly _tag: "Refused"
      readonly reason:
        | "cap"
        | "max_calls"
        | "pool"
        | "pool_busy"
        | "paused"
        | "cancelled"
        | "done"
        | "not_found"
        | "below_counted"
        | "pending"
        | "unheard"
        | "exists"
        | "claimed"
        | "not_uncertain"
        | "above_hold"
    }
  | { readonly _tag: "Fenced" }
  | { readonly _tag: "Version"; readonly version: number }

/** What must be read before operations can be decided. @since 0.1.0 */
export interface Needs {
  readonly runs: ReadonlySet<string>
  /** Besides those of these runs. */
  readonly pools: ReadonlySet<string>
  readonly checkpoints: ReadonlySet<string>
  readonly claims: ReadonlySet<string>
  readonly uncertain: ReadonlyArray<CallId>
  readonly rows: ReadonlyArray<RowId>
}

/** What was read, inside the transaction. @since 0.1.0 */
export interface Facts {
  readonly books: ReadonlyMap<string, Book>
  readonly pools: ReadonlyMap<string, Pool>
  /** The live workers of each run that was asked for. */
  readonly live: ReadonlyMap<string, ReadonlySet<number>>
  /** The latest version of each checkpoint id that was asked for; 0 if none. */
  readonly versions: ReadonlyMap<string, number>
  /** The open holds and the highest worker number of each run that is claimed. */
  readonly holds: ReadonlyMap<string, ReadonlyArray<HoldRecord>>
  readonly workers: ReadonlyMap<string, number>
  /** Of the calls that were asked for, by {@link callId}: what each counts at, if it is uncertain and not corrected. */
  readonly uncertain: ReadonlyMap<string, Usd>
  /** The present epochs of the rows that were asked for, by {@link rowId}. */
  readonly epochs: ReadonlyMap<string, number>
}

/** What must be written, in this order, in the same transaction. @since 0.1.0 */
export interface Writes {
  readonly books: Map<string, Book>
  readonly created: Set<string>
  readonly pools: Map<string, Pool>
  readonly workers: Array<WorkerRecord>
  readonly beats: Array<Fence & Pick<WorkerRecord, "sign"> & { readonly at: number }>
  /** Manifests to delete, before rows are written; `discard`: the whole run, after everything else. */
  readonly unloads: Array<{ readonly runId: string; readonly discard: boolean }>
  readonly rows: Array<RowRecord>
  readonly changed: Array<RowRecord>
  readonly removed: Array<RowRecord>
  readonly epochs: Array<Pick<RowRecord, "runId" | "seq" | "epoch">>
  readonly orders: Array<OrderRecord>
  readonly holds: Map<string, HoldRecord>
  readonly closed: Array<HoldRecord>
  readonly calls: Array<CallRecord>
  readonly corrections: Array<CorrectionRecord>
  readonly outcomes: Array<OutcomeRecord>
  readonly checkpoints: Array<CheckpointRecord>
  readonly prunes: Array<{ readonly id: string; readonly upto: number; readonly all: boolean }>
  readonly puts: Array<{ readonly entries: ReadonlyArray<readonly [string, string]>; readonly replace: boolean }>
}
