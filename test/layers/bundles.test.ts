import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Exit, FiberId, type Layer, type Scheduler } from "effect"
import { Memory } from "../../src/index.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import { tempDir } from "../support/mortalProcess.ts"

/** Builds the layer and interrupts before the n-th task of the scheduler; gives its end, if it has one. */
const interruptedAt = <A, E>(layer: Layer.Layer<A, E>, n: number) =>
  Effect.promise(async () => {
    const tasks: Array<() => void> = []
    const scheduler: Scheduler.Scheduler = {
      shouldYield: () => false,
      scheduleTask: (task) => void tasks.push(task)
    }
    const fiber = Effect.runFork(Effect.provide(Effect.void, layer), { scheduler })
    let end: Exit.Exit<void, E> | undefined
    fiber.addObserver((exit) => {
      end = exit
    })
    let run = 0
    // What waits for the platform (a file, a timer) is given some of its turns.
    for (let idle = 0; end === undefined && idle < 200; idle++) {
      for (let task = tasks.shift(); task !== undefined; task = tasks.shift()) {
        if (run++ === n) fiber.unsafeInterruptAsFork(FiberId.none)
        task()
      }
      await new Promise((resolve) => setTimeout(resolve, 1))
    }
    return { end, run }
  })

const bundles = {
  memory: Effect.succeed(Memory.layer),
  SQLite: Effect.map(tempDir, (dir) => Sqlite.layer({ filename: join(dir, "test.db") }))
}

describe("a bundle of layers", () => {
  for (const [name, bundle] of Object.entries(bundles)) {
    it.scopedLive(`${name}: an interruption at any instant of its start ends it`, () =>
      Effect.gen(function* () {
        const layer = yield* bundle
        for (let n = 0; n < 30; n++) {
          const { end, run } = yield* interruptedAt(layer, n)
          if (end === undefined) return assert.fail(`interrupted before task ${n}, it hangs`)
          if (run <= n) return assert.isTrue(Exit.isSuccess(end))
        }
      })
    )
  }
})
