/**
 * The rule of the book: operations, in order, against what was read, give one verdict each and what must be written. Pure; every backend runs it inside its own
 * transaction and supplies only storage.
 *
 * @since 0.1.0
 */
import { fenced, type Group, gone, makeGroup, ok, refused } from "./Group.ts"
import { claim, close, correct, hold } from "./Ledger.ts"
import * as Orders from "./Orders.ts"
import type { Book, CallId, Changes, Ended, Facts, Fence, Needs, Op, RowId, Verdict, Writes } from "./Records.ts"
import { Usd } from "./Usd.ts"

export { callId, rowId } from "./Group.ts"
export { withLimits } from "./Orders.ts"
export type * from "./Records.ts"

/**
 * What the operations need to know.
 *
 * @since 0.1.0
 */
export const needs = (ops: ReadonlyArray<Op>): Needs => {
  const runs = new Set<string>()
  const pools = new Set<string>()
  const checkpoints = new Set<string>()
  const claims = new Set<string>()
  const uncertain: Array<CallId> = []
  const rows: Array<RowId> = []
  for (const op of ops) {
    const run = runOf(op)
    if (run !== undefined) runs.add(run)
    if (op._tag === "Pool") pools.add(op.id)
    if (op._tag === "Create" && op.book.pool !== null) pools.add(op.book.pool)
    if (op._tag === "Claim") claims.add(op.worker.runId)
    if (op._tag === "Correct") uncertain.push(op.correction)
    for (const { seq } of rerunsOf(op)) rows.push({ runId: runOf(op) ?? "", seq })
    if (op._tag === "RunSnapshot") checkpoints.add(op.fence.runId)
    if (op._tag === "Snapshot" || op._tag === "DropCheckpoints") checkpoints.add(op.id)
  }
  return { runs, pools, checkpoints, claims, uncertain, rows }
}

const rerunsOf = (op: Op): ReadonlyArray<Ended> => {
  if (op._tag === "Reopen") return op.rows
  return op._tag === "Order" && op.order._tag === "Requeue" ? op.order.rows : []
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
    case "Correct":
      return op.correction.runId
    case "Order":
      return op.runId
    case "Pool":
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

const decideOne = (op: Op, group: Group): Verdict => {
  switch (op._tag) {
    case "Create":
      return create(op, group)
    case "Pool":
      group.writes.pools.set(op.id, { ...(group.pool(op.id) ?? empty), id: op.id, cap: op.cap })
      return ok
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
    case "Correct":
      return correct(op.correction, group)
    case "Order":
      return Orders.give(op, group)
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
      group.writes.beats.push({ ...op.fence, at: op.at, sign: op.sign })
      return ok
    case "Unload": {
      // A run that counts money stays, whatever its source: what a lost database cost stands in it.
      const discard = op.discard && book.spent + book.uncertain + book.held === 0
      group.writes.unloads.push({ runId: book.runId, discard })
      group.change(book, { rows: 0, filtered: 0, status: "loading" })
      return ok
    }
    case "Quit":
      group.writes.workers.push(gone(op.fence))
      return ok
    case "Limits":
      if (isUnheard(op, book)) return refused("unheard")
      group.change(book, Orders.withLimits(book, op.limits))
      return ok
    case "Status":
      group.change(book, { status: op.status, reason: op.reason })
      return ok
    case "Reopen":
      group.change(book, { ...Orders.again(op.rows, book, group), status: "running", reason: null })
      return ok
    case "Refresh":
      return isUnheard(op, book) ? refused("unheard") : refresh(op.changes, book, group)
    case "Kept":
      group.change(book, { kept: op.rows })
      return ok
    case "Outcome":
      return outcome(op, book, group)
    case "RunSnapshot":
      return runSnapshot(op, book, group)
  }
}

/** What another process ordered just now is heard first: rows queued again, or more room under the cap. */
const isUnheard = ({ heard }: { readonly heard?: number }, book: Book): boolean =>
  heard !== undefined && heard < book.orders

const runSnapshot = (op: Extract<Op, { _tag: "RunSnapshot" }>, book: Book, group: Group): Verdict => {
  if (isUnheard(op, book)) return refused("unheard")
  if (op.status === "DONE" && book.done + book.partial + book.failed < book.rows) return refused("pending")
  if (op.status === "DONE") group.change(book, { status: "done", reason: null, paused: null })
  if (op.status === "SUSPENDED") group.change(book, { status: "suspended", reason: op.reason ?? null })
  return snapshot({ ...op, id: book.runId, metadata: "{}" }, progressState(book), book.commitSeq, group)
}

const empty = { spent: Usd.zero, uncertain: Usd.zero, held: Usd.zero }

const create = (op: Extract<Op, { _tag: "Create" }>, group: Group): Verdict => {
  const { pool, runId } = op.book
  if (group.book(runId) !== undefined) return refused("exists")
  if (pool !== null && group.pool(pool) === undefined) return refused("not_found")
  group.writes.created.add(runId)
  group.writes.books.set(runId, op.book)
  return ok
}

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

/** The manifest follows its source: as a whole, or a kill would leave half of the changes. */
const refresh = ({ added, again, changed, removed, source }: Changes, book: Book, group: Group): Verdict => {
  // One by one: a call takes some hundred thousand arguments at most.
  for (const row of added) group.writes.rows.push(row)
  for (const row of changed) group.writes.changed.push(row)
  for (const row of removed) group.writes.removed.push(row)
  const rows = book.rows + added.length - removed.length
  const counts = Orders.pendingAgain(again, book)
  // "running" says that a killed process did not hand its results on to the store.
  const isKept = book.status === "running" || counts.done + counts.partial + counts.failed === rows
  group.change(book, {
    ...counts,
    rows,
    source,
    status: isKept ? book.status : "suspended",
    reason: isKept ? book.reason : { kind: "operator", message: "rows were added or changed" }
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
