/** T5: SIGTERM with eight calls in flight. They may finish within the grace; what hangs is given up and counted in full; a second signal ends the process at once. */
import { once } from "node:events"
import { join } from "node:path"
import { Effect } from "effect"
import { type Fault, makeChecks } from "./fault.ts"
import { asked, bookOf, endOf, HANGS, paidTwice, placeOf, providerOf, resume, run, showing } from "./runs.ts"

const ROWS = 40
const WIDTH = 8

/** A run that answers: what is in flight is settled, and nothing is bought twice. */
const answered = (signal: "SIGTERM" | "SIGKILL") =>
  Effect.gen(function* () {
    const provider = yield* providerOf({ latency: 300 })
    const dir = yield* placeOf(ROWS)
    const place = { dir, db: join(dir, "book.db"), url: provider.url }
    const running = yield* run(place, ["--grace", "5"])
    yield* asked(provider, WIDTH + 4, running)
    const begun = performance.now()
    running.child.kill(signal)
    const { code } = yield* endOf(running)
    const ms = performance.now() - begun
    const stopped = yield* bookOf(place.db)
    const { requests } = yield* Effect.promise(provider.bill)
    const { code: resumedCode } = yield* Effect.flatMap(resume(place), endOf)
    const bill = yield* Effect.promise(provider.bill)
    return { code, ms, stopped, requests, resumedCode, ended: yield* bookOf(place.db), bill }
  })

/** A run whose calls never end, and how it is stopped. */
const hung = (args: ReadonlyArray<string>, again: boolean) =>
  Effect.gen(function* () {
    const provider = yield* providerOf(HANGS)
    const dir = yield* placeOf(ROWS)
    const place = { dir, db: join(dir, "book.db"), url: provider.url }
    const running = yield* run(place, args)
    yield* asked(provider, WIDTH, running)
    running.child.kill("SIGTERM")
    yield* showing(running, "a second signal abandons them")
    const begun = performance.now()
    if (again) running.child.kill("SIGTERM")
    const [code, signal] = yield* Effect.promise(() => once(running.child, "exit"))
    const ms = performance.now() - begun
    const stopped = yield* bookOf(place.db)
    const next = yield* providerOf({ latency: 10 })
    const resumed = yield* Effect.flatMap(resume({ ...place, url: next.url }), endOf)
    return { code, signal, ms, stopped, resumedCode: resumed.code, ended: yield* bookOf(place.db) }
  })

export const drain: Fault = {
  id: "T5",
  name: "SIGTERM",
  run: Effect.gen(function* () {
    const { broken, check } = makeChecks()
    const calm = yield* Effect.scoped(answered("SIGTERM"))
    const rebought = paidTwice(calm.bill.byHash)
    check(`exit ${calm.code}, 130 wanted`, calm.code === 130)
    // The slowest call was just sent: 300 ms, and ten times that on a busy machine. The grace is 5 s.
    check(`exit ${Math.round(calm.ms)} ms after the signal`, calm.ms < 5_000)
    check(`${calm.stopped.status}, suspended wanted`, calm.stopped.status === "suspended")
    check(`${calm.stopped.openHolds} open holds`, calm.stopped.openHolds === 0 && calm.stopped.held === 0)
    check(`uncertain ${calm.stopped.uncertain}`, calm.stopped.uncertain === 0)
    check(`${calm.stopped.settled} settled of ${calm.requests} sent`, calm.stopped.settled === calm.requests)
    check(`${calm.requests} of ${ROWS} rows were asked before the signal`, calm.requests < ROWS)
    check(
      `resume: exit ${calm.resumedCode}, ${calm.ended.done} done`,
      calm.resumedCode === 0 && calm.ended.done === ROWS
    )
    check(`resume bought ${rebought} answers again`, rebought === 0 && calm.bill.requests === ROWS)

    const twice = yield* Effect.scoped(hung(["--grace", "60"], true))
    check(`second signal: exit by ${twice.signal ?? twice.code}`, twice.signal === "SIGTERM")
    check(`second signal: exit after ${Math.round(twice.ms)} ms`, twice.ms < 2_000)
    check(`second signal: ${twice.stopped.openHolds} open holds, ${WIDTH} wanted`, twice.stopped.openHolds === WIDTH)
    check(
      `then uncertain ${twice.ended.uncertain} of ${twice.stopped.held} held`,
      twice.ended.uncertain === twice.stopped.held && twice.stopped.held > 0
    )
    check(
      `then ${twice.ended.done} done, exit ${twice.resumedCode}`,
      twice.ended.done === ROWS && twice.resumedCode === 0
    )

    const short = yield* Effect.scoped(hung(["--grace", "1"], false))
    check(`grace 1 s: exit ${short.code}, 130 wanted`, short.code === 130)
    check(`grace 1 s: exit after ${Math.round(short.ms)} ms`, short.ms > 900 && short.ms < 10_000)
    check(
      `grace 1 s: ${short.stopped.openHolds} open, uncertain ${short.stopped.uncertain}`,
      short.stopped.openHolds === 0 && short.stopped.uncertain > 0 && short.stopped.status === "suspended"
    )
    check(
      `then ${short.ended.done} done, exit ${short.resumedCode}`,
      short.ended.done === ROWS && short.resumedCode === 0
    )

    const killed = yield* Effect.scoped(answered("SIGKILL"))
    const again = paidTwice(killed.bill.byHash)
    check(`control: SIGKILL leaves open holds`, killed.stopped.openHolds > 0 && again > 0)
    const figure = `drained in ${Math.round(calm.ms)} ms, 0 open, ${rebought} bought again; 2nd signal ${Math.round(twice.ms)} ms; grace 1 s ${Math.round(short.ms)} ms`
    return { figure, control: `SIGKILL: ${killed.stopped.openHolds} open, ${again} bought again`, broken }
  })
}
