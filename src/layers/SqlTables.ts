/**
 * The tables of a run in SQL, and the way between a row and a record.
 *
 * @since 0.1.0
 */
import { crc32 } from "node:zlib"
import { Schema } from "effect"
import type {
  Book,
  CallRecord,
  CheckpointRecord,
  CorrectionRecord,
  HoldRecord,
  OrderRecord,
  OutcomeRecord,
  Pool,
  RowRecord,
  WorkerRecord
} from "../services/Book.ts"
import { StopReason } from "../services/Errors.ts"
import { Canary, Order, Pause } from "../services/Orders.ts"
import { Usd } from "../services/Usd.ts"

/** What a statement binds. @since 0.1.0 */
export type Cell = string | number | null
/** The columns of a table, each with a record's cell. @since 0.1.0 */
export type Columns<A> = ReadonlyArray<readonly [column: string, cell: (record: A) => Cell]>

/** Damage, not malice: one flipped bit in a payload passes SQLite's own check. */
const checksum = (...texts: ReadonlyArray<string>): number => texts.reduce((sum, part) => crc32(part, sum), 0)

/** What was written, or an error. */
const sound = (row: Row, ...texts: ReadonlyArray<string>): void => {
  if (row.crc === null || num(row.crc) === checksum(...texts)) return
  throw new Error(`a stored record (${texts[0]?.slice(0, 80)}) is not what was written`)
}

const json = (value: object | null) => (value === null ? null : JSON.stringify(value))

/** Columns of `run`. @since 0.1.0 */
export const bookColumns: Columns<Book> = [
  ["run_id", (book) => book.runId],
  ["job", (book) => book.job],
  ["scope", (book) => book.scope],
  ["status", (book) => book.status],
  ["reason", (book) => json(book.reason)],
  ["paused", (book) => json(book.paused)],
  ["canary", (book) => json(book.canary)],
  ["orders", (book) => book.orders],
  ["settings", (book) => book.settings],
  ["source", (book) => book.source],
  ["created_at", (book) => book.createdAt],
  ["cap", (book) => book.cap],
  ["pool", (book) => book.pool],
  ["max_calls", (book) => book.maxCalls],
  ["max_concurrency", (book) => book.maxConcurrency],
  ["requests_per_minute", (book) => book.requestsPerMinute],
  ["tokens_per_minute", (book) => book.tokensPerMinute],
  ["chunk_size", (book) => book.chunkSize],
  ["row_count", (book) => book.rows],
  ["filtered", (book) => book.filtered],
  ["spent", (book) => book.spent],
  ["uncertain", (book) => book.uncertain],
  ["held", (book) => book.held],
  ["calls", (book) => book.calls],
  ["retries", (book) => book.retries],
  ["repairs", (book) => book.repairs],
  ["replays", (book) => book.replays],
  ["store_hits", (book) => book.storeHits],
  ["memo_hits", (book) => book.memoHits],
  ["unasked", (book) => book.unasked],
  ["reruns", (book) => book.reruns],
  ["input_tokens", (book) => book.inputTokens],
  ["cached_tokens", (book) => book.cachedTokens],
  ["cache_write_tokens", (book) => book.cacheWriteTokens],
  ["output_tokens", (book) => book.outputTokens],
  ["reasoning_tokens", (book) => book.reasoningTokens],
  ["done", (book) => book.done],
  ["partial", (book) => book.partial],
  ["failed", (book) => book.failed],
  ["kept", (book) => book.kept],
  ["commit_seq", (book) => book.commitSeq]
]

/** Columns of `pool`. @since 0.1.0 */
export const poolColumns: Columns<Pool> = [
  ["id", (pool) => pool.id],
  ["cap", (pool) => pool.cap],
  ["spent", (pool) => pool.spent],
  ["uncertain", (pool) => pool.uncertain],
  ["held", (pool) => pool.held]
]

/** Columns of `worker`. @since 0.1.0 */
export const workerColumns: Columns<WorkerRecord> = [
  ["run_id", (worker) => worker.runId],
  ["worker", (worker) => worker.worker],
  ["live", (worker) => (worker.live ? 1 : 0)],
  ["host", (worker) => worker.host],
  ["pid", (worker) => worker.pid],
  ["started_at", (worker) => worker.startedAt],
  ["beat_at", (worker) => worker.beatAt],
  ["phase", (worker) => worker.sign?.phase ?? null],
  ["allowed", (worker) => worker.sign?.allowed ?? null]
]

