/** T9: another process holds the write lock of the database while a run works: for a second, for about as long as the run waits, and for longer. */
import { existsSync, readFileSync } from "node:fs"
import { join } from "node:path"
import { pathToFileURL } from "node:url"
import Database from "better-sqlite3"
import { Effect } from "effect"
import { atTheGo, start } from "../laws/backends.ts"
import { type Fault, makeChecks } from "./fault.ts"
import { asked, bookOf, endOf, isPlain, type Provider, paidTwice, placeOf, providerOf, resume, run } from "./runs.ts"

const ROWS = 400
const WIDTH = 8
/** Of one wait, which is 100 ms long; the rest is for a machine that is busy with something else. */
const LONGEST_STALL = 300

/**
 * How long a process's event loop was blocked at a time, within a span where it can only wait: half of the blocked time was in pieces at most that long. A machine that is
 * busy blocks it longer once or twice; a wait in SQLite each time.
 */
const stallIn = (file: string, from: number, to: number): number => {
  if (!existsSync(file)) return 0
  const lines = readFileSync(file, "utf8").trim().split("\n")
  const all = lines.map((line): { readonly at: number; readonly ms: number } => JSON.parse(line))
  // `at` is the end of it.
  const within = all.filter(({ at, ms }) => at >= from && at - ms <= to).map(({ ms }) => ms)
  const blocked = (pieces: ReadonlyArray<number>) => pieces.reduce((sum, ms) => sum + ms, 0)
  const upTo = (longest: number) => blocked(within.filter((ms) => ms <= longest))
  return within.sort((a, b) => a - b).find((ms) => upTo(ms) >= blocked(within) / 2) ?? 0
}

/** Holds the write lock from this process, which is not the run's, and looks around before it lets go. */
const lockFor = <A>(db: string, ms: number, atEnd: (other: Database) => Effect.Effect<A>) =>
  Effect.acquireUseRelease(
    Effect.sync(() => {
      const other = new Database(db)
      other.prepare("begin immediate").run()
      return other
    }),
    (other) => Effect.zipRight(Effect.sleep(ms), atEnd(other)),
    (other) =>
      Effect.sync(() => {
        other.prepare("rollback").run()
        other.close()
      })
  )

const stalls = (dir: string) => ({
  NODE_OPTIONS: `--import ${pathToFileURL(join(import.meta.dirname, "stalls.mjs")).href}`,
  STALLS: join(dir, "stalls")
})

const holdsIn = (db: Database): number =>
  db.prepare<{ readonly n: number }>("select (select count(*) from hold) + (select count(*) from call) as n").get()
    ?.n ?? 0

const requestsOf = ({ bill }: Provider) => Effect.map(Effect.promise(bill), ({ requests }) => requests)

/** A run that meets a lock of so many milliseconds when a tenth of it is done. */
const lockedRun = (ms: number) =>
  Effect.gen(function* () {
    const { broken, check } = makeChecks()
    const provider = yield* providerOf({ latency: 30 })
    const dir = yield* placeOf(ROWS)
    const place = { dir, db: join(dir, "book.db"), url: provider.url }
    const running = yield* run(place, [], { env: stalls(dir) })
    yield* asked(provider, ROWS / 10, running)
    const from = Date.now()
    // Nothing can be held meanwhile: what was sent by then had its hold before.
    const [sent, held] = yield* lockFor(place.db, ms, (other) =>
      Effect.map(requestsOf(provider), (requests) => [requests, holdsIn(other)] as const)
    )
    const to = Date.now()
    const ended = yield* endOf(running)
    const stall = stallIn(join(dir, "stalls"), from, to)
    const book = yield* bookOf(place.db)
    const bill = yield* Effect.promise(provider.bill)
    const name = `${ms / 1000} s`
    check(`${name}: exit ${ended.code}: ${ended.stderr}`, ended.code === 0 || (ms > 5_000 && ended.code === 74))
    check(`${name}: a trace is shown: ${ended.stderr}`, isPlain(ended))
    // It was seen waiting, and never for long.
    check(`${name}: the loop stalled for ${stall} ms at a time`, stall >= 50 && stall < LONGEST_STALL)
    check(`${name}: ${sent} requests under the lock, ${held} holds`, sent <= held)
    check(`${name}: ${bill.requests} requests <= ${book.holds} holds`, bill.requests <= book.holds)
    check(`${name}: integrity ${book.integrity}`, book.integrity === "ok")
    const goesOn = ended.code === 0
    if (!goesOn) yield* Effect.flatMap(resume(place), endOf)
    const [last, all] = [yield* bookOf(place.db), yield* Effect.promise(provider.bill)]
    const twice = paidTwice(all.byHash)
    check(`${name}: ${last.done} of ${ROWS} done`, last.done === ROWS)
    check(`${name}: ${twice} paid again`, twice <= (goesOn ? 0 : WIDTH))
    const paid = last.spent + last.uncertain
    check(`${name}: bill ${all.billedNano} <= counted ${paid}`, all.billedNano <= paid)
    return {
      figure: `${name}: ${goesOn ? "goes on" : "stops typed, resumed"}, ${twice} paid again, stall ${stall} ms`,
      broken
    }
  })

/** A client that waits in SQLite for up to 5 s, as better-sqlite3 does by itself. */
const plainClient = (ms: number) =>
  Effect.gen(function* () {
    const dir = yield* placeOf(0)
    const db = join(dir, "plain.db")
    const script = `
      import Database from "better-sqlite3"
      const db = new Database(${JSON.stringify(db)}, { timeout: 5000 })
      db.exec("pragma journal_mode = wal; create table t (x)")
      ${atTheGo}
      let last = performance.now(), stall = 0
      setInterval(() => { const now = performance.now(); stall = Math.max(stall, now - last); last = now }, 10)
      setTimeout(() => db.exec("insert into t values (1)"), 50)
      setTimeout(() => { console.log(Math.round(stall)); process.exit(0) }, ${ms})`
    const child = yield* start(script)
    yield* child.line
    const [, stall] = yield* Effect.zip(
      lockFor(db, ms, () => Effect.void),
      Effect.zipRight(child.say("go"), child.line),
      {
        concurrent: true
      }
    )
    return Number(stall)
  })

export const locked: Fault = {
  id: "T9",
  name: "locked file",
  run: Effect.gen(function* () {
    const runs = yield* Effect.forEach([1_000, 7_000, 12_000], (ms) => Effect.scoped(lockedRun(ms)))
    const { broken, check } = makeChecks()
    const stall = yield* plainClient(2_000)
    check(`control: a plain client stalls for ${stall} ms`, stall > 1_000)
    return {
      figure: runs.map(({ figure }) => figure).join("; "),
      control: `busy_timeout 5000: stall ${stall} ms`,
      broken: [...runs.flatMap((one) => one.broken), ...broken]
    }
  })
}
