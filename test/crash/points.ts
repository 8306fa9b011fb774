/**
 * The labelled points of a run at which it is killed: each is a place in the life of a call or a snapshot, and the process kills itself there, by a real SIGKILL, when it
 * comes to the place for the n-th time. Nothing of this is in the library: the driver and the provider are wrapped.
 */
import { Effect } from "effect"
import type { Writes } from "../../src/services/Book.ts"
import type { Driver } from "../../src/services/Journal.ts"
import type { LLMShape } from "../../src/services/LLM.ts"

/** What each point is, by the letters of the table of crash points. */
export const points = {
  a: "inside the hold's commit",
  b0: "after the hold's commit, before the request",
  b: "the provider has the request",
  c: "answered, before the settle's commit",
  d: "inside the settle's commit",
  e: "inside a snapshot's commit",
  f: "after a snapshot's commit"
} as const
export type Point = keyof typeof points

/** Where the kill is to be: the `nth` time at the point. */
export interface Spot {
  readonly point: Point | undefined
  readonly nth: number
}

/** Nothing runs after it: the signal is delivered before the call returns. */
const die = (): void => void process.kill(process.pid, "SIGKILL")

const hits = ({ point, nth }: Spot) => {
  let seen = 0
  return (at: Point): boolean => at === point && ++seen === nth
}

/** The driver that dies before or after the n-th commit that writes what the point is about. */
export const dyingDriver = (driver: Driver, spot: Spot): Driver => {
  const hit = hits(spot)
  return {
    ...driver,
    transact: (needs, decide) => {
      let after = false
      const watched = driver.transact(needs, (facts) => {
        const writes = decide(facts)
        const holds = writes.holds.size > 0
        const snapshots = writes.checkpoints.length > 0
        const settles = writes.calls.some((call) => call.state === "settled")
        after = (holds && hit("b0")) || (snapshots && hit("f"))
        const inside = (holds && hit("a")) || (settles && hit("d")) || (snapshots && hit("e"))
        return inside ? dyingLast(writes) : writes
      })
      return Effect.tap(watched, () => (after ? Effect.sync(die) : Effect.void))
    }
  }
}

/** What is written is written in the order of its names, see `Writes`: to read the last of them is to have written all others, and not to have committed. */
const dyingLast = (writes: Writes): Writes => {
  const puts = [...writes.puts]
  Object.defineProperty(puts, Symbol.iterator, { value: die })
  return { ...writes, puts }
}

/** The provider's client that dies at the n-th call: once the provider has its request, or once its answer is there. */
export const dyingLlm = (llm: LLMShape, spot: Spot, provider: Effect.Effect<number>): LLMShape => {
  const hit = hits(spot)
  let calls = 0
  let dying = false
  const diesInFlight = Effect.repeat(provider, { until: (requests) => requests >= calls }).pipe(
    Effect.zipRight(Effect.sync(die)),
    Effect.zipRight(Effect.never)
  )
  return {
    ...llm,
    generate: (request) =>
      Effect.suspend(() => {
        // No call after the n-th, so that the number of requests says that it has arrived.
        if (dying) return Effect.never
        calls++
        const call = llm.generate(request)
        if (spot.point !== "b") return Effect.tap(call, () => (hit("c") ? Effect.sync(die) : Effect.void))
        dying = hit("b")
        return dying ? Effect.zipRight(Effect.fork(call), diesInFlight) : call
      })
  }
}
