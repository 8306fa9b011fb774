/**
 * A journal in memory: the same rule and the same laws as a durable one, within one process.
 *
 * @since 0.1.0
 */
import { Effect, Layer, type Scope } from "effect"
import {
  type Book,
  type CallRecord,
  type CheckpointRecord,
  type CorrectionRecord,
  callId,
  type Facts,
  type HoldRecord,
  type Needs,
  type OrderRecord,
  type OutcomeRecord,
  type Pool,
  type RowRecord,
  rowId,
  type WorkerRecord,
  type Writes
} from "../services/Book.ts"
import { corrected, type Driver, Journal, make, type Reads, type RowResult } from "../services/Journal.ts"

interface Tables {
  readonly books: Map<string, Book>
  readonly pools: Map<string, Pool>
  readonly rows: Map<string, Array<RowRecord>>
  readonly workers: Map<string, Map<number, WorkerRecord>>
  readonly holds: Map<string, HoldRecord>
  readonly calls: Map<string, Array<CallRecord>>
  readonly corrections: Map<string, CorrectionRecord>
  readonly orders: Map<string, Array<OrderRecord>>
  /** By run, then by `seq`; each row's outcomes in order of epoch. */
  readonly outcomes: Map<string, Map<number, ReadonlyArray<OutcomeRecord>>>
  readonly checkpoints: Map<string, Map<number, CheckpointRecord>>
  readonly latest: Map<string, number>
  readonly values: Map<string, string>
}

let made = 0

/**
 * A fresh memory driver.
 *
 * @since 0.1.0
 */
export const makeDriver = (): Driver => {
  const tables: Tables = {
    books: new Map(),
    pools: new Map(),
    rows: new Map(),
    workers: new Map(),
    holds: new Map(),
    calls: new Map(),
    corrections: new Map(),
    orders: new Map(),
    outcomes: new Map(),
    checkpoints: new Map(),
    latest: new Map(),
    values: new Map()
  }
  return {
    durable: false,
    location: `memory #${++made}`,
    reads: reads(tables),
    lock: locks(),
    check: Effect.void,
    anchor: () => Effect.succeed(undefined),
    transact: (needs, decide) => Effect.sync(() => apply(tables, decide(factsOf(tables, needs))))
  }
}

/**
 * The journal in memory.
 *
 * @since 0.1.0
 */
export const layer: Layer.Layer<Journal> = Layer.scoped(
  Journal,
  Effect.suspend(() => make(makeDriver()))
)

/**
 * Locks of this process alone: one run, one holder.
 *
 * @since 0.1.0
 */
export const locks = () => {
  const held = new Set<string>()
  return (runId: string): Effect.Effect<boolean, never, Scope.Scope> =>
    Effect.acquireRelease(
      Effect.sync(() => !held.has(runId) && held.add(runId).has(runId)),
      (mine) => Effect.sync(() => mine && held.delete(runId))
    )
}

const inner = <K, L, V>(map: Map<K, Map<L, V>>, key: K): Map<L, V> => {
  const found = map.get(key) ?? new Map<L, V>()
  map.set(key, found)
  return found
}

const list = <K, V>(map: Map<K, Array<V>>, key: K): Array<V> => {
  const found = map.get(key) ?? []
  map.set(key, found)
  return found
}

const factsOf = (tables: Tables, needs: Needs): Facts => ({
  books: new Map([...needs.runs].flatMap((id) => entry(id, tables.books.get(id)))),
  pools: new Map(poolsOf(tables, needs).flatMap((id) => entry(id, tables.pools.get(id)))),
  live: new Map([...needs.runs].map((id) => [id, liveOf(tables, id)])),
  versions: new Map([...needs.checkpoints].map((id) => [id, tables.latest.get(id) ?? 0])),
  holds: new Map([...needs.claims].map((id) => [id, [...tables.holds.values()].filter((hold) => hold.runId === id)])),
  workers: new Map([...needs.claims].map((id) => [id, Math.max(0, ...inner(tables.workers, id).keys())])),
  epochs: new Map(needs.rows.flatMap((id) => entry(rowId(id), list(tables.rows, id.runId)[id.seq]?.epoch))),
  uncertain: new Map(
    needs.uncertain.flatMap((id) => {
      const call = list(tables.calls, id.runId).find((call) => callId(call) === callId(id))
      const counts = call?.state === "uncertain" && !tables.corrections.has(callId(id))
      return entry(callId(id), counts ? call.cost : undefined)
    })
  )
})

