/** Records of the book for tests: each whole, each with parts of one's own. */
import type { Book, HoldRecord, WorkerRecord } from "../../src/services/Book.ts"
import { Usd } from "../../src/services/Usd.ts"

/** A book with a cap in nano-dollars. */
export const bookOf = (runId: string, parts: Partial<Book> = {}): Book => ({
  runId,
  job: "job",
  scope: "scope",
  status: "running",
  reason: null,
  paused: null,
  canary: null,
  orders: 0,
  settings: "{}",
  source: "{}",
  createdAt: 1,
  cap: Usd.nano(1_000),
  pool: null,
  maxCalls: null,
  maxConcurrency: 8,
  requestsPerMinute: null,
  tokensPerMinute: null,
  chunkSize: 25,
  rows: 0,
  filtered: 0,
  spent: Usd.zero,
  uncertain: Usd.zero,
  held: Usd.zero,
  calls: 0,
  retries: 0,
  repairs: 0,
  replays: 0,
  storeHits: 0,
  memoHits: 0,
  unasked: 0,
  reruns: 0,
  inputTokens: 0,
  cachedTokens: 0,
  cacheWriteTokens: 0,
  outputTokens: 0,
  reasoningTokens: 0,
  done: 0,
  partial: 0,
  failed: 0,
  kept: 0,
  commitSeq: 0,
  ...parts
})

export const workerOf = (runId: string, worker = 1): WorkerRecord => ({
  runId,
  worker,
  live: true,
  host: "host",
  pid: 1,
  startedAt: 1,
  beatAt: 7,
  sign: null
})

/** A worker that lives no more, as it is written: the rest of its record stays. */
export const buriedOf = (runId: string, worker = 1): WorkerRecord => ({
  runId,
  worker,
  live: false,
  host: "",
  pid: 0,
  startedAt: 0,
  beatAt: 0,
  sign: null
})

/** The n-th hold of a run, of worker 1, on a row of its own unless told otherwise. */
export const holdOf = (runId: string, n: number, amount: number, parts: Partial<HoldRecord> = {}): HoldRecord => ({
  runId,
  worker: 1,
  n,
  seq: n,
  epoch: 0,
  turn: 0,
  attempt: 0,
  request: `request-${n}`,
  model: "model",
  amount: Usd.nano(amount),
  price: "{}",
  at: 1,
  ...parts
})