/** Columns of `manifest`. @since 0.1.0 */
export const rowColumns: Columns<RowRecord> = [
  ["run_id", (row) => row.runId],
  ["seq", (row) => row.seq],
  ["id", (row) => row.id],
  ["version", (row) => row.version],
  ["line", (row) => row.line],
  ["value", (row) => row.value],
  ["epoch", (row) => row.epoch],
  ["crc", (row) => checksum(row.id, row.version, row.value)]
]

/** Columns of `hold`. @since 0.1.0 */
export const holdColumns: Columns<HoldRecord> = [
  ["run_id", (hold) => hold.runId],
  ["worker", (hold) => hold.worker],
  ["n", (hold) => hold.n],
  ["seq", (hold) => hold.seq],
  ["epoch", (hold) => hold.epoch],
  ["turn", (hold) => hold.turn],
  ["attempt", (hold) => hold.attempt],
  ["request", (hold) => hold.request],
  ["model", (hold) => hold.model],
  ["amount", (hold) => hold.amount],
  ["price", (hold) => hold.price],
  ["at", (hold) => hold.at]
]

/** Columns of `call`. @since 0.1.0 */
export const callColumns: Columns<CallRecord> = [
  ...holdColumns,
  ["state", (call) => call.state],
  ["cost", (call) => call.cost],
  ["input_tokens", (call) => call.inputTokens],
  ["cached_tokens", (call) => call.cachedTokens],
  ["cache_write_tokens", (call) => call.cacheWriteTokens],
  ["output_tokens", (call) => call.outputTokens],
  ["reasoning_tokens", (call) => call.reasoningTokens],
  ["reason", (call) => call.reason],
  ["answer", (call) => call.answer],
  ["finish", (call) => call.finish],
  ["request_id", (call) => call.requestId],
  ["closed_at", (call) => call.closedAt],
  ["crc", (call) => checksum(call.request, call.answer ?? "")]
]

/** Columns of `correction`. @since 0.1.0 */
export const correctionColumns: Columns<CorrectionRecord> = [
  ["run_id", (correction) => correction.runId],
  ["worker", (correction) => correction.worker],
  ["n", (correction) => correction.n],
  ["source", (correction) => correction.source],
  ["cost", (correction) => correction.cost],
  ["input_tokens", (correction) => correction.inputTokens],
  ["cached_tokens", (correction) => correction.cachedTokens],
  ["cache_write_tokens", (correction) => correction.cacheWriteTokens],
  ["output_tokens", (correction) => correction.outputTokens],
  ["reasoning_tokens", (correction) => correction.reasoningTokens],
  ["answer", (correction) => correction.answer],
  ["note", (correction) => correction.note],
  ["at", (correction) => correction.at],
  ["crc", (correction) => checksum(correction.answer ?? "", correction.note)]
]

/** Columns of `steering`. @since 0.1.0 */
export const orderColumns: Columns<OrderRecord> = [
  ["run_id", (record) => record.runId],
  ["n", (record) => record.n],
  ["by", (record) => record.by],
  ["given", (record) => JSON.stringify(record.order)],
  ["at", (record) => record.at],
  ["crc", (record) => checksum(record.by, JSON.stringify(record.order))]
]

/** Columns of `outcome`. @since 0.1.0 */
export const outcomeColumns: Columns<OutcomeRecord> = [
  ["run_id", (outcome) => outcome.runId],
  ["seq", (outcome) => outcome.seq],
  ["epoch", (outcome) => outcome.epoch],
  ["commit_seq", (outcome) => outcome.commitSeq],
  ["kind", (outcome) => outcome.kind],
  ["category", (outcome) => outcome.category],
  ["key", (outcome) => outcome.key],
  ["fallback", (outcome) => (outcome.fallback ? 1 : 0)],
  ["made", (outcome) => outcome.made],
  ["value", (outcome) => outcome.value],
  ["crc", (outcome) => checksum(outcome.key, outcome.made, outcome.value)]
]

