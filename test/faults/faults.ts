/**
 * Faults of the machine, each carried out on the real parts: the power fails, the disk is full or read-only, the file is locked, signals come, the clock is set anew.
 * Each has its figure and a control: the same measure without what protects us.
 *
 *   npm run faults [-- T3 T9]
 *
 * A fault whose tool is missing is skipped by name; with LONGHAUL_CI=1 that is a failure. Exit 0 only if everything held. A new fault is a file that exports a `Fault`
 * and its line in `faults`.
 */
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import { Cause, Effect, Exit } from "effect"
import { type Fault, missing, type Report } from "./fault.ts"
import { powerLoss } from "./T3PowerLoss.ts"
import { fsync } from "./T4Fsync.ts"
import { drain } from "./T5Drain.ts"
import { diskFull } from "./T6DiskFull.ts"
import { readOnly } from "./T7ReadOnly.ts"
import { damage, takenAway } from "./T8Damage.ts"
import { locked } from "./T9Locked.ts"
import { twoResumers } from "./T10TwoResumers.ts"
import { clockJumps } from "./T11ClockJumps.ts"
import { stall } from "./T12Stall.ts"

const faults: ReadonlyArray<Fault> = [
  powerLoss,
  fsync,
  drain,
  diskFull,
  readOnly,
  damage,
  takenAway,
  locked,
  twoResumers,
  clockJumps,
  stall
]

const say = ({ id, name }: Fault, verdict: string, rest: string) =>
  console.log(`${id.padEnd(4)}${name.padEnd(14)}${verdict.padEnd(9)}${rest}`)

/** Whether it held; a skip does, but not in CI. */
const carryOut = (fault: Fault) =>
  Effect.gen(function* () {
    const without = missing(fault)
    if (without.length > 0) {
      say(fault, "skipped", `no ${without.join(", no ")} here`)
      return process.env.LONGHAUL_CI !== "1"
    }
    const begun = performance.now()
    const exit = yield* Effect.exit(Effect.scoped(fault.run))
    const { broken, control, figure } = Exit.match(exit, { onSuccess: (report) => report, onFailure: asReport })
    const seconds = Math.round((performance.now() - begun) / 1000)
    say(fault, broken.length === 0 ? "ok" : "BROKEN", `${figure}   control ${control}   ${seconds} s`)
    for (const what of broken) console.log(`    ${what}`)
    return broken.length === 0
  })

const asReport = (cause: Cause.Cause<unknown>): Report => ({
  figure: "not carried out",
  control: "-",
  broken: [Cause.pretty(cause)]
})

const asked = process.argv.slice(2)
const unknown = asked.filter((id) => !faults.some((fault) => fault.id === id))
const chosen = faults.filter(({ id }) => asked.length === 0 || asked.includes(id))

const main = Effect.gen(function* () {
  if (unknown.length > 0) {
    console.error(`there is no fault ${unknown.join(", ")}: ${faults.map(({ id }) => id).join(", ")}`)
    return false
  }
  // One after the other: they measure time.
  const held = yield* Effect.forEach(chosen, carryOut)
  return held.every((one) => one)
})

NodeRuntime.runMain(
  Effect.map(main, (held) => {
    process.exitCode = held ? 0 : 1
  })
)