const poolsOf = (tables: Tables, needs: Needs): ReadonlyArray<string> => [
  ...needs.pools,
  ...[...needs.runs].flatMap((id) => tables.books.get(id)?.pool ?? [])
]

const sumOf = (books: ReadonlyArray<Book>, pool: string) => {
  const sums = { spent: 0, uncertain: 0, held: 0 }
  for (const book of books) {
    if (book.pool !== pool) continue
    sums.spent += book.spent
    sums.uncertain += book.uncertain
    sums.held += book.held
  }
  return sums
}

const entry = <K, V>(key: K, value: V | undefined): ReadonlyArray<readonly [K, V]> =>
  value === undefined ? [] : [[key, value]]

const liveOf = (tables: Tables, id: string): ReadonlySet<number> =>
  new Set([...inner(tables.workers, id).values()].filter((worker) => worker.live).map((worker) => worker.worker))

const apply = (tables: Tables, writes: Writes): void => {
  for (const [id, book] of writes.books) tables.books.set(id, Object.freeze(book))
  for (const [id, pool] of writes.pools) tables.pools.set(id, Object.freeze(pool))
  for (const worker of writes.workers) writeWorker(tables, worker)
  for (const beat of writes.beats) writeBeat(tables, beat)
  for (const { discard, runId } of writes.unloads) {
    tables.rows.delete(runId)
    if (discard) tables.books.delete(runId)
    if (discard) tables.workers.delete(runId)
  }
  for (const row of writes.rows) list(tables.rows, row.runId)[row.seq] = row
  for (const row of writes.changed) list(tables.rows, row.runId)[row.seq] = row
  for (const row of writes.removed) delete list(tables.rows, row.runId)[row.seq]
  for (const { epoch, runId, seq } of writes.epochs) {
    const rows = list(tables.rows, runId)
    const row = rows[seq]
    if (row !== undefined) rows[seq] = { ...row, epoch }
  }
  for (const order of writes.orders) list(tables.orders, order.runId).push(order)
  for (const [id, hold] of writes.holds) tables.holds.set(id, hold)
  for (const hold of writes.closed) tables.holds.delete(callId(hold))
  for (const call of writes.calls) list(tables.calls, call.runId).push(call)
  for (const correction of writes.corrections) tables.corrections.set(callId(correction), correction)
  for (const outcome of writes.outcomes) {
    const ofRun = inner(tables.outcomes, outcome.runId)
    ofRun.set(outcome.seq, [...(ofRun.get(outcome.seq) ?? []), outcome])
  }
  for (const checkpoint of writes.checkpoints) {
    inner(tables.checkpoints, checkpoint.id).set(checkpoint.version, Object.freeze(checkpoint))
    tables.latest.set(checkpoint.id, checkpoint.version)
  }
  for (const { all, id, upto } of writes.prunes) {
    if (all) tables.latest.delete(id)
    const versions = inner(tables.checkpoints, id)
    for (const { status, version } of [...versions.values()]) {
      if (version <= upto && (all || status !== "DONE")) versions.delete(version)
    }
  }
  for (const put of writes.puts) {
    for (const [key, value] of put.entries) if (put.replace || !tables.values.has(key)) tables.values.set(key, value)
  }
}

const writeBeat = (tables: Tables, { at, runId, sign, worker }: Writes["beats"][number]): void => {
  const before = inner(tables.workers, runId).get(worker)
  if (before !== undefined) inner(tables.workers, runId).set(worker, { ...before, beatAt: at, sign })
}

const writeWorker = (tables: Tables, worker: WorkerRecord): void => {
  const workers = inner(tables.workers, worker.runId)
  const before = workers.get(worker.worker)
  workers.set(worker.worker, before === undefined || worker.live ? worker : { ...before, live: false })
}