/** Columns of `checkpoint`. @since 0.1.0 */
export const checkpointColumns: Columns<CheckpointRecord> = [
  ["id", (checkpoint) => checkpoint.id],
  ["version", (checkpoint) => checkpoint.version],
  ["status", (checkpoint) => checkpoint.status],
  ["state", (checkpoint) => checkpoint.state],
  ["metadata", (checkpoint) => checkpoint.metadata],
  ["upto_commit_seq", (checkpoint) => checkpoint.uptoCommitSeq],
  ["at", (checkpoint) => checkpoint.at],
  ["crc", (checkpoint) => checksum(checkpoint.id, checkpoint.state, checkpoint.metadata)]
]

/** Columns of `store`. @since 0.1.0 */
export const storeColumns: Columns<readonly [string, string]> = [
  ["key", ([key]) => key],
  ["value", ([, value]) => value],
  ["crc", ([key, value]) => checksum(key, value)]
]

/** What a driver may hand out for one row; Postgres gives a bigint as text. @since 0.1.0 */
export type Row = Readonly<Record<string, unknown>>

/** A cell as a number. @since 0.1.0 */
export const num = (cell: unknown): number => Number(cell)
/** A cell as text. @since 0.1.0 */
export const str = (cell: unknown): string => String(cell)
const strOrNull = (cell: unknown): string | null => (cell === null ? null : String(cell))
const numOrNull = (cell: unknown): number | null => (cell === null ? null : Number(cell))
const usdOrNull = (cell: unknown): Usd | null => (cell === null ? null : Usd.nano(Number(cell)))
const oneOf =
  <A extends string>(...values: ReadonlyArray<A>) =>
  (cell: unknown): A => {
    const found = values.find((value) => value === cell)
    if (found === undefined) throw new Error(`unexpected value ${str(cell)} in the database`)
    return found
  }
const runStatus = oneOf("loading", "running", "suspended", "done", "cancelled")
const callState = oneOf("settled", "uncertain", "released")
const outcomeKind = oneOf("done", "partial", "failed")
const phase = oneOf("loading", "running", "paused", "cooling", "provider_down", "stopping")
const checkpointStatus = oneOf("RUNNING", "SUSPENDED", "DONE")
const correctionSource = oneOf("late", "report", "lookup")
const jsonOf = <A, I>(schema: Schema.Schema<A, I>) => {
  const decode = Schema.decodeUnknownSync(Schema.parseJson(schema))
  return (cell: unknown): A | null => (cell === null ? null : decode(cell))
}
const toReason = jsonOf(StopReason)
const toPause = jsonOf(Pause)
const toCanary = jsonOf(Canary)
const toGiven = Schema.decodeUnknownSync(Schema.parseJson(Order))

/** A row of `run`. @since 0.1.0 */
export const toBook = (row: Row): Book => ({
  runId: str(row.run_id),
  job: str(row.job),
  scope: str(row.scope),
  status: runStatus(row.status),
  reason: toReason(row.reason),
  paused: toPause(row.paused),
  canary: toCanary(row.canary),
  orders: num(row.orders),
  settings: str(row.settings),
  source: str(row.source),
  createdAt: num(row.created_at),
  cap: usdOrNull(row.cap),
  pool: strOrNull(row.pool),
  maxCalls: numOrNull(row.max_calls),
  maxConcurrency: num(row.max_concurrency),
  requestsPerMinute: numOrNull(row.requests_per_minute),
  tokensPerMinute: numOrNull(row.tokens_per_minute),
  chunkSize: num(row.chunk_size),
  rows: num(row.row_count),
  filtered: num(row.filtered),
  spent: Usd.nano(num(row.spent)),
  uncertain: Usd.nano(num(row.uncertain)),
  held: Usd.nano(num(row.held)),
  calls: num(row.calls),
  retries: num(row.retries),
  repairs: num(row.repairs),
  replays: num(row.replays),
  storeHits: num(row.store_hits),
  memoHits: num(row.memo_hits),
  unasked: num(row.unasked),
  reruns: num(row.reruns),
  ...toTokens(row),
  done: num(row.done),
  partial: num(row.partial),
  failed: num(row.failed),
  kept: num(row.kept),
  commitSeq: num(row.commit_seq)
})

const toTokens = (row: Row) => ({
  inputTokens: num(row.input_tokens),
  cachedTokens: num(row.cached_tokens),
  cacheWriteTokens: num(row.cache_write_tokens),
  outputTokens: num(row.output_tokens),
  reasoningTokens: num(row.reasoning_tokens)
})

