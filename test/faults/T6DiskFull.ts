/**
 * T6: no space left in mid-run, on a small file system (where one may be mounted) and by a limit on the size of a file. The run stops with one line, nothing is sent without a hold, and
 * once there is space it goes on.
 */
import { execFileSync } from "node:child_process"
import { mkdirSync } from "node:fs"
import { join } from "node:path"
import * as SqlClient from "@effect/sql/SqlClient"
import * as SqliteClient from "@effect/sql-sqlite-node/SqliteClient"
import { Cause, Effect, Exit, type Scope } from "effect"
import type { Options } from "../support/command.ts"
import { type Fault, has, makeChecks } from "./fault.ts"
import { bookOf, endOf, isPlain, paidTwice, placeOf, providerOf, resume, run } from "./runs.ts"

const ROWS = 600
/** The WAL alone grows to some 4 MB before it is used again. */
const DISK_MB = 4
const FILE_MB = 2

const sh = (command: string, ...args: ReadonlyArray<string>) => Effect.sync(() => execFileSync(command, args))

/** A file system of so many megabytes, below a directory. */
const tmpfs = (dir: string, megabytes: number) =>
  Effect.acquireRelease(
    Effect.gen(function* () {
      const disk = join(dir, "disk")
      mkdirSync(disk)
      yield* sh("mount", "-t", "tmpfs", "-o", `size=${megabytes}m`, "tmpfs", disk)
      return disk
    }),
    (disk) => sh("umount", "-l", disk)
  )

interface Full {
  readonly name: string
  /** Where the database stands, how the command is started there, and how space is made. */
  readonly prepare: (
    dir: string
  ) => Effect.Effect<
    { readonly disk: string; readonly options: Partial<Options>; readonly free: Effect.Effect<unknown> },
    never,
    Scope.Scope
  >
}

const byMount: Full = {
  name: `tmpfs ${DISK_MB} MB`,
  prepare: (dir) =>
    Effect.map(tmpfs(dir, DISK_MB), (disk) => ({
      disk,
      options: {},
      free: sh("mount", "-o", "remount,size=64m", disk)
    }))
}

const byLimit: Full = {
  name: `RLIMIT_FSIZE ${FILE_MB} MB`,
  prepare: (dir) =>
    Effect.succeed({
      disk: dir,
      options: { through: ["bash", "-c", `ulimit -f ${FILE_MB * 1024}; exec "$@"`, "bash"] },
      free: Effect.void
    })
}

const fill = ({ name, prepare }: Full) =>
  Effect.gen(function* () {
    const { broken, check } = makeChecks()
    const provider = yield* providerOf({ latency: 10 })
    const dir = yield* placeOf(ROWS, "a row with a longer text that fills the disk sooner")
    const { disk, free, options } = yield* prepare(dir)
    const place = { dir, db: join(disk, "book.db"), url: provider.url }
    const running = yield* run(place, [], options)
    const ended = yield* endOf(running)
    const { requests } = yield* Effect.promise(provider.bill)
    const full = yield* bookOf(place.db)
    check(`exit ${ended.code}, 74 wanted: ${ended.stderr}`, ended.code === 74)
    check(
      `the message names the file and the fix: ${ended.stderr}`,
      ended.stderr.includes(`no space left for ${place.db}: free some`)
    )
    check(`a trace is shown: ${ended.stderr}`, isPlain(ended))
    check(`${requests} requests <= ${full.holds} holds in the book`, requests <= full.holds)
    check(`it filled up in mid-run: ${full.done} of ${ROWS} done`, full.done > 0 && full.done < ROWS)
    check(`integrity: ${full.integrity}`, full.integrity === "ok")
    yield* free
    const resumed = yield* Effect.flatMap(resume(place), endOf)
    const [last, bill] = [yield* bookOf(place.db), yield* Effect.promise(provider.bill)]
    check(
      `with space: exit ${resumed.code}, ${last.done} done: ${resumed.stderr}`,
      resumed.code === 0 && last.done === ROWS
    )
    const twice = paidTwice(bill.byHash)
    // What was in flight when it filled up; its answers could not be written.
    check(`with space: ${twice} answers paid again <= 8 in flight`, twice <= 8)
    check(
      `bill ${bill.billedNano} <= counted ${last.spent + last.uncertain}`,
      bill.billedNano <= last.spent + last.uncertain
    )
    return {
      figure: `${name}: exit ${ended.code}, ${requests} requests, ${full.holds} holds, ${twice} paid again`,
      broken: broken.map((what) => `${name}: ${what}`)
    }
  })

/** The SQL client as it is: on a full disk a COMMIT fails as a defect, which no handler of errors sees. */
const stock = Effect.gen(function* () {
  const filename = join(yield* tmpfs(yield* placeOf(0), 1), "stock.db")
  const insert = Effect.gen(function* () {
    const sql = yield* SqlClient.SqlClient
    yield* sql`create table t (x)`
    const one = sql.withTransaction(sql`insert into t values (${"x".repeat(20_000)})`)
    return yield* Effect.exit(Effect.repeatN(one, 200))
  })
  const exit = yield* Effect.provide(insert, SqliteClient.layer({ filename }))
  if (Exit.isSuccess(exit)) return "no error"
  return Cause.isDie(exit.cause) ? "a defect" : "a typed error"
})

export const diskFull: Fault = {
  id: "T6",
  name: "disk full",
  needs: ["bash"],
  run: Effect.gen(function* () {
    const mounts = has("tmpfs")
    const filled = yield* Effect.forEach(mounts ? [byMount, byLimit] : [byLimit], (how) => Effect.scoped(fill(how)))
    const { broken, check } = makeChecks()
    const plain = mounts ? yield* stock : undefined
    check(`control: the client as it is gives ${plain}`, plain === undefined || plain === "a defect")
    return {
      figure: filled.map(({ figure }) => figure).join("; "),
      control: plain === undefined ? "none: no tmpfs can be mounted here" : `@effect/sql as it is: ${plain}`,
      broken: [...filled.flatMap((one) => one.broken), ...broken]
    }
  })
}
