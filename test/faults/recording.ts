/**
 * The real journal over the real SQLite layer in a child process, with every write and sync of its files recorded (recorder.c), in one order with what the child was
 * told is durable.
 */
import { execFileSync } from "node:child_process"
import { mkdirSync, readFileSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { Effect } from "effect"
import { bookOf, holdOf, start, tempDir, url, workerOf } from "../laws/backends.ts"

export interface Entry {
  readonly kind: "w" | "t" | "s" | "u" | "m"
  readonly file: string
  readonly offset: number
  readonly data: Buffer
}

/** What a call costs in the child, below its hold: the provider bills it when the hold is durable. */
export const COST = 3
const AMOUNT = 7
/** The file of the acknowledgements: `run`, `hold n`, `settle n`. It is no part of the database. */
export const ACKS = "acks"

interface Work {
  readonly rows: number
  readonly concurrency: number
  /** Whether the calls are settled, with their outcomes. */
  readonly settles: boolean
  /** The library's own, or another one in its place. */
  readonly synchronous?: "normal" | "off"
}

export interface Recording {
  readonly entries: ReadonlyArray<Entry>
  /** `pragma synchronous` on the live connection, after the first write. */
  readonly synchronous: string
}

/** Does the work in a child and gives what was recorded. */
export const record = (work: Work) =>
  Effect.gen(function* () {
    const dir = yield* tempDir
    const recorder = join(dir, "recorder.so")
    const source = fileURLToPath(new URL("./recorder.c", import.meta.url))
    execFileSync("gcc", ["-O2", "-shared", "-fPIC", "-o", recorder, source, "-ldl"])
    const files = join(dir, "files")
    mkdirSync(files)
    const log = join(dir, "log")
    const env = ["env", `LD_PRELOAD=${recorder}`, `RECORD_DIR=${files}`, `RECORD_LOG=${log}`]
    const child = yield* start(script(files, work), { through: env })
    const synchronous = yield* child.line
    yield* child.line
    return { entries: parse(readFileSync(log)), synchronous }
  })

const script = (dir: string, { concurrency, rows, settles, synchronous }: Work): string => `
  import Database from "better-sqlite3"
  import { openSync, writeSync } from "node:fs"
  import { Effect } from "effect"
  import { open } from ${url("src/layers/Sqlite.ts")}
  import { make } from ${url("src/services/Journal.ts")}
  import { noTokens } from ${url("src/services/LLM.ts")}
  const { prepare } = Database.prototype
  let live
  Database.prototype.prepare = function (text) {
    live = this
    const other = ${JSON.stringify(synchronous ?? null)}
    if (other === null || !text.startsWith("pragma synchronous")) return prepare.call(this, text)
    // The control: another setting, and the layer, which would refuse it, is told that it is FULL.
    return prepare.call(this, text.includes("=") ? "pragma synchronous = " + other : "select 2 as synchronous")
  }
  const acks = openSync(${JSON.stringify(join(dir, ACKS))}, "a")
  const ack = (text) => Effect.sync(() => writeSync(acks, text + "\\n"))
  const one = (journal, n) => Effect.gen(function* () {
    const hold = { ...${JSON.stringify(holdOf("run", 0, AMOUNT))}, n, seq: n }
    yield* journal.commit({ _tag: "Hold", hold })
    yield* ack("hold " + n)
    if (!${settles}) return
    yield* Effect.sleep(n % 4)
    const answer = JSON.stringify({ n, text: "an answer ".repeat(100) })
    const close = { usage: noTokens, cost: ${COST}, answer, finish: "stop", requestId: null, reason: "", at: n }
    const outcome = { runId: "run", seq: n, epoch: 0, kind: "done", category: "", key: "k" + n, fallback: false, made: "", value: answer }
    const facts = { storeHit: false, memoHits: 0, replays: 0, freeRepairs: 0, unasked: false, fallback: false }
    journal.append({ _tag: "Settle", hold, close })
    journal.append({ _tag: "Outcome", fence: { runId: "run", worker: 1 }, outcome, facts })
    // As a run does: what was appended is durable with the next hold, or when it is asked for.
    if (n % 2 === 0) return
    yield* journal.flush
    yield* ack("settle " + n)
  })
  const work = Effect.gen(function* () {
    const journal = yield* Effect.flatMap(open({ filename: ${JSON.stringify(join(dir, "book.db"))} }), make)
    yield* journal.commit({ _tag: "Create", book: ${JSON.stringify(bookOf("run", { cap: null, rows, status: "running" }))} })
    yield* journal.commit({ _tag: "Claim", worker: ${JSON.stringify(workerOf("run"))}, dead: [], lost: 0 })
    yield* ack("run")
    console.log(live.pragma("synchronous", { simple: true }))
    const rows = Array.from({ length: ${rows} }, (_, i) => i + 1)
    yield* Effect.forEach(rows, (n) => one(journal, n), { concurrency: ${concurrency}, discard: true })
  })
  await Effect.runPromise(Effect.scoped(work))
  console.log("done")`

const KINDS = ["w", "t", "s", "u", "m"] as const

/** The layout is recorder.c's. */
const parse = (log: Buffer): ReadonlyArray<Entry> => {
  const entries: Array<Entry> = []
  for (let at = 0; at < log.length; ) {
    const kind = KINDS.find((one) => one.charCodeAt(0) === log.readUInt32LE(at))
    if (kind === undefined) throw new Error(`no record at ${at}`)
    const name = log.readUInt32LE(at + 4)
    const offset = Number(log.readBigInt64LE(at + 8))
    const length = Number(log.readBigUInt64LE(at + 16))
    const data = at + 24 + name
    const file = log.toString("utf8", at + 24, data)
    entries.push({ kind, file, offset, data: log.subarray(data, data + length) })
    at = data + length
  }
  return entries
}
