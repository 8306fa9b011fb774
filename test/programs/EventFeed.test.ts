/** A feed told to any number of listeners: each hears every event once and in order, or that there is a gap, in whatever order things happen. */
import { assert, describe, it } from "@effect/vitest"
import { Chunk, Effect, Fiber, FastCheck as fc, Option, Stream } from "effect"
import * as EventFeed from "../../src/programs/EventFeed.ts"

type Step =
  | { readonly _tag: "append"; readonly times: number }
  /** A new listener, after the event that another one heard `ago` events before the latest. */
  | { readonly _tag: "listen"; readonly ago: number }
  /** A listener takes so many more. */
  | { readonly _tag: "take"; readonly listener: number; readonly times: number }

const steps: fc.Arbitrary<ReadonlyArray<Step>> = fc.array(
  fc.oneof(
    fc.record({ _tag: fc.constant("append" as const), times: fc.integer({ min: 1, max: 7 }) }),
    fc.record({ _tag: fc.constant("listen" as const), ago: fc.integer({ min: -3, max: 9 }) }),
    fc.record({ _tag: fc.constant("take" as const), listener: fc.nat(5), times: fc.integer({ min: 1, max: 4 }) })
  ),
  { maxLength: 40 }
)

interface Listener {
  readonly from: number
  readonly isAhead: boolean
  readonly heard: Array<EventFeed.Entry>
  readonly pull: Effect.Effect<Chunk.Chunk<EventFeed.Entry>, Option.Option<never>>
}

/** From one event to the next: a gap may leap forward, everything else is the next number. */
const assertWhole = ({ from, heard, isAhead }: Listener, latest: number, kept: number): void => {
  let last = from
  for (const [i, { n, name }] of heard.entries()) {
    // Only who comes with a number that has not been yet is led back, at once.
    if (name === "gap") assert.isTrue(n >= last || (i === 0 && isAhead), `a gap back from ${last} to ${n}`)
    else assert.strictEqual(n, last + 1)
    last = n
  }
  // Who has missed nothing that is kept hears of no gap.
  if (from >= 0 && !isAhead && latest <= kept) assert.isTrue(heard.every(({ name }) => name !== "gap"))
}

const appendTo = (feed: EventFeed.EventFeed): void => feed.append("Row", String(feed.latest() + 1))

describe("EventFeed", () => {
  it.effect("tells each listener every event once and in order, or of a gap, and ends", () =>
    Effect.promise(() =>
      fc.assert(
        fc.asyncProperty(steps, fc.integer({ min: 1, max: 6 }), fc.nat(3), (steps, kept, during) =>
          Effect.runPromise(
            Effect.scoped(
              Effect.gen(function* () {
                const feed = EventFeed.make("feed", kept)
                const listeners: Array<Listener> = []
                let isOver = false
                // While it is made more happens.
                const gap = (n: number) =>
                  Effect.gen(function* () {
                    yield* Effect.yieldNow()
                    for (let i = 0; i < Math.min(during, kept) && !isOver; i++) appendTo(feed)
                    yield* Effect.yieldNow()
                    return { n, name: "gap", data: "" }
                  })
                const take = (listener: Listener) =>
                  Effect.map(Effect.option(listener.pull), (got) => {
                    const entries = Option.match(got, { onNone: () => [], onSome: Chunk.toReadonlyArray })
                    listener.heard.push(...entries)
                    return Option.isSome(got)
                  })
                for (const step of steps) {
                  if (step._tag === "append") for (let i = 0; i < step.times; i++) appendTo(feed)
                  else if (step._tag === "listen") {
                    const from = feed.latest() - step.ago
                    listeners.push({
                      from,
                      isAhead: step.ago < 0,
                      heard: [],
                      pull: yield* Stream.toPull(feed.after(from, gap))
                    })
                  } else {
                    const listener = listeners[step.listener]
                    // One that has heard all would wait.
                    for (let i = 0; listener !== undefined && i < step.times; i++) {
                      const at = listener.heard.at(-1)?.n ?? listener.from
                      if (at !== feed.latest()) yield* take(listener)
                    }
                  }
                }
                isOver = true
                feed.end()
                for (const listener of listeners) {
                  let more = true
                  while (more) more = yield* take(listener)
                  assertWhole(listener, feed.latest(), kept)
                  const last = listener.heard.at(-1)?.n ?? listener.from
                  assert.strictEqual(last, feed.latest())
                }
                for (const { heard } of listeners) {
                  for (const { data, n, name } of heard) if (name === "Row") assert.strictEqual(data, String(n))
                }
              })
            )
          )
        ),
        { numRuns: 300 }
      )
    )
  )

  it.effect("wakes whoever waits, and lets go of them at the end", () =>
    Effect.gen(function* () {
      const feed = EventFeed.make("feed")
      const gap = () => Effect.die("there is no gap")
      const waiting = yield* Effect.forkAll(Array.from({ length: 50 }, () => Stream.runCollect(feed.after(0, gap))))
      yield* Effect.yieldNow()
      for (let i = 0; i < 5; i++) {
        appendTo(feed)
        yield* Effect.yieldNow()
      }
      feed.end()
      const heard = (yield* Fiber.join(waiting)).map((all) => Chunk.toReadonlyArray(all).map(({ n }) => n))
      for (const numbers of heard) assert.deepStrictEqual(numbers, [1, 2, 3, 4, 5])
    })
  )

  it("knows its own events' ids, and takes all others for a gap", () => {
    const feed = EventFeed.make("a1b2")
    assert.strictEqual(feed.numberOf(feed.idOf(7)), 7)
    for (const id of ["", "7", "other-7", "a1b2", "a1b2-", "a1b2-x", "a1b2-1e99", "a1b2--3", "a1b2-NaN"]) {
      // An id without a number is the beginning at most, and no later place.
      assert.isAtMost(feed.numberOf(id), 0, id)
    }
    assert.isBelow(feed.numberOf("7"), 0)
    assert.isBelow(EventFeed.make("c3d4").numberOf(feed.idOf(1)), 0)
  })
})
