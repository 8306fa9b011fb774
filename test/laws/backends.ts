/**
 * The backends that the laws run on. To add one (Postgres), add one entry to `backends`: a driver over a database of its own that is empty at
 * first and goes with the scope. Every law then runs on it; a law that needs a file or child processes asks for `file`.
 */
import { spawn } from "node:child_process"
import { randomUUID } from "node:crypto"
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { dirname, join } from "node:path"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import * as Reactivity from "@effect/experimental/Reactivity"
import * as SqlClient from "@effect/sql/SqlClient"
import { makeCompilerSqlite } from "@effect/sql/Statement"
import * as SqliteClient from "@effect/sql-sqlite-node/SqliteClient"
import { Data, Effect, Layer, type Scope } from "effect"
import { buildSync } from "esbuild"
import * as JournalMemory from "../../src/layers/JournalMemory.ts"
import { type Dialect, makeDriver } from "../../src/layers/JournalSql.ts"
import * as Memory from "../../src/layers/Memory.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import * as Checkpointer from "../../src/services/Checkpointer.ts"
import { StorageError } from "../../src/services/Errors.ts"
import { type Driver, Journal, make } from "../../src/services/Journal.ts"
import * as Store from "../../src/services/Store.ts"

export { bookOf, holdOf, workerOf } from "../support/records.ts"

export type Services = Journal | Store.Store | Checkpointer.Checkpointer

export interface Backend {
  readonly name: string
  /** Groups the operations of one turn into one commit; memory commits each at once. */
  readonly groups: boolean
  /** A fresh, empty bundle: each call has its own database. */
  readonly layer: () => Layer.Layer<Services, StorageError>
  /** The same without a journal, for laws that put a wrapper between the two. */
  readonly driver: () => Effect.Effect<Driver, StorageError, Scope.Scope>
}

/** A directory that goes with the scope. */
export const tempDir = Effect.acquireRelease(
  Effect.sync(() => mkdtempSync(join(tmpdir(), "longhaul-laws-"))),
  (dir) => Effect.sync(() => rmSync(dir, { recursive: true, force: true }))
)

export const tempFile = Effect.map(tempDir, (dir) => join(dir, "book.db"))

export const backends: ReadonlyArray<Backend> = [
  {
    name: "memory",
    groups: false,
    layer: () => Memory.layer,
    driver: () => Effect.sync(JournalMemory.makeDriver)
  },
  {
    name: "sqlite",
    groups: true,
    layer: () => Layer.unwrapScoped(Effect.map(tempFile, (filename) => Sqlite.layer({ filename }))),
    driver: () => Effect.flatMap(tempFile, (filename) => Sqlite.open({ filename }))
  }
]

/** Journal, Store and Checkpointer over a driver, as the layers build them. */
export const over = <E>(driver: Effect.Effect<Driver, E, Scope.Scope>): Layer.Layer<Services, E> =>
  Layer.merge(Store.layer, Checkpointer.layer).pipe(
    Layer.provideMerge(Layer.scoped(Journal, Effect.flatMap(driver, make)))
  )

// ---- child processes

const root = fileURLToPath(new URL("../..", import.meta.url))

/** The text of an import of a module of this repository, for a child's script. */
export const url = (path: string): string => JSON.stringify(join(root, path))

export class ChildEnded extends Data.TaggedError("ChildEnded")<{ readonly message: string }> {}

export interface Child {
  readonly pid: number
  /** The next line the child printed; fails with its stderr if it ended. */
  readonly line: Effect.Effect<string, ChildEnded>
  readonly say: (line: string) => Effect.Effect<void>
}

/**
 * A real process that runs a module's text; it is killed with the scope. `through` is what starts node (a shell with limits, a tracer).
 */
