/** Runs of the real command (`dist/`) against a provider of another process, and their book read from outside. */
import { chmodSync, existsSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import * as SqliteClient from "@effect/sql-sqlite-node/SqliteClient"
import { Effect } from "effect"
import { tempDir } from "../laws/backends.ts"
import { command, type Ended, type Options, type Running } from "../support/command.ts"
import { type Flags, startFakeProvider } from "../support/startFakeProvider.ts"

const job = fileURLToPath(new URL("../crash/job.ts", import.meta.url))
const RUN = "fault"

/** A directory that others may enter, with so many rows in `rows.csv`. */
export const placeOf = (rows: number, text = "row") =>
  Effect.tap(tempDir, (dir) => {
    chmodSync(dir, 0o755)
    const lines = Array.from({ length: rows }, (_, i) => `${i + 1},${text} ${i + 1}`)
    writeFileSync(join(dir, "rows.csv"), `${["id,name", ...lines].join("\n")}\n`)
  })

/** A provider for as long as the scope is open. One that hangs takes requests, bills them and answers none. */
export const providerOf = (flags: Flags) =>
  Effect.acquireRelease(
    Effect.promise(() => startFakeProvider(flags)),
    (provider) => Effect.promise(provider.stop)
  )
export const HANGS: Flags = { latency: 3_600_000 }
export type Provider = Effect.Effect.Success<ReturnType<typeof providerOf>>

export interface Place {
  readonly dir: string
  readonly db: string
  readonly url: string
}

const started = (args: ReadonlyArray<string>, { db, dir, url }: Place, more: Partial<Options>): Running =>
  command([...args, "--db", db, "--out", join(dir, "out.csv")], {
    cwd: dir,
    ...more,
    env: { OPENAI_API_KEY: "sk-fault", OPENAI_BASE_URL: url, ...more.env }
  })

/** Kills what still runs when the scope closes. */
const scoped = (make: () => Running) =>
  Effect.acquireRelease(Effect.sync(make), ({ child }) => Effect.sync(() => child.kill("SIGKILL")))

export const run = (place: Place, args: ReadonlyArray<string> = [], more: Partial<Options> = {}) =>
  scoped(() =>
    started(
      ["run", job, "--run-id", RUN, "--source", join(place.dir, "rows.csv"), "--budget", "5", ...args],
      place,
      more
    )
  )

export const resume = (place: Place, args: ReadonlyArray<string> = [], more: Partial<Options> = {}) =>
  scoped(() => started(["resume", RUN, ...args], place, more))

export const endOf = (running: Running): Effect.Effect<Ended> => Effect.promise(() => running.ended)

export const showing = (running: Running, text: string) => Effect.promise(() => running.shows(text))

/** Waits until the provider has been asked so often, or the command has ended. */
export const asked = ({ bill }: Provider, requests: number, { child }: Running) =>
  Effect.gen(function* () {
    while ((yield* Effect.promise(bill)).requests < requests && child.exitCode === null)
      yield* Effect.sleep("10 millis")
  })

/** An error as an operator should see it: no trace. */
export const isPlain = ({ stderr, stdout }: Ended): boolean => !/\n\s+at |internal error/.test(stderr + stdout)

export interface Book {
  readonly status: string
  readonly done: number
  readonly spent: number
  readonly uncertain: number
  readonly held: number
  /** Open holds and closed calls: every request has one. */
  readonly holds: number
  readonly openHolds: number
  readonly settled: number
  readonly integrity: string
}

/** What the database says. */
export const bookOf = (db: string) =>
  Effect.gen(function* () {
    const sql = yield* SqliteClient.SqliteClient
    const [book] = yield* sql.unsafe<Book>(
      `select status, done, spent, uncertain, held,
        (select count(*) from hold) + (select count(*) from call) as holds,
        (select count(*) from hold) as openHolds,
        (select count(*) from call where state = 'settled') as settled,
        (select group_concat(integrity_check) from pragma_integrity_check) as integrity
      from run`
    )
    return book ?? (yield* Effect.dieMessage(`there is no run in ${db}`))
  }).pipe(Effect.provide(SqliteClient.layer({ filename: db, readonly: true, disableWAL: true })))

/** Answers that were billed more than once. */
export const paidTwice = (byHash: Readonly<Record<string, number>>): number =>
  Object.values(byHash).reduce((sum, times) => sum + times - 1, 0)

if (!existsSync(fileURLToPath(new URL("../../dist/programs/main.js", import.meta.url)))) {
  throw new Error("the command is not built: npm run build")
}
