/**
 * T3: the power fails. What a disk may then hold is everything synced, and any part of what was not. At many instants of a recorded run these states are built, opened
 * again, and compared with what the run was told is durable and with what the provider had billed by then.
 */
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { dirname, join } from "node:path"
import Database from "better-sqlite3"
import { Effect } from "effect"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import { make } from "../../src/services/Journal.ts"
import { Usd } from "../../src/services/Usd.ts"
import { workerOf } from "../laws/backends.ts"
import { type Fault, makeChecks } from "./fault.ts"
import { ACKS, COST, type Entry, type Recording, record } from "./recording.ts"

const CUTS = 300
const CONTROL_CUTS = 40
const ROWS = 1000

// ---- the disk

/** A file as it is on the disk: the bytes that are in use stand at the beginning of a buffer that grows. */
class Image {
  private bytes = Buffer.alloc(1 << 16)
  private length = 0

  write(offset: number, data: Buffer): void {
    const end = offset + data.length
    if (end > this.bytes.length) this.bytes = Buffer.concat([this.bytes], Math.max(end, 2 * this.bytes.length))
    // What lies between is a hole, which reads as zeros.
    if (offset > this.length) this.bytes.fill(0, this.length, offset)
    data.copy(this.bytes, offset)
    this.length = Math.max(this.length, end)
  }

  truncate(length: number): void {
    if (length > this.length) this.write(length, Buffer.alloc(0))
    this.length = length
  }

  become(other: Image): void {
    this.length = 0
    this.write(0, other.content())
  }

  content(): Buffer {
    return this.bytes.subarray(0, this.length)
  }
}

interface File {
  readonly durable: Image
  pending: Array<Entry>
}

const apply = (image: Image, { data, kind, offset }: Entry): void => {
  if (kind === "w") image.write(offset, data)
  else image.truncate(offset)
}

/** The disk while the log is played: a file's unsynced writes wait until it is synced. Names change at once, as SQLite syncs its directory itself. */
const play = (files: Map<string, File>, entry: Entry): void => {
  const file = files.get(entry.file) ?? { durable: new Image(), pending: [] }
  files.set(entry.file, file)
  if (entry.kind === "s") {
    for (const write of file.pending) apply(file.durable, write)
    file.pending = []
  } else if (entry.kind === "w" || entry.kind === "t") {
    file.pending.push(entry)
  } else {
    files.delete(entry.file)
    if (entry.kind === "m") files.set(entry.data.toString(), file)
  }
}

type Chance = () => boolean

/** What becomes of the writes that were not synced. */
const losses: Readonly<Record<string, (write: Entry, chance: Chance) => ReadonlyArray<Entry>>> = {
  all: () => [],
  some: (write, chance) => (chance() ? [write] : []),
  // A disk writes sectors of 512 bytes, in any order.
  torn: (write, chance) => (write.kind === "w" ? sectorsOf(write).filter(chance) : chance() ? [write] : [])
}

const SECTOR = 512

const sectorsOf = ({ data, file, kind, offset }: Entry): ReadonlyArray<Entry> => {
  const parts: Array<Entry> = []
  for (let at = 0; at < data.length; ) {
    const end = Math.min(data.length, at + SECTOR - ((offset + at) % SECTOR))
    parts.push({ kind, file, offset: offset + at, data: data.subarray(at, end) })
    at = end
  }
  return parts
}

const left = (
  { durable, pending }: File,
  lose: (write: Entry, chance: Chance) => ReadonlyArray<Entry>,
  chance: Chance
) => {
  scratch.become(durable)
  for (const write of pending) for (const part of lose(write, chance)) apply(scratch, part)
  return scratch.content()
}
/** One for all: a WAL is some megabytes long. */
const scratch = new Image()