export const start = (script: string, options: Start = {}): Effect.Effect<Child, never, Scope.Scope> =>
  Effect.gen(function* () {
    const node = [process.execPath, ...(options.node ?? []), yield* bundle(script)]
    const [command = process.execPath, ...args] = [...(options.through ?? []), ...node]
    const child = yield* Effect.acquireRelease(
      Effect.sync(() => spawn(command, args, { cwd: root, stdio: "pipe", ...options.as })),
      (running) => Effect.sync(() => running.kill("SIGKILL"))
    )
    let stderr = ""
    child.stderr.on("data", (chunk: Buffer) => {
      stderr += chunk.toString()
    })
    const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
    return {
      pid: child.pid ?? 0,
      line: Effect.tryPromise({
        try: async () => {
          const next = await lines.next()
          if (next.done === true) throw stderr
          return next.value
        },
        catch: (error) => new ChildEnded({ message: String(error) })
      }),
      say: (line) => Effect.sync(() => void child.stdin.write(`${line}\n`))
    }
  })

/**
 * The script as one file: node starts it in a fraction of the time that a loader takes for some 300 modules. It stands beside the packages, where the
 * native one is found.
 */
const bundle = (script: string) =>
  Effect.acquireRelease(
    Effect.sync(() => {
      const file = join(root, "node_modules", ".cache", `longhaul-laws-${randomUUID()}.mjs`)
      mkdirSync(dirname(file), { recursive: true })
      writeFileSync(file, bundled(script))
      return file
    }),
    (file) => Effect.sync(() => rmSync(file, { force: true }))
  )

const bundles = new Map<string, string>()
const bundled = (script: string): string => {
  const made = bundles.get(script)
  if (made !== undefined) return made
  const stdin = { contents: script, resolveDir: root }
  const external = ["better-sqlite3"]
  const options = { bundle: true, write: false, platform: "node", format: "esm", target: "node20" } as const
  const [output] = buildSync({ stdin, external, ...options }).outputFiles
  const text = output?.text ?? ""
  bundles.set(script, text)
  return text
}

interface Start {
  readonly node?: ReadonlyArray<string>
  readonly through?: ReadonlyArray<string>
  readonly as?: { readonly uid: number; readonly gid: number }
}

/** In a child's script: prints "ready", and goes on when it is told to. */
export const atTheGo = `
  const { once } = await import("node:events")
  console.log("ready")
  await once(process.stdin, "data")`

// ---- what a driver does, counted

export interface Counted {
  readonly driver: Driver
  readonly sql: SqlClient.SqlClient
  /** Every statement that went through a reserved connection, with the bytes of its parameters. */
  readonly seen: Array<{ readonly text: string; readonly bytes: number }>
}

/** A SQLite driver whose statements are counted, and whose live connection the test can reach. */
export const counted = (filename: string): Effect.Effect<Counted, StorageError, Scope.Scope> =>
  Effect.gen(function* () {
    const client = yield* SqliteClient.make({ filename })
    const seen: Counted["seen"] = []
    const note = (text: string, params: ReadonlyArray<unknown>) =>
      void seen.push({ text, bytes: Buffer.byteLength(JSON.stringify(params)) })
    const watched = Effect.map(client.reserve, (db) => ({
      ...db,
      execute: (...[text, params, transform]: Parameters<typeof db.execute>) => {
        note(text, params)
        return db.execute(text, params, transform)
      },
      executeRaw: (text: string, params: ReadonlyArray<unknown>) => {
        note(text, params)
        return db.executeRaw(text, params)
      }
    }))
    const sql = yield* SqlClient.make({
      acquirer: watched,
      transactionAcquirer: watched,
      compiler: makeCompilerSqlite(),
      spanAttributes: []
    })
    const dialect: Dialect = {
      location: filename,
      begin: "begin immediate",
      create: true,
      toStorageError: (error) => new StorageError({ reason: "failed", message: String(error.cause), cause: error }),
      patiently: (use) => use
    }
    const driver = yield* makeDriver(dialect).pipe(Effect.provideService(SqlClient.SqlClient, sql))
    const whole: Driver = {
      ...driver,
      lock: () => Effect.succeed(true),
      check: Effect.void,
      anchor: () => Effect.succeed(undefined)
    }
    return { driver: whole, sql: client, seen }
  }).pipe(Effect.provide(Reactivity.layer))