const reads = (tables: Tables): Reads => {
  const latest = (row: RowRecord, upto = Number.POSITIVE_INFINITY) =>
    inner(tables.outcomes, row.runId)
      .get(row.seq)
      ?.findLast((outcome) => outcome.commitSeq <= upto)
  const rowsOf = (runId: string) => list(tables.rows, runId).filter((row) => row !== undefined)
  const callsOf = (runId: string) =>
    list(tables.calls, runId).map((call) => corrected(call, tables.corrections.get(callId(call))))
  const isPending = (row: RowRecord) => latest(row)?.epoch !== row.epoch
  const covered = (row: RowRecord, commitSeq: number) =>
    (inner(tables.outcomes, row.runId).get(row.seq) ?? []).some((outcome) => outcome.commitSeq <= commitSeq)
  return {
    book: (runId) => Effect.sync(() => tables.books.get(runId)),
    books: Effect.sync(() => [...tables.books.values()]),
    pool: (id) =>
      Effect.sync(() => {
        const pool = tables.pools.get(id)
        return pool === undefined ? undefined : { pool, sums: sumOf([...tables.books.values()], id) }
      }),
    workers: (runId) => Effect.sync(() => [...inner(tables.workers, runId).values()]),
    pending: (runId, after, limit) =>
      Effect.sync(() => {
        const rows = list(tables.rows, runId)
        const page: Array<RowRecord> = []
        for (let seq = after + 1; seq < rows.length && page.length < limit; seq++) {
          const row = rows[seq]
          if (row !== undefined && isPending(row)) page.push(row)
        }
        return page
      }),
    results: (runId, after, limit, upto) =>
      Effect.sync(() => {
        const rows = list(tables.rows, runId)
        const page: Array<RowResult> = []
        for (let seq = after + 1; seq < rows.length && page.length < limit; seq++) {
          const row = rows[seq]
          if (row !== undefined) page.push({ row, outcome: latest(row, upto) })
        }
        return page
      }),
    orders: (runId, after) => Effect.sync(() => list(tables.orders, runId).filter(({ n }) => n > after)),
    openCalls: (runId) =>
      Effect.sync(() => {
        const rows = list(tables.rows, runId)
        return callsOf(runId).filter((call) => {
          const row = rows[call.seq]
          return row !== undefined && isPending(row)
        })
      }),
    calls: (runId, after, limit) =>
      Effect.sync(() =>
        callsOf(runId)
          .filter(({ n, worker }) => worker > after.worker || (worker === after.worker && n > after.n))
          .sort((a, b) => a.worker - b.worker || a.n - b.n)
          .slice(0, limit)
      ),
    uncertain: (runId) => Effect.sync(() => callsOf(runId).filter((call) => call.state === "uncertain")),
    inFlight: (runId) => Effect.sync(() => [...tables.holds.values()].filter((hold) => hold.runId === runId).length),
    lastCall: ({ runId, worker }) =>
      Effect.sync(() => Math.max(0, ...callsOf(runId).flatMap((call) => (call.worker === worker ? [call.n] : [])))),
    audit: (runId) =>
      Effect.sync(() => {
        const book = tables.books.get(runId)
        if (book === undefined) return undefined
        const costOf = (state: CallRecord["state"]) =>
          callsOf(runId).reduce((sum, call) => sum + (call.state === state ? call.cost : 0), 0)
        const holds = [...tables.holds.values()].filter((hold) => hold.runId === runId)
        const rows = rowsOf(runId)
        const sums = {
          spent: costOf("settled"),
          uncertain: costOf("uncertain"),
          held: holds.reduce((sum, { amount }) => sum + amount, 0),
          rows: rows.length,
          ended: rows.filter((row) => !isPending(row)).length
        }
        return { book, sums }
      }),
    idsUpto: (runId, commitSeq) =>
      Effect.sync(() =>
        rowsOf(runId)
          .filter((row) => covered(row, commitSeq))
          .map((row) => row.id)
      ),
    checkpoints: (id) => Effect.sync(() => [...inner(tables.checkpoints, id).keys()].sort((a, b) => a - b)),
    checkpoint: (id, version) =>
      Effect.sync(() => {
        const latestVersion = tables.latest.get(id) ?? 0
        return inner(tables.checkpoints, id).get(version ?? latestVersion)
      }),
    values: (keys) => Effect.sync(() => new Map(keys.flatMap((key) => entry(key, tables.values.get(key)))))
  }
}
