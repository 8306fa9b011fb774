import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import { missing } from "./fault.ts"
import { fsync } from "./T4Fsync.ts"
import { commandAlive, commandSetBack, inVirtual } from "./T11ClockJumps.ts"

const limit = { timeout: 120_000 }
const without = missing(fsync)

/** The faults of `npm run faults` that take a few seconds. */
describe("faults", () => {
  it.scopedLive.skipIf(without.length > 0)(
    `each hold is synced before it is acknowledged${without.length > 0 ? ` (skipped: no ${without.join(", ")})` : ""}`,
    () => Effect.map(fsync.run, ({ broken }) => assert.deepStrictEqual(broken, [])),
    limit
  )

  it.scopedLive(
    "a clock that is set anew, and the days of summer time, change neither what a run asks nor when",
    () => Effect.map(inVirtual, ({ broken }) => assert.deepStrictEqual(broken, [])),
    limit
  )

  it.scopedLive(
    "a clock that is set a day back in mid-run: the command's times and rates are those of the time that passed",
    () => Effect.map(commandSetBack, (broken) => assert.deepStrictEqual(broken, [])),
    limit
  )

  it.scopedLive(
    "a live run is not taken for dead where the clock was set since it began",
    () => Effect.map(commandAlive, (broken) => assert.deepStrictEqual(broken, [])),
    limit
  )
})
