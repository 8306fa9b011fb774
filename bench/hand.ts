/**
 * The loops that one would write by hand with better-sqlite3, as yardsticks: one that keeps no promise about money, and one that keeps ours. Both write into
 * our own tables, already made and filled with the manifest by `prepare`. No Effect in here.
 */
import { createHash } from "node:crypto"
import Database from "better-sqlite3"
import pLimit from "p-limit"
import {
  type Answer,
  type Enriched,
  model,
  type Provider,
  promptOf,
  stopwatch,
  system,
  type Took,
  type Vendor,
  vendorOf
} from "./work.ts"

export type Synchronous = "NORMAL" | "FULL"

export interface HandOptions {
  readonly file: string
  readonly rows: number
  readonly concurrency: number
  readonly synchronous: Synchronous
  readonly provider: Provider
}

const open = (file: string, synchronous: Synchronous) => {
  const db = new Database(file)
  db.pragma("journal_mode = WAL")
  db.pragma(`synchronous = ${synchronous}`)
  return db
}

/** An insert of the named columns; the others of the table get an empty text or 0, so that all rows are as wide as ours. */
const insertInto = (db: Database, table: string, names: string) => {
  const given = names.split(", ")
  const rest = db
    .prepare<{ name: string; type: string }>("select name, type from pragma_table_info(?)")
    .all(table)
    .filter((column) => !given.includes(column.name))
  const columns = [...given, ...rest.map((column) => column.name)].join(", ")
  const values = [...given.map(() => "?"), ...rest.map((column) => (column.type === "text" ? "''" : "0"))].join(", ")
  return db.prepare(`insert into ${table} (${columns}) values (${values})`)
}

const HOLD = "run_id, worker, n, seq, request, model, amount, price, at"
const CALL = `${HOLD}, state, cost, input_tokens, output_tokens, answer, finish, closed_at`
const OUTCOME = "run_id, seq, commit_seq, kind, key, value"

/** The run, its worker and its manifest, in tables that exist. */
export const prepare = (file: string, rows: number): void => {
  const db = open(file, "NORMAL")
  db.prepare("begin").run()
  insertInto(db, "run", "run_id, job, scope, status, row_count").run("r", "vendors", "vendors", "running", rows)
  insertInto(db, "worker", "run_id, worker, live").run("r", 1, 1)
  const manifest = insertInto(db, "manifest", "run_id, seq, id, version, line, value")
  for (let seq = 0; seq < rows; seq++) {
    const vendor = vendorOf(seq)
    manifest.run("r", seq, String(vendor.id), "1", seq + 2, JSON.stringify(vendor))
  }
  db.prepare("commit").run()
  db.close()
}

interface Row {
  readonly seq: number
  readonly id: string
  readonly value: string
}

/** One pending row after the other, read page by page. */
function* pending(db: Database): Generator<Row, void> {
  const select = db.prepare<Row>(
    `select m.seq, m.id, m.value from manifest m left join outcome o on o.run_id = m.run_id and o.seq = m.seq and o.epoch = m.epoch
      where m.run_id = 'r' and m.seq > ? and o.seq is null order by m.seq limit 100`
  )
  let page = select.all(-1)
  while (page.length > 0) {
    yield* page
    page = select.all(page.at(-1)?.seq ?? 0)
  }
}

const sha256 = (text: string) => createHash("sha256").update(text).digest("hex")
const ask = (provider: Provider, prompt: string) => new Promise<Answer>((resolve) => provider(prompt, resolve))

/** A row's prompt, the hash of its request and the key of its result. */
const render = ({ id, value }: Row) => {
  const vendor: Vendor = JSON.parse(value)
  const prompt = promptOf(vendor)
  const request = sha256(JSON.stringify([model, system, prompt, schema])).slice(0, 32)
  const key = `idem:${sha256(JSON.stringify(["vendors", id, "1", request])).slice(0, 24)}`
  return { prompt, request, key }
}
const schema = { type: "object", required: ["summary", "risk"], properties: { summary: "string", risk: "string" } }

/** The result of a row as it is stored. */
const resultOf = ({ text, usage }: Answer, cost: number): string => {
  const parsed: Enriched = JSON.parse(text)
  if (typeof parsed.summary !== "string" || typeof parsed.risk !== "string") throw new Error("the answer does not fit")
  return JSON.stringify({ output: text, parsed, usage: { ...usage, cost }, partial: false, promptVersion: "" })
}

const timed = async (work: () => Promise<unknown>): Promise<Took> => {
  const took = stopwatch()
  await work()
  return took()
}

/** The naive loop: no hold before a call, one commit a row. A crash forgets what the calls in flight cost; two processes overspend. */
export const naive = async ({ concurrency, file, provider, synchronous }: HandOptions): Promise<Took> => {
  const db = open(file, synchronous)
  const limit = pLimit(concurrency)
  const outcome = insertInto(db, "outcome", OUTCOME)
  let ended = 0
  const one = async (row: Row) => {
    const { key, prompt } = render(row)
    const answer = await ask(provider, prompt)
    outcome.run("r", row.seq, ++ended, "done", key, resultOf(answer, 33_000))
  }
  const took = await timed(() => Promise.all(Array.from(pending(db), (row) => limit(() => one(row)))))
  db.close()
  return took
}

