/**
 * One group of operations under decision: what was read from the database, and what is to be written, both as the operations before have changed them. Internal to Book.
 *
 * @since 0.1.0
 */
import type {
  Book,
  CallId,
  Facts,
  Fence,
  HoldRecord,
  Pool,
  RowId,
  RowRecord,
  Verdict,
  WorkerRecord,
  Writes
} from "./Records.ts"
import { Usd } from "./Usd.ts"

/** @since 0.1.0 */
export type Refused = Extract<Verdict, { readonly _tag: "Refused" }>

/** @since 0.1.0 */
export const ok: Verdict = { _tag: "Ok" }
/** @since 0.1.0 */
export const fenced: Verdict = { _tag: "Fenced" }
/** @since 0.1.0 */
export const refused = (reason: Refused["reason"]): Refused => ({ _tag: "Refused", reason })

/** A worker that lives no more; the rest of its record stays. @since 0.1.0 */
export const gone = ({ runId, worker }: Fence): WorkerRecord => ({
  runId,
  worker,
  live: false,
  host: "",
  pid: 0,
  startedAt: 0,
  beatAt: 0,
  sign: null
})

/** The state of one group of operations: what was read, changed as they are decided. @since 0.1.0 */
export interface Group {
  readonly writes: Writes
  readonly book: (runId: string) => Book | undefined
  readonly live: (fence: Fence) => Book | undefined
  readonly pool: (id: string) => Pool | undefined
  readonly change: (book: Book, parts: Partial<Book>) => void
  readonly latest: (id: string) => number
  readonly version: (id: string) => number
  readonly open: (runId: string) => ReadonlyArray<HoldRecord>
  readonly close: (record: HoldRecord) => void
  readonly latestWorker: (runId: string) => number
  /** What an uncertain call counts at. */
  readonly uncertain: (call: CallId) => Usd | undefined
  /** It is uncertain no more. */
  readonly exact: (call: CallId) => void
  readonly claim: (worker: WorkerRecord, dead: ReadonlyArray<number>) => void
  /** A row's present epoch. */
  readonly epoch: (runId: string, seq: number) => number | undefined
  readonly rerun: (row: Pick<RowRecord, "runId" | "seq" | "epoch">) => void
}

/** @since 0.1.0 */
export const makeGroup = (facts: Facts): Group => {
  const writes: Writes = {
    books: new Map(),
    created: new Set(),
    pools: new Map(),
    workers: [],
    beats: [],
    unloads: [],
    rows: [],
    changed: [],
    removed: [],
    epochs: [],
    orders: [],
    holds: new Map(),
    closed: [],
    calls: [],
    corrections: [],
    outcomes: [],
    checkpoints: [],
    prunes: [],
    puts: []
  }
  const live = new Map<string, ReadonlySet<number>>(facts.live)
  const versions = new Map(facts.versions)
  const workers = new Map(facts.workers)
  const uncertain = new Map(facts.uncertain)
  const epochs = new Map(facts.epochs)
  const book = (runId: string) => writes.books.get(runId) ?? facts.books.get(runId)
  const pool = (id: string) => writes.pools.get(id) ?? facts.pools.get(id)
  return {
    writes,
    book,
    live: (fence) => (live.get(fence.runId)?.has(fence.worker) === true ? book(fence.runId) : undefined),
    pool,
    // A run that was given up stays so, whatever its worker still writes.
    change: (before, parts) => {
      const { reason, status } = before
      const kept = status === "cancelled" ? { status, reason } : {}
      const after = { ...before, ...parts, ...kept }
      writes.books.set(before.runId, after)
      const shared = before.pool === null ? undefined : pool(before.pool)
      if (shared !== undefined) writes.pools.set(shared.id, moved(shared, before, after))
    },
    latest: (id) => versions.get(id) ?? 0,
    version: (id) => {
      const next = (versions.get(id) ?? 0) + 1
      versions.set(id, next)
      return next
    },
    // What was read, with what this group itself opened and closed: an interrupted worker's last writes may stand before the claim.
    open: (runId) => {
      const closed = new Set(writes.closed.map(callId))
      const opened = [...writes.holds.values()].filter((record) => record.runId === runId)
      return [...(facts.holds.get(runId) ?? []), ...opened].filter((record) => !closed.has(callId(record)))
    },
    // A hold that opens and closes in one group was never written: there is nothing to delete.
    close: (record) => {
      if (!writes.holds.delete(callId(record))) writes.closed.push(record)
    },
    latestWorker: (runId) => workers.get(runId) ?? 0,
    uncertain: (call) => uncertain.get(callId(call)),
    exact: (call) => void uncertain.delete(callId(call)),
    claim: (worker, dead) => {
      const others = [...(live.get(worker.runId) ?? [])].filter((other) => !dead.includes(other))
      live.set(worker.runId, new Set([...others, worker.worker]))
      workers.set(worker.runId, worker.worker)
    },
    epoch: (runId, seq) => epochs.get(rowId({ runId, seq })),
    rerun: (row) => {
      epochs.set(rowId(row), row.epoch)
      writes.epochs.push(row)
    }
  }
}

/** Whatever moves money in a run's book moves as much in its pool. */
const moved = (pool: Pool, before: Book, after: Book): Pool => ({
  id: pool.id,
  cap: pool.cap,
  spent: Usd.nano(pool.spent + after.spent - before.spent),
  uncertain: Usd.nano(pool.uncertain + after.uncertain - before.uncertain),
  held: Usd.nano(pool.held + after.held - before.held)
})

/**
 * One text for one call, open or closed.
 *
 * @since 0.1.0
 */
export const callId = (record: CallId): string => `${record.runId}/${record.worker}/${record.n}`

/**
 * One text for one row.
 *
 * @since 0.1.0
 */
export const rowId = ({ runId, seq }: RowId): string => `${runId}/${seq}`
