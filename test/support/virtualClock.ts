/**
 * A clock that jumps to the next sleeper whenever nothing else is left to do: hours of a run pass in a second. TestClock is the better one where a test says when time
 * passes; this one is for runs with thousands of waits.
 */
import { Clock, Duration, Effect, Fiber } from "effect"

interface Sleeper {
  readonly at: number
  readonly n: number
  readonly wake: () => void
}

/** Runs an effect to its end in virtual time, from `start` milliseconds since 1970 on. */
export const inVirtualTime = async <A, E>(effect: Effect.Effect<A, E>, start = 0): Promise<A> => {
  let now = start
  let n = 0
  const sleepers: Array<Sleeper> = []
  const nanos = () => BigInt(Math.round(now)) * 1_000_000n
  const clock: Clock.Clock = {
    [Clock.ClockTypeId]: Clock.ClockTypeId,
    unsafeCurrentTimeMillis: () => now,
    unsafeCurrentTimeNanos: nanos,
    currentTimeMillis: Effect.sync(() => now),
    currentTimeNanos: Effect.sync(nanos),
    sleep: (duration) =>
      Effect.async<void>((resume) => {
        const sleeper = { at: now + Duration.toMillis(duration), n: n++, wake: () => resume(Effect.void) }
        const place = sleepers.findIndex(({ at }) => at > sleeper.at)
        sleepers.splice(place < 0 ? sleepers.length : place, 0, sleeper)
        return Effect.sync(() => {
          const index = sleepers.indexOf(sleeper)
          if (index >= 0) sleepers.splice(index, 1)
        })
      })
  }
  const fiber = Effect.runFork(Effect.withClock(effect, clock))
  let over = false
  fiber.addObserver(() => {
    over = true
  })
  for (let idle = 0; !over; ) {
    await new Promise((resolve) => setImmediate(resolve))
    const next = sleepers[0]
    if (next === undefined) {
      // Only real time can go on now: something waits for a timer or a socket.
      if (++idle > 20_000) throw new Error("nothing is left to wait for in virtual time")
      continue
    }
    idle = 0
    now = Math.max(now, next.at)
    while (sleepers[0] !== undefined && sleepers[0].at <= now) sleepers.shift()?.wake()
  }
  return Effect.runPromise(Fiber.join(fiber))
}
