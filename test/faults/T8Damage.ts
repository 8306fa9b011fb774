/**
 * T8: the files of a run whose process was killed are damaged in every way that SQLite itself does not always see. Either the run goes on with every row, or it is refused before anything is sent. Control:
 * without the anchor a deleted write-ahead log passes, and rows are paid again.
 */
import {
  copyFileSync,
  cpSync,
  existsSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  truncateSync,
  writeSync
} from "node:fs"
import { join } from "node:path"
import * as SqliteClient from "@effect/sql-sqlite-node/SqliteClient"
import { Effect, Either } from "effect"
import { start as startChild, tempDir, url } from "../laws/backends.ts"
import { ROWS, start } from "./damageJob.ts"
import { type Fault, makeChecks } from "./fault.ts"

/** A database whose process was killed in mid-run: its last commits stand in the write-ahead log alone. */
export const killed = Effect.gen(function* () {
  const dir = yield* tempDir
  const db = join(dir, "book.db")
  const child = yield* startChild(`
    import { Effect } from "effect"
    import { start } from ${url("test/faults/damageJob.ts")}
    let calls = 0
    const told = () => { if (++calls % 4 === 0) console.log(calls) }
    Effect.runFork(start(${JSON.stringify(db)}, told, { create: true }))`)
  // As soon as the anchor knows of some, and before the log is copied into the database (at 4 MB, about 190 rows).
  while (anchored(db) < 90) yield* child.line
  process.kill(child.pid, "SIGKILL")
  yield* Effect.sleep("100 millis")
  return db
})

/** How many results the anchor knows of. */
const anchored = (db: string): number => {
  const names = existsSync(`${db}-runs`) ? readdirSync(`${db}-runs`) : []
  const file = names.find((name) => name.endsWith(".anchor"))
  return file === undefined ? 0 : JSON.parse(readFileSync(join(`${db}-runs`, file), "utf8")).commitSeq
}

const done = (db: string) =>
  Effect.gen(function* () {
    const sql = yield* SqliteClient.SqliteClient
    const [row] = yield* sql.unsafe<{ done: number; spent: number }>("select done, spent from run")
    return row ?? { done: 0, spent: 0 }
  }).pipe(Effect.provide(SqliteClient.layer({ filename: db, readonly: true, disableWAL: true })))

/** The log's content is copied into the database, so that its pages can be damaged. */
const folded = (db: string) =>
  Effect.gen(function* () {
    const sql = yield* SqliteClient.SqliteClient
    yield* sql.unsafe("pragma wal_checkpoint(truncate)")
  }).pipe(Effect.provide(SqliteClient.layer({ filename: db })))

const overwrite = (file: string, at: number, bytes: Buffer): void => {
  const handle = openSync(file, "r+")
  writeSync(handle, bytes, 0, bytes.length, at)
}

const flip = (file: string, at: number): void => {
  const byte = readFileSync(file)[at] ?? 0
  overwrite(file, at, Buffer.from([byte ^ 1]))
}

export interface Damage {
  readonly name: string
  /** Why the run is to be refused; `undefined`: it goes on. */
  readonly wants: ReadonlyArray<string> | undefined
  /** Whether the log was copied into the database before. */
  readonly folds?: boolean
  readonly apply: (db: string) => void
}

export const damages: ReadonlyArray<Damage> = [
  { name: "as the kill left it", wants: undefined, apply: () => {} },
  { name: "-shm deleted", wants: undefined, apply: (db) => rmSync(`${db}-shm`, { force: true }) },
  {
    name: "-wal and -shm deleted",
    wants: ["regressed", "schema", "corrupt"],
    apply: (db) => {
      rmSync(`${db}-wal`)
      rmSync(`${db}-shm`, { force: true })
    }
  },
  {
    name: "a byte flipped in the middle of the -wal",
    wants: ["regressed"],
    apply: (db) => flip(`${db}-wal`, Math.floor(statSync(`${db}-wal`).size / 2))
  },
  {
    name: "-wal cut to 60 %",
    wants: ["regressed"],
    apply: (db) => truncateSync(`${db}-wal`, Math.floor(statSync(`${db}-wal`).size * 0.6))
  },
  {
    name: "database cut in half",
    folds: true,
    wants: ["corrupt"],
    apply: (db) => truncateSync(db, Math.floor(statSync(db).size / 2))
  },
  {
    name: "first bytes overwritten",
    folds: true,
    wants: ["corrupt"],
    apply: (db) => overwrite(db, 0, Buffer.alloc(16, 0xff))
  },
  {
    name: "last 1,000 bytes gone",
    folds: true,
    wants: ["corrupt"],
    apply: (db) => truncateSync(db, statSync(db).size - 1000)
  },
  {
    name: "a page overwritten",
    folds: true,
    wants: ["corrupt", "failed"],
    apply: (db) => overwrite(db, 4096 * Math.floor(statSync(db).size / 8192), Buffer.alloc(4096, 0xff))
  },
  {
    name: "one bit flipped in each result",
    folds: true,
    wants: ["corrupt"],
    apply: (db) => {
      // Also where the text stands in bytes that no row uses any more.
      const bytes = readFileSync(db)
      const text = '"parsed":{"summary"'
      for (let at = bytes.indexOf(text); at >= 0; at = bytes.indexOf(text, at + 1)) flip(db, at + text.length + 3)
    }
  },
  { name: "database emptied", folds: true, wants: ["schema"], apply: (db) => truncateSync(db, 0) },
  {
    name: "an older copy put back",
    folds: true,
    wants: ["regressed"],
    apply: (db) => renameSync(`${db}.old`, db)
  }
]