/** A row of `pool`. @since 0.1.0 */
export const toPool = (row: Row): Pool => ({
  id: str(row.id),
  cap: usdOrNull(row.cap),
  spent: Usd.nano(num(row.spent)),
  uncertain: Usd.nano(num(row.uncertain)),
  held: Usd.nano(num(row.held))
})

/** A row of `manifest`. @since 0.1.0 */
export const toRow = (row: Row): RowRecord => {
  sound(row, str(row.id), str(row.version), str(row.value))
  return {
    runId: str(row.run_id),
    seq: num(row.seq),
    id: str(row.id),
    version: str(row.version),
    line: num(row.line),
    value: str(row.value),
    epoch: num(row.epoch)
  }
}

/** A row of `hold`. @since 0.1.0 */
export const toHold = (row: Row): HoldRecord => ({
  runId: str(row.run_id),
  worker: num(row.worker),
  n: num(row.n),
  seq: num(row.seq),
  epoch: num(row.epoch),
  turn: num(row.turn),
  attempt: num(row.attempt),
  request: str(row.request),
  model: str(row.model),
  amount: Usd.nano(num(row.amount)),
  price: str(row.price),
  at: num(row.at)
})

/** A row of `call`. @since 0.1.0 */
export const toCall = (row: Row): CallRecord => {
  sound(row, str(row.request), strOrNull(row.answer) ?? "")
  return {
    ...toHold(row),
    ...toTokens(row),
    state: callState(row.state),
    cost: Usd.nano(num(row.cost)),
    reason: str(row.reason),
    answer: strOrNull(row.answer),
    finish: strOrNull(row.finish),
    requestId: strOrNull(row.request_id),
    closedAt: num(row.closed_at)
  }
}

/** A row of `outcome`. @since 0.1.0 */
export const toOutcome = (row: Row): OutcomeRecord => {
  sound(row, str(row.key), str(row.made), str(row.value))
  return {
    runId: str(row.run_id),
    seq: num(row.seq),
    epoch: num(row.epoch),
    commitSeq: num(row.commit_seq),
    kind: outcomeKind(row.kind),
    category: str(row.category),
    key: str(row.key),
    fallback: num(row.fallback) === 1,
    made: str(row.made),
    value: str(row.value)
  }
}

/** A row of `checkpoint`. @since 0.1.0 */
export const toCheckpoint = (row: Row): CheckpointRecord => {
  sound(row, str(row.id), str(row.state), str(row.metadata))
  return {
    id: str(row.id),
    version: num(row.version),
    status: checkpointStatus(row.status),
    state: str(row.state),
    metadata: str(row.metadata),
    uptoCommitSeq: num(row.upto_commit_seq),
    at: num(row.at)
  }
}

/** A row of `worker`. @since 0.1.0 */
export const toWorker = (row: Row): WorkerRecord => ({
  runId: str(row.run_id),
  worker: num(row.worker),
  live: num(row.live) === 1,
  host: str(row.host),
  pid: num(row.pid),
  startedAt: num(row.started_at),
  beatAt: num(row.beat_at),
  sign: row.phase === null ? null : { phase: phase(row.phase), allowed: num(row.allowed) }
})

/** A row of `correction`. @since 0.1.0 */
export const toCorrection = (row: Row): CorrectionRecord => {
  sound(row, strOrNull(row.answer) ?? "", str(row.note))
  return {
    runId: str(row.run_id),
    worker: num(row.worker),
    n: num(row.n),
    source: correctionSource(row.source),
    cost: Usd.nano(num(row.cost)),
    ...toTokens(row),
    answer: strOrNull(row.answer),
    note: str(row.note),
    at: num(row.at)
  }
}

/** A row of `steering`. @since 0.1.0 */
export const toOrder = (row: Row): OrderRecord => {
  sound(row, str(row.by), str(row.given))
  return { runId: str(row.run_id), n: num(row.n), by: str(row.by), order: toGiven(row.given), at: num(row.at) }
}

/** A row of `store`. @since 0.1.0 */
export const toEntry = (row: Row): readonly [key: string, value: string] => {
  const [key, value] = [str(row.key), str(row.value)]
  sound(row, key, value)
  return [key, value]
}