/** A sequence of its own for each seed (mulberry32): a cut that fails can be built again. */
const dice = (seed: number): (() => number) => {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

// ---- what was promised, and what is there

interface Promised {
  readonly holds: Set<string>
  readonly settles: Set<string>
}

const hear = (promised: Promised, line: string): void => {
  const [what, n = ""] = line.trim().split(" ")
  if (what === "hold") promised.holds.add(n)
  if (what === "settle") promised.settles.add(n)
}

interface Found {
  readonly lostHolds: number
  readonly lostSettles: number
  readonly corrupt: boolean
  readonly isUnderBilled: boolean
}

interface CallRow {
  readonly n: number
  readonly state: string
  readonly cost: number
}

/** Opens a state as SQLite does after a power loss and compares it with what was promised. */
const inspect = (filename: string, { holds, settles }: Promised): Found => {
  const db = new Database(filename)
  try {
    const health = db.prepare<{ readonly integrity_check: string }>("pragma integrity_check").get()
    if (health?.integrity_check !== "ok") return corrupt
    const run = db.prepare<{ readonly counted: number }>("select spent + uncertain + held as counted from run").get()
    const calls = db
      .prepare<CallRow>(
        `select n, state, cost from call union all select n, 'open', amount from hold
         where not exists (select 1 from call where call.n = hold.n)`
      )
      .all()
    const known = new Set(calls.map(({ n }) => String(n)))
    const settled = new Set(calls.filter(({ state }) => state === "settled").map(({ n }) => String(n)))
    const outcomes = new Set(
      db
        .prepare<{ readonly seq: number }>("select seq from outcome")
        .all()
        .map(({ seq }) => String(seq))
    )
    const sum = calls.reduce((all, { cost }) => all + cost, 0)
    return {
      lostHolds: [...holds].filter((n) => !known.has(n)).length,
      lostSettles: [...settles].filter((n) => !settled.has(n) || !outcomes.has(n)).length,
      corrupt: run === undefined || run.counted !== sum,
      isUnderBilled: (run?.counted ?? 0) < holds.size * COST
    }
  } catch (error) {
    return isDamage(error) ? corrupt : gone(holds, settles)
  } finally {
    db.close()
  }
}

const corrupt: Found = { lostHolds: 0, lostSettles: 0, corrupt: true, isUnderBilled: false }
/** Even the tables are lost. */
const gone = (holds: ReadonlySet<string>, settles: ReadonlySet<string>): Found => ({
  lostHolds: holds.size,
  lostSettles: settles.size,
  corrupt: false,
  isUnderBilled: holds.size > 0
})
const isDamage = (error: unknown): boolean =>
  !(error instanceof Error && "code" in error && error.code === "SQLITE_ERROR" && /no such table/.test(error.message))

/** The next process takes the run over with the real layer: its open holds become uncertain, and the total still covers the bill. */
const takeOver = (filename: string, { holds }: Promised) =>
  Effect.scoped(
    Effect.gen(function* () {
      const journal = yield* Effect.flatMap(Sqlite.open({ filename, create: false }), make)
      const verdict = yield* journal.commit({ _tag: "Claim", worker: workerOf("run", 2), dead: [1], lost: Usd.zero })
      const book = yield* journal.reads.book("run")
      const counted = book === undefined ? 0 : book.spent + book.uncertain
      return verdict._tag === "Ok" && book?.held === 0 && counted >= holds.size * COST
    })
    // Before the tables were durable there is nothing to take over, and it says so.
  ).pipe(Effect.catchTag("StorageError", () => Effect.succeed(holds.size === 0)))

interface Sum {
  readonly states: number
  readonly lostHolds: number
  readonly lostSettles: number
  readonly corrupt: number
  readonly underBilled: number
  readonly failedTakeOvers: number
  /** Commits that a checkpoint had moved into the database by the end. */
  readonly checkpoints: number
}

/** Half of the cuts fall anywhere, half right after an acknowledgement, where nothing may be lost that was just promised. */
const cutsOf = (entries: ReadonlyArray<Entry>, n: number): ReadonlyArray<number> => {
  const roll = dice(7)
  const acks = entries.flatMap(({ file }, i) => (file === ACKS ? [i + 1] : []))
  const first = acks[0] ?? 0
  const cuts = Array.from({ length: n }, (_, i) =>
    i % 2 === 0
      ? first + Math.floor(roll() * (entries.length - first))
      : (acks[Math.floor(roll() * acks.length)] ?? first)
  )
  return cuts.sort((a, b) => a - b)
}

/** In memory where there is such a place: a thousand states are written, and nothing is proven by syncing them. */
const memoryDir = Effect.acquireRelease(
  Effect.sync(() => mkdtempSync(join(existsSync("/dev/shm") ? "/dev/shm" : tmpdir(), "longhaul-faults-"))),
  (dir) => Effect.sync(() => rmSync(dir, { recursive: true, force: true }))
)

/** Cuts the power `n` times in a recorded run, and lets each kind of loss happen. */
const cutPower = ({ entries }: Recording, n: number) =>
  Effect.gen(function* () {
    const dir = yield* memoryDir
    const files = new Map<string, File>()
    const promised: Promised = { holds: new Set(), settles: new Set() }
    const sum = {
      states: 0,
      lostHolds: 0,
      lostSettles: 0,
      corrupt: 0,
      underBilled: 0,
      failedTakeOvers: 0,
      checkpoints: 0
    }
    let played = 0
    for (const cut of cutsOf(entries, n)) {
      for (const entry of entries.slice(played, cut)) {
        if (entry.file === ACKS) hear(promised, entry.data.toString())
        else play(files, entry)
        if (entry.kind === "s" && entry.file === "book.db") sum.checkpoints++
      }
      played = cut
      for (const [loss, lose] of Object.entries(losses)) {
        const roll = dice(31 * cut + loss.length)
        const state = join(dir, "state")
        rmSync(state, { recursive: true, force: true })
        mkdirSync(state)
        for (const [name, file] of files) {
          // The anchors stand in a directory of their own.
          mkdirSync(dirname(join(state, name)), { recursive: true })
          writeFileSync(
            join(state, name),
            left(file, lose, () => roll() < 0.5)
          )
        }
        const filename = join(state, "book.db")
        const found = inspect(filename, promised)
        sum.states++
        sum.lostHolds += found.lostHolds
        sum.lostSettles += found.lostSettles
        if (found.corrupt) sum.corrupt++
        if (found.isUnderBilled) sum.underBilled++
        if (sum.states % 10 === 0 && !found.corrupt && !(yield* takeOver(filename, promised))) sum.failedTakeOvers++
      }
    }
    return sum satisfies Sum
  })

const work = { rows: ROWS, concurrency: 8, settles: true }

export const powerLoss: Fault = {
  id: "T3",
  name: "power loss",
  needs: ["gcc"],
  run: Effect.gen(function* () {
    const { broken, check } = makeChecks()
    const full = yield* Effect.flatMap(record(work), (recording) => cutPower(recording, CUTS))
    check(`${full.lostHolds} acknowledged holds are lost`, full.lostHolds === 0)
    check(`${full.lostSettles} acknowledged settles or their outcomes are lost`, full.lostSettles === 0)
    check(`${full.corrupt} states are corrupt`, full.corrupt === 0)
    check(`${full.underBilled} states count less than the bill`, full.underBilled === 0)
    check(`${full.failedTakeOvers} states cannot be taken over`, full.failedTakeOvers === 0)
    check(`${full.checkpoints} checkpoints of the WAL fell into the run, 1 wanted`, full.checkpoints > 0)
    const normal = yield* Effect.flatMap(record({ ...work, synchronous: "normal" }), (one) =>
      cutPower(one, CONTROL_CUTS)
    )
    const off = yield* Effect.flatMap(record({ ...work, synchronous: "off" }), (one) => cutPower(one, CONTROL_CUTS))
    check("control: NORMAL loses a hold", normal.lostHolds > 0)
    check("control: OFF corrupts or loses", off.corrupt + off.lostHolds > 0)
    const figure = `${full.states} states at ${CUTS} cuts: ${full.lostHolds} lost holds, ${full.lostSettles} lost settles, ${full.corrupt} corrupt, ${full.underBilled} below the bill`
    const control = `NORMAL: ${normal.lostHolds} lost, ${normal.underBilled} below the bill, OFF: ${off.corrupt} corrupt of ${off.states}`
    return { figure, control, broken }
  })
}
