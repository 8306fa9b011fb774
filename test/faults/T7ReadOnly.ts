/** T7: the database and its directory may not be written, and the command runs as nobody. It says so, with the path, before anything is sent. */
import { chmodSync, mkdirSync, rmSync } from "node:fs"
import { dirname, join } from "node:path"
import { Effect } from "effect"
import { type Fault, makeChecks } from "./fault.ts"
import { endOf, isPlain, placeOf, providerOf, resume, run } from "./runs.ts"

const NOBODY = { as: { uid: 65_534, gid: 65_534 } }
const ROWS = 30

/** A run that its cap stopped half-way, in a directory of its own. */
const halfDone = (url: string) =>
  Effect.gen(function* () {
    const dir = yield* placeOf(ROWS)
    chmodSync(dir, 0o777)
    const own = join(dir, "own")
    mkdirSync(own)
    const place = { dir, db: join(own, "book.db"), url }
    const stopped = yield* Effect.flatMap(run(place, ["--max-calls", "10"]), endOf)
    return { place, stopped: stopped.code }
  })

const modes = (db: string, file: number, directory: number) =>
  Effect.sync(() => {
    chmodSync(db, file)
    chmodSync(dirname(db), directory)
  })

export const readOnly: Fault = {
  id: "T7",
  name: "read-only",
  needs: ["root"],
  run: Effect.gen(function* () {
    const { broken, check } = makeChecks()
    const provider = yield* providerOf({ latency: 5 })
    const requests = Effect.map(Effect.promise(provider.bill), (bill) => bill.requests)
    const { place, stopped } = yield* halfDone(provider.url)
    check(`the run before: exit ${stopped}, 4 wanted`, stopped === 4)
    const before = yield* requests

    yield* modes(place.db, 0o444, 0o555)
    const more = ["--max-calls", String(ROWS)]
    const refused = yield* Effect.flatMap(resume(place, more, NOBODY), endOf)
    check(`resume: exit ${refused.code}, 74 wanted: ${refused.stderr}`, refused.code === 74)
    check(`resume names ${place.db}: ${refused.stderr}`, refused.stderr.includes(place.db) && isPlain(refused))

    // A directory where no new file may be made.
    const fresh = { ...place, db: join(dirname(place.db), "new.db") }
    const none = yield* Effect.flatMap(run(fresh, [], NOBODY), endOf)
    check(`run on a new file: exit ${none.code}, 74 wanted: ${none.stderr}`, none.code === 74)
    check(`run names ${fresh.db}: ${none.stderr}`, none.stderr.includes(fresh.db) && isPlain(none))
    const sent = (yield* requests) - before
    check(`${sent} requests`, sent === 0)

    yield* modes(place.db, 0o666, 0o777)
    // The locks and anchors of the run before are root's.
    rmSync(`${place.db}-runs`, { recursive: true })
    const control = yield* Effect.flatMap(resume(place, more, NOBODY), endOf)
    const bought = (yield* requests) - before
    check(`control: writable, exit ${control.code}: ${control.stderr}`, control.code === 0 && bought === ROWS - 10)
    return {
      figure: `as nobody: exit ${refused.code} and ${none.code}, ${sent} requests, the path is named`,
      control: `writable: exit ${control.code}, ${bought} requests`,
      broken
    }
  })
}