/** A copy of all files, damaged. */
export const damagedCopy = (db: string, { apply, folds, name }: Damage) =>
  Effect.gen(function* () {
    const dir = yield* tempDir
    for (const file of readdirSync(join(db, ".."))) cpSync(join(db, "..", file), join(dir, file), { recursive: true })
    const copy = join(dir, "book.db")
    if (folds === true) yield* folded(copy)
    if (name.startsWith("an older copy")) {
      copyFileSync(copy, `${copy}.old`)
      yield* Effect.either(start(copy, () => {}, { create: false }))
      rmSync(`${copy}-wal`, { force: true })
    }
    apply(copy)
    return copy
  })

/** What a resume says: why it is refused, or how it ends. */
export const resumed = (db: string, onCall: () => void) =>
  Effect.match(start(db, onCall, { create: false }), {
    onFailure: (error) => (error._tag === "StorageError" ? error.reason : error._tag),
    onSuccess: ({ done, status }) => `${status}, ${done} done`
  })

export const damage: Fault = {
  id: "T8",
  name: "damage",
  run: Effect.gen(function* () {
    const { broken, check } = makeChecks()
    const db = yield* killed
    check("the kill left a write-ahead log", existsSync(`${db}-wal`) && statSync(`${db}-wal`).size > 0)
    let refused = 0
    for (const one of damages) {
      const copy = yield* damagedCopy(db, one)
      let calls = 0
      const said = yield* resumed(copy, () => calls++)
      if (one.wants === undefined) check(`${one.name}: ${said}`, said === `done, ${ROWS} done`)
      else
        check(
          `${one.name}: ${said}, ${calls} calls; ${one.wants.join(" or ")} wanted`,
          one.wants.includes(said) && calls === 0
        )
      if (one.wants !== undefined) refused++
    }

    // The operator's way out: what is missing counts as uncertain, and the run ends with every row.
    const log = damages.find(({ name }) => name.startsWith("-wal cut"))
    const cut = log === undefined ? db : yield* damagedCopy(db, log)
    const truth = yield* done(db)
    const lost = yield* done(cut)
    const accepted = yield* start(cut, () => {}, { create: false, acceptLoss: true })
    check(`--accept-loss: ${accepted.status}, ${accepted.done}`, accepted.done === ROWS)
    check(
      `--accept-loss: ${accepted.spent + accepted.uncertain} counted >= ${truth.spent} spent before + ${accepted.thisProcess.spent} now`,
      accepted.spent + accepted.uncertain >= truth.spent + accepted.thisProcess.spent
    )

    const blind = log === undefined ? db : yield* damagedCopy(db, log)
    for (const file of readdirSync(`${blind}-runs`)) if (file.endsWith(".anchor")) rmSync(join(`${blind}-runs`, file))
    let again = 0
    yield* start(blind, () => again++, { create: false })
    const paidAgain = again - (ROWS - truth.done)
    check(`control: without the anchor ${paidAgain} rows are paid again`, paidAgain > 8)
    return {
      figure: `${damages.length} damages, ${refused} refused with 0 calls; --accept-loss of ${truth.done - lost.done} rows counts them`,
      control: `without the anchor ${paidAgain} rows are paid again, unseen`,
      broken
    }
  })
}

/** The files of a live run are taken away: it stops, and what it sends after that is nothing. */
export const takenAway: Fault = {
  id: "T8b",
  name: "files gone",
  run: Effect.gen(function* () {
    const { broken, check } = makeChecks()
    const figures: Array<string> = []
    for (const suffix of ["", "-wal"]) {
      const db = join(yield* tempDir, "book.db")
      let calls = 0
      let after = 0
      const told = () => {
        calls++
        if (calls === 100) renameSync(`${db}${suffix}`, `${db}${suffix}.away`)
        if (calls > 100) after++
      }
      const end = yield* Effect.either(start(db, told, { create: true }))
      const said = Either.match(end, {
        onLeft: ({ message }) => message,
        onRight: ({ reason }) => reason?.message ?? ""
      })
      check(`book.db${suffix}: ${said}`, said.includes("was moved, deleted or replaced"))
      // Holds of the same turn of the event loop were durable before.
      check(`book.db${suffix}: ${after} calls after it was taken away`, after <= 4)
      figures.push(`${after} calls after book.db${suffix} was gone`)
    }
    return { figure: figures.join(", "), control: "-", broken }
  })
}
