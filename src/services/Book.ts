/**
 * The rule of the book: operations, in order, against what was read, give one verdict each and what must be written. Pure; every backend runs it inside its own
 * transaction and supplies only storage.
 *
 * @since 0.1.0
 */
import { noTokens, type TokenUsage } from "./LLM.ts"
import type {
  Book,
  CallRecord,
  Facts,
  Fence,
  HoldRecord,
  Limits,
  Needs,
  Op,
  OutcomeRecord,
  Settled,
  Verdict,
  WorkerRecord,
  Writes
} from "./Records.ts"
import { Usd } from "./Usd.ts"

export type * from "./Records.ts"

/**
 * What the operations need to know.
 *
 * @since 0.1.0
 */
export const needs = (ops: ReadonlyArray<Op>): Needs => {
  const runs = new Set<string>()
  const checkpoints = new Set<string>()
  const claims = new Set<string>()
  for (const op of ops) {
    const run = runOf(op)
    if (run !== undefined) runs.add(run)
    if (op._tag === "Claim") claims.add(op.worker.runId)
    if (op._tag === "RunSnapshot") checkpoints.add(op.fence.runId)
    if (op._tag === "Snapshot" || op._tag === "DropCheckpoints") checkpoints.add(op.id)
  }
  return { runs, checkpoints, claims }
}

const runOf = (op: Op): string | undefined => {
  switch (op._tag) {
    case "Create":
      return op.book.runId
    case "Claim":
      return op.worker.runId
    case "Hold":
    case "Settle":
    case "Uncertain":
    case "Release":
      return op.hold.runId
    case "Snapshot":
    case "DropCheckpoints":
    case "Put":
    case "Barrier":
      return undefined
    default:
      return op.fence.runId
  }
}

/**
 * The rule: operations, in order, against what was read, give one verdict each and what must be written. Pure.
 *
 * @since 0.1.0
 */
export const decide = (
  ops: ReadonlyArray<Op>,
  facts: Facts
): { readonly verdicts: ReadonlyArray<Verdict>; readonly writes: Writes } => {
  const group = makeGroup(facts)
  return { verdicts: ops.map((op) => decideOne(op, group)), writes: group.writes }
}

const ok: Verdict = { _tag: "Ok" }
const fenced: Verdict = { _tag: "Fenced" }
const refused = (reason: Extract<Verdict, { _tag: "Refused" }>["reason"]): Verdict => ({ _tag: "Refused", reason })

/** The state of one group: what was read, changed as its operations are decided. */
interface Group {
  readonly writes: Writes
  readonly book: (runId: string) => Book | undefined
  readonly live: (fence: Fence) => Book | undefined
  readonly change: (book: Book, parts: Partial<Book>) => void
  readonly latest: (id: string) => number
  readonly version: (id: string) => number
  readonly open: (runId: string) => ReadonlyArray<HoldRecord>
  readonly close: (record: HoldRecord) => void
  readonly latestWorker: (runId: string) => number
  readonly claim: (worker: WorkerRecord, dead: ReadonlyArray<number>) => void
}

const makeGroup = (facts: Facts): Group => {
  const writes: Writes = {
    books: new Map(),
    created: new Set(),
    workers: [],
    beats: [],
    unloads: [],
    rows: [],
    epochs: [],
    holds: new Map(),
    closed: [],
    calls: [],
    outcomes: [],
    checkpoints: [],
    prunes: [],
    puts: []
  }
  const live = new Map<string, ReadonlySet<number>>(facts.live)
  const versions = new Map(facts.versions)
  const workers = new Map(facts.workers)
  const book = (runId: string) => writes.books.get(runId) ?? facts.books.get(runId)
  return {
    writes,
    book,
    live: (fence) => (live.get(fence.runId)?.has(fence.worker) === true ? book(fence.runId) : undefined),
    change: (before, parts) => void writes.books.set(before.runId, { ...before, ...parts }),
    latest: (id) => versions.get(id) ?? 0,
    version: (id) => {
      const next = (versions.get(id) ?? 0) + 1
      versions.set(id, next)
      return next
    },
    // What was read, with what this group itself opened and closed: an interrupted worker's last writes may stand before the claim.
    open: (runId) => {
      const closed = new Set(writes.closed.map(holdId))
      const opened = [...writes.holds.values()].filter((record) => record.runId === runId)
      return [...(facts.holds.get(runId) ?? []), ...opened].filter((record) => !closed.has(holdId(record)))
    },
    // A hold that opens and closes in one group was never written: there is nothing to delete.
    close: (record) => {
      if (!writes.holds.delete(holdId(record))) writes.closed.push(record)
    },
    latestWorker: (runId) => workers.get(runId) ?? 0,
    claim: (worker, dead) => {
      const others = [...(live.get(worker.runId) ?? [])].filter((other) => !dead.includes(other))
      live.set(worker.runId, new Set([...others, worker.worker]))
      workers.set(worker.runId, worker.worker)
    }
  }
}