/** An ordered log of writes; what comes in one turn of the event loop is one commit. */
const journalOf = (db: Database, before: () => void, after: () => void) => {
  const begin = db.prepare("begin immediate")
  const end = db.prepare("commit")
  let writes: Array<() => void> = []
  let waiting: Array<() => void> = []
  const turn = () => {
    const [group, woken] = [writes, waiting]
    writes = []
    waiting = []
    begin.run()
    before()
    for (const write of group) write()
    after()
    end.run()
    for (const wake of woken) wake()
  }
  const append = (write: () => void) => {
    if (writes.push(write) === 1) setImmediate(turn)
  }
  const commit = (write: () => void) =>
    new Promise<void>((resolve) => {
      waiting.push(resolve)
      append(write)
    })
  return { append, commit }
}

/**
 * Our protocol: a durable hold is awaited before each call, its settle and the row's outcome ride on the next commit, a snapshot each 100 rows, the store is fed
 * in sorted batches.
 */
export const protocol = async ({ concurrency, file, provider, synchronous }: HandOptions): Promise<Took> => {
  const db = open(file, synchronous)
  const book = { spent: 0, held: 0, calls: 0, input: 0, output: 0, done: 0, commitSeq: 0 }
  const cap = 50_000_000_000
  const live = db.prepare<{ live: number }>("select live from worker where run_id = 'r' and worker = 1")
  const update = db.prepare(
    `update run set spent = ?, held = ?, calls = ?, input_tokens = ?, output_tokens = ?, done = ?, commit_seq = ? where run_id = 'r'`
  )
  const insertHold = insertInto(db, "hold", HOLD)
  const deleteHold = db.prepare("delete from hold where run_id = 'r' and worker = 1 and n = ?")
  const insertCall = insertInto(db, "call", CALL)
  const insertOutcome = insertInto(db, "outcome", OUTCOME)
  const insertSnapshot = insertInto(db, "checkpoint", "id, version, status, state, metadata, upto_commit_seq, at")
  const insertValue = db.prepare("insert into store values (?, ?) on conflict (key) do nothing")
  const journal = journalOf(
    db,
    () => {
      if (live.get()?.live !== 1) throw new Error("fenced")
    },
    () => void update.run(...Object.values(book))
  )
  let feed: Array<readonly [string, string]> = []
  const flush = () => {
    const sorted = feed.sort(([a], [b]) => (a < b ? -1 : 1))
    feed = []
    journal.append(() => {
      for (const [key, value] of sorted) insertValue.run(key, value)
    })
  }
  let calls = 0

  const one = async (row: Row) => {
    const { key, prompt, request } = render(row)
    const n = ++calls
    const amount = 260_000 + prompt.length * 150
    const hold = ["r", 1, n, row.seq, request, model, amount, "simulated@0000-01-01", Date.now()]
    await journal.commit(() => {
      if (book.spent + book.held + amount > cap) throw new Error("the cap is reached")
      book.held += amount
      book.calls++
      insertHold.run(...hold)
    })
    const answer = await ask(provider, prompt)
    const { inputTokens, outputTokens } = answer.usage
    const cost = inputTokens * 150 + outputTokens * 600
    const value = resultOf(answer, cost)
    const stored = JSON.stringify({ text: answer.text, finish: "stop", model })
    const at = Date.now()
    journal.append(() => {
      book.held -= amount
      book.spent += cost
      book.input += inputTokens
      book.output += outputTokens
      deleteHold.run(n)
      insertCall.run(...hold, "settled", cost, inputTokens, outputTokens, stored, "stop", at)
    })
    journal.append(() => {
      book.done++
      book.commitSeq++
      insertOutcome.run("r", row.seq, book.commitSeq, "done", key, value)
      if (book.done % 100 === 0) {
        insertSnapshot.run("r", book.done / 100, "RUNNING", JSON.stringify(book), "{}", book.commitSeq, at)
      }
    })
    if (feed.push([key, value]) >= 2_000) flush()
  }

  const rows = pending(db)
  const worker = async () => {
    for (let row = rows.next(); row.done !== true; row = rows.next()) await one(row.value)
  }
  const took = await timed(async () => {
    await Promise.all(Array.from({ length: concurrency }, worker))
    flush()
    await journal.commit(() => {})
  })
  db.close()
  return took
}

/** What this disk takes for the smallest durable commit. */
export const floor = async (file: string, commits: number): Promise<Took> => {
  const db = open(file, "FULL")
  db.prepare("create table one (n integer primary key, value text)").run()
  const insert = db.prepare("insert into one values (?, ?)")
  const took = await timed(async () => {
    for (let n = 0; n < commits; n++) insert.run(n, "x".repeat(100))
  })
  db.close()
  return took
}
