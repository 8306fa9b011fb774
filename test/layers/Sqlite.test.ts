import { spawnSync } from "node:child_process"
import { chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs"
import { createRequire } from "node:module"
import { dirname, join } from "node:path"
import * as Reactivity from "@effect/experimental/Reactivity"
import * as SqliteClient from "@effect/sql-sqlite-node/SqliteClient"
import { assert, describe, it } from "@effect/vitest"
import { Config, ConfigProvider, Effect, Layer, Schema } from "effect"
import { vi } from "vitest"
import { statements } from "../../src/layers/JournalSql.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import { decide, needs, type Op } from "../../src/services/Book.ts"
import { Checkpointer } from "../../src/services/Checkpointer.ts"
import { StorageError } from "../../src/services/Errors.ts"
import type { Driver } from "../../src/services/Journal.ts"
import { Usd } from "../../src/services/Usd.ts"
import { atTheGo, bookOf, start, tempDir, tempFile, url, workerOf } from "../laws/backends.ts"

/** A second connection to the file, as another program has. */
const connect = (filename: string) => Effect.provide(SqliteClient.make({ filename }), Reactivity.layer)

const snapshot = (n: number) =>
  Effect.flatMap(Checkpointer, (checkpointer) => checkpointer.snapshot("run", Schema.Int, n))
const opened = (config: Sqlite.SqliteConfig) => Effect.provide(snapshot(1), Sqlite.layer(config))
const refusal = (config: Sqlite.SqliteConfig) =>
  Effect.map(Effect.flip(Effect.provide(Checkpointer, Sqlite.layer(config))), (error) => {
    assert.instanceOf(error, StorageError)
    return error
  })

const write = (driver: Driver, ...ops: ReadonlyArray<Op>) =>
  driver.transact(needs(ops), (facts) => decide(ops, facts).writes)
const put = (key: string): Op => ({ _tag: "Put", entries: [[key, "1"]], replace: false })

/** A child that opens the file, makes one snapshot and prints what came of it. */
const child = (filename: string, body = `checkpointer.snapshot("run", Schema.Int, 1)`) => `
  import { Effect, Schema } from "effect"
  import { layer } from ${url("src/layers/Sqlite.ts")}
  import { Checkpointer } from ${url("src/services/Checkpointer.ts")}
  const use = Effect.flatMap(Checkpointer, (checkpointer) => ${body})
  const given = Effect.provide(use, layer({ filename: ${JSON.stringify(filename)} }))
  const result = await Effect.runPromise(Effect.either(given))
  console.log(JSON.stringify(result._tag === "Left"
    ? { reason: result.left.reason, message: result.left.message, path: result.left.path }
    : { value: result.right }))
  process.exit(0)`
const Result = Schema.parseJson(
  Schema.Struct({
    reason: Schema.optional(Schema.String),
    message: Schema.optional(Schema.String),
    path: Schema.optional(Schema.String),
    value: Schema.optional(Schema.Unknown)
  })
)
const result = (script: string, options?: Parameters<typeof start>[1]) =>
  Effect.flatMap(start(script, options), (running) => Effect.flatMap(running.line, Schema.decode(Result)))

const isRoot = process.getuid?.() === 0
/** Root ignores modes, so what they forbid is tried as nobody. */
const nobody = isRoot ? { as: { uid: 65_534, gid: 65_534 } } : {}
const isTraced = spawnSync("strace", ["-c", "true"]).status === 0
const noStrace = isTraced ? "" : " (skipped: no strace here)"

describe("Sqlite.layer", () => {
  it.scopedLive("synchronous is FULL on the live connection after a write, on a new file and on one opened again", () =>
    Effect.gen(function* () {
      const filename = yield* tempFile
      const Database: { readonly prototype: Pragmas } = createRequire(import.meta.url)("better-sqlite3")
      const spy = yield* Effect.acquireRelease(
        Effect.sync(() => vi.spyOn(Database.prototype, "pragma")),
        (pragma) => Effect.sync(() => pragma.mockRestore())
      )
      for (const opening of ["first", "again"]) {
        spy.mockClear()
        yield* Effect.gen(function* () {
          yield* snapshot(1)
          const [live] = spy.mock.contexts
          if (!isLive(live)) return assert.fail("no connection was seen")
          // 2 is FULL; SQLite's own default for a WAL file that is opened again is 1, NORMAL.
          assert.strictEqual(live.pragma("synchronous", { simple: true }), 2, opening)
          assert.strictEqual(live.pragma("journal_mode", { simple: true }), "wal", opening)
        }).pipe(Effect.provide(Sqlite.layer({ filename })))
      }
    })
  )

  it.scopedLive.skipIf(!isTraced)(
    `each awaited commit is flushed to the disk before it returns: at least one fsync each${noStrace}`,
    () =>
      Effect.gen(function* () {
        const filename = yield* tempFile
        yield* opened({ filename })
        const trace = join(dirname(filename), "trace")
        const twenty = `Effect.forEach(Array.from({ length: 20 }, (_, n) => n),
          (n) => checkpointer.snapshot("run", Schema.Int, n), { discard: true })`
        const strace = ["strace", "-f", "-e", "trace=fsync,fdatasync", "-o", trace]
        const { reason } = yield* result(child(filename, twenty), { through: strace })
        assert.isUndefined(reason)
        assert.isAtLeast(readFileSync(trace, "utf8").match(/f(data)?sync\(\d+\)/g)?.length ?? 0, 20)
      }),
    60_000
  )

  it.effect("layerConfig reads the file's name from the configuration", () =>
    Effect.gen(function* () {
      const filename = yield* tempFile
      const config = Layer.setConfigProvider(ConfigProvider.fromMap(new Map([["DB", filename]])))
      const layer = Sqlite.layerConfig({ filename: Config.string("DB") })
      assert.strictEqual(yield* Effect.provide(snapshot(1), Layer.provide(layer, config)), 1)
      assert.isTrue(existsSync(filename))
    }).pipe(Effect.scoped)
  )
})

interface Pragmas {
  readonly pragma: (text: string, options?: { readonly simple: boolean }) => unknown
}

const isLive = (value: unknown): value is Pragmas => typeof value === "object" && value !== null && "pragma" in value

describe("Sqlite.layer refuses with a typed StorageError", () => {
  it.scopedLive("a missing directory: cannot_open, with the path and the fix", () =>
    Effect.gen(function* () {
      const filename = join(yield* tempDir, "none", "book.db")
      const error = yield* refusal({ filename })
      assert.strictEqual(error.reason, "cannot_open")
      assert.strictEqual(error.path, filename)
      assert.include(error.message, "does not exist: create it")
      assert.isFalse(existsSync(dirname(filename)))
    })
  )

  it.scopedLive("create: false on a missing file: cannot_open, and no file is made", () =>
    Effect.gen(function* () {
      const filename = yield* tempFile
      const error = yield* refusal({ filename, create: false })
      assert.strictEqual(error.reason, "cannot_open")
      assert.include(error.message, `there is no database ${filename}`)
      assert.isFalse(existsSync(filename))
      yield* opened({ filename })
      assert.strictEqual(yield* opened({ filename, create: false }), 2)
    })
  )

  it.scopedLive("a file that is not a database: corrupt, and the file is left as it was", () =>
    Effect.gen(function* () {
      const filename = yield* tempFile
      const text = "id,name\n1,Acme\n".repeat(500)
      writeFileSync(filename, text)
      const error = yield* refusal({ filename })
      assert.strictEqual(error.reason, "corrupt")
      assert.include(error.message, filename)
      assert.strictEqual(readFileSync(filename, "utf8"), text)
    })
  )

  it.scopedLive("a directory in place of the file: cannot_open", () =>
    Effect.gen(function* () {
      const filename = yield* tempFile
      mkdirSync(filename)
      assert.strictEqual((yield* refusal({ filename })).reason, "cannot_open")
    })
  )

  it.scopedLive(
    "a file that may not be written: read_only, with the path and the fix (as nobody if the tests run as root)",
    () =>
      Effect.gen(function* () {
        const filename = yield* tempFile
        yield* opened({ filename })
        chmodSync(filename, 0o444)
        chmodSync(dirname(filename), 0o777)
        const { message, path, reason } = yield* result(child(filename), nobody)
        assert.strictEqual(reason, "read_only")
        assert.strictEqual(path, filename)
        assert.include(message, "check its permissions")
      }),
    60_000
  )

  it.scopedLive(
    "a new file in a directory that may not be written: cannot_open, with the path and the fix (as nobody if root)",
    () =>
      Effect.gen(function* () {
        const filename = yield* tempFile
        chmodSync(dirname(filename), 0o555)
        const { message, path, reason } = yield* result(child(filename), nobody)
        chmodSync(dirname(filename), 0o755)
        assert.strictEqual(reason, "cannot_open")
        assert.strictEqual(path, filename)
        assert.include(message, "permissions of its directory")
      }),
    60_000
  )

  it.scopedLive(
    "a missing native binding: binding_missing, with the command that builds it (the real loader, the file hidden)",
    () =>
      Effect.gen(function* () {
        const filename = yield* tempFile
        const hide = join(dirname(filename), "hide.cjs")
        // Loads nothing by that name, as when npm did not run the install script.
        writeFileSync(
          hide,
          `const Module = require("node:module")
           const resolve = Module._resolveFilename
           Module._resolveFilename = (request, ...rest) => {
             if (!String(request).endsWith("better_sqlite3.node")) return resolve(request, ...rest)
             throw Object.assign(new Error("Cannot find module " + request), { code: "MODULE_NOT_FOUND" })
           }`
        )
        const { message, reason } = yield* result(child(filename), { node: ["--require", hide] })
        assert.strictEqual(reason, "binding_missing")
        assert.include(message, "npm rebuild better-sqlite3")
        assert.include(message, "allowScripts")
      }),
    60_000
  )

  it.scopedLive(
    "no space left in mid-run: full, nothing of that commit is kept, and the file goes on once there is space",
    () =>
      Effect.gen(function* () {
        const filename = yield* tempFile
        // No file of the child may pass 200 kB: a real write that fails. Two snapshots fit, the third does not.
        const three = `Effect.gen(function* () {
          yield* checkpointer.snapshot("run", Schema.String, "a")
          yield* checkpointer.snapshot("run", Schema.String, "b")
          return yield* checkpointer.snapshot("run", Schema.String, "c".repeat(400_000))
        })`
        const limited = ["bash", "-c", `ulimit -f 200; exec "$@"`, "bash"]
        const { message, reason } = yield* result(child(filename, three), { through: limited })
        assert.strictEqual(reason, "full")
        assert.include(message, "free some and resume")
        yield* Effect.gen(function* () {
          const checkpointer = yield* Checkpointer
          assert.deepStrictEqual(yield* checkpointer.listVersions("run"), [1, 2])
          const latest = yield* Effect.flatten(checkpointer.resume("run", Schema.String))
          assert.strictEqual(latest.state, "b")
          assert.strictEqual(yield* checkpointer.snapshot("run", Schema.String, "c".repeat(400_000)), 3)
        }).pipe(Effect.provide(Sqlite.layer({ filename })))
      }),
    60_000
  )
})

describe("Sqlite under another process", () => {
  /** Holds the write lock of the file for one second, once it is told to. */
  const locker = (filename: string, mode: string) =>
    start(`
      import Database from "better-sqlite3"
      const db = new Database(${JSON.stringify(filename)})
      ${mode === "exclusive" ? `db.exec("create table held (x)")` : ""}
      ${atTheGo}
      db.exec("begin ${mode}")
      console.log("locked")
      setTimeout(() => { db.exec("commit"); db.close(); console.log("free") }, 1000)`)

  it.scopedLive(
    "a file locked by another process for 1 s: a commit waits and succeeds, and the event loop is not blocked for long",
    () =>
      Effect.gen(function* () {
        const filename = yield* tempFile
        const wait = Effect.gen(function* () {
          assert.strictEqual(yield* snapshot(1), 1)
          const other = yield* locker(filename, "immediate")
          assert.strictEqual(yield* other.line, "ready")
          yield* other.say("go")
          assert.strictEqual(yield* other.line, "locked")
          const before = performance.now()
          let turns = 0
          const timer = setInterval(() => turns++, 10)
          assert.strictEqual(yield* snapshot(2), 2)
          clearInterval(timer)
          assert.isAtLeast(performance.now() - before, 500)
          // One blocked wait of a second would leave one turn.
          assert.isAtLeast(turns, 3)
          assert.strictEqual(yield* other.line, "free")
        })
        yield* Effect.provide(wait, Sqlite.layer({ filename }))
      }),
    60_000
  )

  it.scopedLive(
    "a new file that another process holds locked for 1 s: opening waits and succeeds",
    () =>
      Effect.gen(function* () {
        const filename = yield* tempFile
        const other = yield* locker(filename, "exclusive")
        assert.strictEqual(yield* other.line, "ready")
        yield* other.say("go")
        assert.strictEqual(yield* other.line, "locked")
        assert.strictEqual(yield* opened({ filename }), 1)
      }),
    60_000
  )
})

describe("Sqlite while another connection creates the tables", () => {
  it.scopedLive("opening waits for it, and creates them itself if the other one gives up", () =>
    Effect.gen(function* () {
      const filename = yield* tempFile
      const other = yield* connect(filename)
      // As the migrator leaves it in mid-way: its own table is there, its transaction is open.
      yield* other.unsafe(
        "create table longhaul_migrations (migration_id integer primary key not null, created_at datetime default current_timestamp, name text)"
      )
      yield* other.unsafe("begin immediate")
      const opening = yield* Effect.fork(opened({ filename }))
      yield* Effect.sleep("400 millis")
      yield* other.unsafe("rollback")
      assert.strictEqual(yield* opening, 1)
    })
  )
})

describe("A failed COMMIT on SQLite", () => {
  it.scopedLive("is a typed StorageError, keeps nothing, and leaves no transaction open", () =>
    Effect.gen(function* () {
      const filename = yield* tempFile
      const driver = yield* Sqlite.open({ filename })
      const other = yield* connect(filename)
      // A deferred foreign key is checked at COMMIT: the inserts succeed, the COMMIT does not.
      for (const text of [
        "create table parent (id integer primary key)",
        "create table child (id integer references parent (id) deferrable initially deferred)",
        `create trigger poison after insert on store when new.key = 'poison' begin
           insert into child values (1);
         end`
      ])
        yield* other.unsafe(text)
      const error = yield* Effect.flip(write(driver, put("before"), put("poison"), put("after")))
      assert.strictEqual(error.reason, "failed")
      assert.include(error.message, "SQLITE_CONSTRAINT")
      assert.include(error.message, filename)
      // Another process can write at once: no lock is held.
      yield* other.unsafe("pragma busy_timeout = 0")
      yield* other.unsafe("insert into parent values (7)")
      assert.strictEqual((yield* driver.reads.values(["before", "poison", "after"])).size, 0)
      // A later commit is its own, and is durable: the other connection sees it.
      yield* write(driver, put("good"))
      assert.deepStrictEqual(yield* other.unsafe("select key from store"), [{ key: "good" }])
      assert.deepStrictEqual(yield* other.unsafe("select id from child"), [])
    })
  )

  it.scopedLive("a failed statement keeps nothing of its group either, and leaves no transaction open", () =>
    Effect.gen(function* () {
      const filename = yield* tempFile
      const driver = yield* Sqlite.open({ filename })
      const other = yield* connect(filename)
      yield* other.unsafe(
        "create trigger poison before insert on store when new.key = 'poison' begin select raise(fail, 'poisoned'); end"
      )
      const create: Op = { _tag: "Create", book: bookOf("run") }
      const claim: Op = { _tag: "Claim", worker: workerOf("run"), dead: [], lost: Usd.zero }
      const error = yield* Effect.flip(write(driver, create, claim, put("poison")))
      assert.include(error.message, "poisoned")
      assert.isUndefined(yield* driver.reads.book("run"))
      assert.deepStrictEqual(yield* driver.reads.workers("run"), [])
      yield* write(driver, create, claim)
      assert.strictEqual((yield* driver.reads.book("run"))?.runId, "run")
    })
  )
})

describe("Query plans on SQLite", () => {
  /** Fragments, completed as the driver completes them. */
  const complete = (name: string, text: string) => {
    if (name === "deleteHolds" || name === "values") return `${text} (?, ?)`
    if (name === "overwrite" || name === "firstWins")
      return `insert into store (key, value, crc) values (?, ?, ?)${text}`
    if (name === "setPool") return `insert into pool (id, cap, spent, uncertain, held) values (?, ?, ?, ?, ?)${text}`
    return text
  }
  /** What may be searched by the first column of its key alone, since the statement gives no more: all others must use two. */
  const firstColumn: Readonly<Record<string, ReadonlyArray<string>>> = {
    runWithWorkers: ["w"],
    latestWorker: ["worker"],
    workers: ["worker"],
    discardWorkers: ["worker"],
    latestVersion: ["checkpoint"],
    versions: ["checkpoint"],
    latestCheckpoint: ["checkpoint"],
    holds: ["hold"],
    unload: ["manifest"],
    openCalls: ["c"],
    uncertain: ["call"],
    corrections: ["correction"],
    callSums: ["c"],
    holdCount: ["hold"],
    poolSums: ["run"],
    holdSum: ["hold"],
    rowSums: ["m"],
    idsUpto: ["m"]
  }
  const oneColumnKeys = ["run", "r", "store", "pool"]

  const check = (name: string, plan: ReadonlyArray<string>) => {
    for (const step of plan) {
      const text = `${name}: ${step}`
      if (name !== "books") assert.notMatch(step, /^SCAN|TEMP B-TREE/, text)
      const [, table, columns] = /^SEARCH (\w+) [^(]*\((.*)\)/.exec(step) ?? []
      if (table === undefined || columns === undefined) continue
      const isWhole = oneColumnKeys.includes(table) || firstColumn[name]?.includes(table) === true
      if (!isWhole) assert.isAtLeast(columns.split(" AND ").length, 2, text)
    }
  }

  for (const [title, prepare] of [
    ["on a new file", []],
    [
      "with statistics of a big run (after ANALYZE)",
      [
        ...[
          "manifest select 'run', n, 'id', '', n, '{}', 0, null",
          "outcome select 'run', n, 0, n, 'done', '', 'k', 0, '{}', '', null"
        ],
        "call select 'run', 1, n, n, 0, 0, 0, '', '', 0, '', 0, 'settled', 0, 0, 0, 0, 0, 0, '', null, null, null, 0, null",
        "checkpoint select 'run', n, 'RUNNING', '{}', '{}', 0, 0, null",
        "store select 'k' || n, '{}', null",
        "hold select 'run', 1, n, n, 0, 0, 0, '', '', 0, '', 0"
      ].map((into) => `insert into ${into} from i`)
    ]
  ] as const) {
    it.scopedLive(`no statement scans a table, and each search uses all of the key that it is given, ${title}`, () =>
      Effect.gen(function* () {
        const filename = yield* tempFile
        yield* opened({ filename })
        const writer = yield* connect(filename)
        for (const text of prepare)
          yield* writer.unsafe(
            `with recursive i(n) as (select 10 union all select n + 1 from i where n < 5000) ${text}`
          )
        if (prepare.length > 0) yield* writer.unsafe("analyze")
        // A new connection: statistics are read when a file is opened.
        const sql = yield* connect(filename)
        let searches = 0
        for (const [name, fragment] of Object.entries(statements)) {
          const text = complete(name, fragment)
          const params = Array.from(text.matchAll(/\?/g), () => 1)
          const steps = yield* sql.unsafe<{ readonly detail: string }>(`explain query plan ${text}`, params)
          const plan = steps.map((step) => step.detail)
          searches += plan.filter((step) => step.startsWith("SEARCH")).length
          check(name, plan)
        }
        // The plans were really read.
        assert.isAtLeast(searches, Object.keys(statements).length - 4)
      })
    )
  }
})