const decideOne = (op: Op, group: Group): Verdict => {
  switch (op._tag) {
    case "Create":
      return create(op, group)
    case "Claim":
      return claim(op, group)
    case "Hold":
      return hold(op, group)
    case "Settle":
    case "Uncertain":
    case "Release":
      return close(op, group)
    case "Snapshot":
      return snapshot(op, "", 0, group)
    case "DropCheckpoints":
      // Only what is there by now: a snapshot later in this group is written before the deletes, and stays.
      group.writes.prunes.push({ id: op.id, upto: group.latest(op.id), all: true })
      return ok
    case "Put":
      group.writes.puts.push(op)
      return ok
    case "Barrier":
      return ok
    default: {
      const book = group.live(op.fence)
      return book === undefined ? fenced : decideFenced(op, book, group)
    }
  }
}

type FencedOp = Extract<Op, { readonly fence: Fence }>

const decideFenced = (op: FencedOp, book: Book, group: Group): Verdict => {
  switch (op._tag) {
    case "Load":
      group.writes.rows.push(...op.rows)
      group.change(book, {
        rows: book.rows + op.rows.length,
        filtered: book.filtered + op.filtered,
        status: op.last ? "running" : "loading"
      })
      return ok
    case "Beat":
      group.writes.beats.push({ ...op.fence, at: op.at })
      return ok
    case "Unload":
      group.writes.unloads.push({ runId: book.runId, discard: op.discard })
      group.change(book, { rows: 0, filtered: 0, status: "loading" })
      return ok
    case "Quit":
      group.writes.workers.push({ ...op.fence, live: false, host: "", pid: 0, startedAt: 0, beatAt: 0 })
      return ok
    case "Limits":
      group.change(book, withLimits(book, op.limits))
      return ok
    case "Status":
      group.change(book, { status: op.status, reason: op.reason })
      return ok
    case "Reopen":
      return reopen(op.rows, book, group)
    case "Outcome":
      return outcome(op, book, group)
    case "RunSnapshot":
      if (op.status === "DONE") group.change(book, { status: "done", reason: null })
      if (op.status === "SUSPENDED") group.change(book, { status: "suspended", reason: op.reason ?? null })
      return snapshot({ ...op, id: book.runId, metadata: "{}" }, progressState(book), book.commitSeq, group)
  }
}

/**
 * A book under new limits; what is `undefined` stays.
 *
 * @since 0.1.0
 */
export const withLimits = (book: Book, limits: Limits): Book => ({
  ...book,
  cap: limits.cap === undefined ? book.cap : limits.cap,
  maxCalls: limits.maxCalls === undefined ? book.maxCalls : limits.maxCalls,
  maxConcurrency: limits.maxConcurrency ?? book.maxConcurrency,
  settings: limits.settings ?? book.settings
})

const create = (op: Extract<Op, { _tag: "Create" }>, group: Group): Verdict => {
  if (group.book(op.book.runId) !== undefined) return refused("exists")
  group.writes.created.add(op.book.runId)
  group.writes.books.set(op.book.runId, op.book)
  return ok
}

/** A worker takes a run over: the dead ones are fenced and their open holds become uncertain, in the same commit. */
const claim = (op: Extract<Op, { _tag: "Claim" }>, group: Group): Verdict => {
  const { worker, dead } = op
  const book = group.book(worker.runId)
  if (book === undefined || group.latestWorker(worker.runId) !== worker.worker - 1) return refused("claimed")
  // Also those of a worker that is not live for another reason: nobody else would ever close them.
  const isDead = (record: HoldRecord) => dead.includes(record.worker) || group.live(record) === undefined
  const open = group.open(worker.runId).filter(isDead)
  for (const record of open) {
    group.close(record)
    group.writes.calls.push(closed(record, "uncertain", record.amount, noTokens, "crash", worker.beatAt))
  }
  const moved = open.reduce((sum, record) => sum + record.amount, 0)
  group.change(book, { held: Usd.nano(book.held - moved), uncertain: Usd.nano(book.uncertain + moved) })
  for (const other of dead) {
    group.writes.workers.push({
      runId: worker.runId,
      worker: other,
      live: false,
      host: "",
      pid: 0,
      startedAt: 0,
      beatAt: 0
    })
  }
  group.writes.workers.push(worker)
  group.claim(worker, dead)
  return ok
}

/** The cap is held here, before the call: spent + uncertain + held + this must not pass it. */
const hold = (op: Extract<Op, { _tag: "Hold" }>, group: Group): Verdict => {
  const book = group.live(op.hold)
  if (book === undefined) return fenced
  const { amount, attempt, turn } = op.hold
  if (book.cap !== null && book.spent + book.uncertain + book.held + amount > book.cap) return refused("cap")
  if (book.maxCalls !== null && book.calls >= book.maxCalls) return refused("max_calls")
  group.writes.holds.set(holdId(op.hold), op.hold)
  group.change(book, {
    held: Usd.add(book.held, amount),
    calls: book.calls + 1,
    retries: book.retries + (attempt > 0 ? 1 : 0),
    repairs: book.repairs + (turn > 0 && attempt === 0 ? 1 : 0)
  })
  return ok
}

/**
 * One text for one hold.
 *
 * @since 0.1.0
 */
