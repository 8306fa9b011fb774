/**
 * Time and turns of a simulation: one seed decides which of the tasks that are ready runs next, when a fiber gives way, and every random number; time stands still while
 * a task is left and then jumps to the next sleeper. Internal to Verify.
 *
 * @since 0.1.0
 */
import { Clock, Duration, Effect, type Scheduler } from "effect"

/** Random numbers of a seed. @since 0.1.0 */
export interface Dice {
  /** At least 0 and below 1. */
  readonly next: () => number
  /** A whole number below `n`. */
  readonly below: (n: number) => number
  readonly chance: (share: number) => boolean
  readonly pick: <A>(first: A, ...rest: ReadonlyArray<A>) => A
}

/**
 * Mulberry32: fast, and the same everywhere.
 *
 * @since 0.1.0
 */
export const dice = (seed: number): Dice => {
  // Seeds that follow each other must not begin alike.
  let state = Math.imul(seed ^ 0x9e3779b9, 0x85ebca6b)
  const next = () => {
    state = (state + 0x6d2b79f5) | 0
    const a = Math.imul(state ^ (state >>> 15), 1 | state)
    const b = (a + Math.imul(a ^ (a >>> 7), 61 | a)) ^ a
    return ((b ^ (b >>> 14)) >>> 0) / 2 ** 32
  }
  const below = (n: number) => Math.floor(next() * n)
  return {
    next,
    below,
    chance: (share) => next() < share,
    pick: (first, ...rest) => {
      const n = below(rest.length + 1)
      return n === 0 ? first : (rest[n - 1] ?? first)
    }
  }
}

/**
 * What all processes of one simulation share. Milliseconds: `now` is never set back; `wall` is what is to be added for the date, and may jump.
 *
 * @since 0.1.0
 */
export interface World {
  readonly dice: Dice
  now: number
  wall: number
  steps: number
}

/** The fibers of one simulated process. @since 0.1.0 */
export interface Turns {
  readonly scheduler: Scheduler.Scheduler
  readonly clock: Clock.Clock
  /** Runs a task in some later turn. */
  readonly later: (task: () => void) => void
  /** Runs one task, or lets time pass to the next sleeper; false: nothing is left. */
  readonly step: () => boolean
  /** Cuts the process off from the world, so that what is left of it can be cleared away without a trace. */
  readonly detach: () => void
}

/** A fiber gives way after this many operations at least, and at most so many more. */
const LEAST_OPS = 3
const MORE_OPS = 62

interface Sleeper {
  readonly at: number
  readonly wake: () => void
  cancelled: boolean
}

/**
 * A process in a world.
 *
 * @since 0.1.0
 */
export const turns = (shared: World): Turns => {
  let world = shared
  let limit = LEAST_OPS
  const tasks: Array<() => void> = []
  const sleepers: Array<Sleeper> = []

  const scheduler: Scheduler.Scheduler = {
    shouldYield: (fiber) => {
      if (fiber.currentOpCount < limit) return false
      limit = LEAST_OPS + world.dice.below(MORE_OPS)
      return 0
    },
    scheduleTask: (task) => void tasks.push(task)
  }

  const run = (): void => {
    const n = world.dice.below(tasks.length)
    const task = tasks[n]
    const last = tasks.pop()
    if (n < tasks.length && last !== undefined) tasks[n] = last
    task?.()
  }

  /** Sorted by time, latest first; those of one time wake together and the dice order them. */
  const advance = (): boolean => {
    let woke = false
    for (let next = sleepers.at(-1); next !== undefined && (!woke || next.at <= world.now); next = sleepers.at(-1)) {
      sleepers.pop()
      if (next.cancelled) continue
      woke = true
      world.now = Math.max(world.now, next.at)
      next.wake()
    }
    return woke
  }

  return {
    scheduler,
    clock: clockOf(() => world, sleepers),
    later: (task) => void tasks.push(task),
    step: () => {
      world.steps++
      if (tasks.length === 0) return advance()
      run()
      return true
    },
    detach: () => {
      world = { ...world, dice: dice(0) }
    }
  }
}

const clockOf = (world: () => World, sleepers: Array<Sleeper>): Clock.Clock => {
  const millis = () => Math.floor(world().now + world().wall)
  const nanos = () => BigInt(Math.round(world().now * 1e6))
  return {
    [Clock.ClockTypeId]: Clock.ClockTypeId,
    unsafeCurrentTimeMillis: millis,
    unsafeCurrentTimeNanos: nanos,
    currentTimeMillis: Effect.sync(millis),
    currentTimeNanos: Effect.sync(nanos),
    sleep: (duration) =>
      Effect.async<void>((resume) => {
        const at = world().now + Duration.toMillis(duration)
        const sleeper: Sleeper = { at, wake: () => resume(Effect.void), cancelled: false }
        // What sleeps for ever is no reason to let time pass.
        if (Number.isFinite(at)) sleepers.splice(placeOf(sleepers, at), 0, sleeper)
        return Effect.sync(() => {
          sleeper.cancelled = true
        })
      })
  }
}

const placeOf = (sleepers: ReadonlyArray<Sleeper>, at: number): number => {
  let low = 0
  let high = sleepers.length
  while (low < high) {
    const middle = (low + high) >>> 1
    if ((sleepers[middle]?.at ?? 0) > at) low = middle + 1
    else high = middle
  }
  return low
}
