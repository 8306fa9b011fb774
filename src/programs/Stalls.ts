/**
 * Sees when the event loop stood still: a row's function that works for seconds without a pause stops every call, timeout and sign of life of the process.
 *
 * @since 0.1.0
 */
import { Effect, Queue, type Scope } from "effect"

const EVERY_MS = 200
/** Shorter ones do not matter: a commit or a collection of garbage may take as long. */
const STALL_MS = 1_000

/**
 * Reports each stall with its length in milliseconds, for as long as the scope is open. It looks at the machine's own clock, whatever clock the program goes by.
 *
 * @since 0.1.0
 */
export const watch = (report: (ms: number) => Effect.Effect<void>): Effect.Effect<void, never, Scope.Scope> =>
  Effect.gen(function* () {
    const stalls = yield* Queue.unbounded<number>()
    let last = performance.now()
    const look = () => {
      const now = performance.now()
      const late = now - last - EVERY_MS
      last = now
      if (late >= STALL_MS) stalls.unsafeOffer(Math.round(late))
    }
    yield* Effect.acquireRelease(
      Effect.sync(() => setInterval(look, EVERY_MS).unref()),
      (timer) => Effect.sync(() => clearInterval(timer))
    )
    yield* Effect.forkScoped(Effect.forever(Effect.flatMap(Queue.take(stalls), report)))
  })