export const holdId = (record: HoldRecord): string => `${record.runId}/${record.worker}/${record.n}`

const close = (op: Extract<Op, { _tag: "Settle" | "Uncertain" | "Release" }>, group: Group): Verdict => {
  const { hold: record } = op
  const book = group.live(record)
  if (book === undefined) return fenced
  const held = Usd.nano(book.held - record.amount)
  group.close(record)
  switch (op._tag) {
    case "Settle": {
      const { usage, cost } = op.close
      group.writes.calls.push({
        ...closed(record, "settled", cost, usage, op.close.reason, op.close.at),
        ...pick(op.close)
      })
      group.change(book, { held, spent: Usd.add(book.spent, cost), ...addTokens(book, usage) })
      return ok
    }
    case "Uncertain":
      group.writes.calls.push({
        ...closed(record, "uncertain", record.amount, noTokens, op.reason, op.at),
        answer: op.answer
      })
      group.change(book, { held, uncertain: Usd.add(book.uncertain, record.amount) })
      return ok
    case "Release":
      if (!op.sent) {
        group.change(book, {
          held,
          calls: book.calls - 1,
          retries: book.retries - (record.attempt > 0 ? 1 : 0),
          repairs: book.repairs - (record.turn > 0 && record.attempt === 0 ? 1 : 0)
        })
        return ok
      }
      group.writes.calls.push(closed(record, "released", Usd.zero, noTokens, op.reason, op.at))
      group.change(book, { held })
      return ok
  }
}

const addTokens = (book: Book, usage: TokenUsage): TokenUsage => ({
  inputTokens: book.inputTokens + usage.inputTokens,
  cachedTokens: book.cachedTokens + usage.cachedTokens,
  cacheWriteTokens: book.cacheWriteTokens + usage.cacheWriteTokens,
  outputTokens: book.outputTokens + usage.outputTokens,
  reasoningTokens: book.reasoningTokens + usage.reasoningTokens
})

const pick = (close: Settled) => ({ answer: close.answer, finish: close.finish, requestId: close.requestId })

const closed = (
  record: HoldRecord,
  state: CallRecord["state"],
  cost: Usd,
  usage: TokenUsage,
  reason: string,
  closedAt: number
): CallRecord => ({
  state,
  cost,
  inputTokens: usage.inputTokens,
  cachedTokens: usage.cachedTokens,
  cacheWriteTokens: usage.cacheWriteTokens,
  outputTokens: usage.outputTokens,
  reasoningTokens: usage.reasoningTokens,
  reason,
  answer: null,
  finish: null,
  requestId: null,
  closedAt,
  // Last: V8 makes a new hidden class for each name that follows a spread, 1 µs a name.
  ...record
})

const outcome = (op: Extract<Op, { _tag: "Outcome" }>, book: Book, group: Group): Verdict => {
  const { facts, outcome: end } = op
  const commitSeq = book.commitSeq + 1
  group.writes.outcomes.push({ commitSeq, ...end })
  group.change(book, {
    commitSeq,
    [end.kind]: book[end.kind] + 1,
    storeHits: book.storeHits + (facts.storeHit ? 1 : 0),
    memoHits: book.memoHits + facts.memoHits,
    replays: book.replays + facts.replays,
    repairs: book.repairs + facts.freeRepairs,
    unasked: book.unasked + (facts.unasked ? 1 : 0)
  })
  return ok
}

/** A deliberate re-run: the rows go to a new epoch and are pending again; their older outcomes stay. */
const reopen = (rows: ReadonlyArray<OutcomeRecord>, book: Book, group: Group): Verdict => {
  const count = (kind: OutcomeRecord["kind"]) => rows.filter((row) => row.kind === kind).length
  for (const row of rows) group.writes.epochs.push({ runId: book.runId, seq: row.seq, epoch: row.epoch + 1 })
  group.change(book, {
    done: book.done - count("done"),
    partial: book.partial - count("partial"),
    failed: book.failed - count("failed"),
    reruns: book.reruns + rows.length,
    status: "running",
    reason: null
  })
  return ok
}

const snapshot = (
  op: Pick<Extract<Op, { _tag: "Snapshot" }>, "id" | "status" | "metadata" | "keep" | "at"> & {
    readonly state?: string
  },
  state: string,
  uptoCommitSeq: number,
  group: Group
): Verdict => {
  const version = group.version(op.id)
  group.writes.checkpoints.push({
    id: op.id,
    version,
    status: op.status,
    state: op.state ?? state,
    metadata: op.metadata,
    uptoCommitSeq,
    at: op.at
  })
  if (op.keep !== "all") group.writes.prunes.push({ id: op.id, upto: version - Math.max(1, op.keep), all: false })
  return { _tag: "Version", version }
}

/** The progress that a run's snapshot holds: of constant size, whatever the number of rows. */
const progressState = (book: Book): string =>
  JSON.stringify({
    nextChunk: Math.ceil((book.done + book.partial + book.failed) / book.chunkSize),
    rows: book.rows,
    done: book.done,
    partial: book.partial,
    failed: book.failed,
    spent: book.spent,
    uncertain: book.uncertain,
    calls: book.calls
  })
