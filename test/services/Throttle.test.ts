import { assert, describe, it } from "@effect/vitest"
import * as Throttle from "../../src/services/Throttle.ts"

const most = 8
const call = { retry: false, tokens: 0, waited: false }
const grants = (state: Throttle.State, n: number, now = 0) =>
  Array.from({ length: n }).reduce<Throttle.State>((before) => Throttle.granted(before, call, now), state)
const signal = (grant: number, end: Throttle.Signal["end"], retry = false): Throttle.Signal => ({
  grant,
  retry,
  end,
  unused: 0
})
const hear = (state: Throttle.State, grant: number, end: Throttle.Signal["end"], now = 0) =>
  Throttle.heard(state, signal(grant, end), most, true, now)
const begun = Throttle.start(Throttle.defaults)

describe("Throttle", () => {
  it("shrinks by a quarter, once for a burst: calls that began before the shrink say the same", () => {
    const inFlight = grants(begun, 8)
    const once = hear(inFlight, 1, "crowded")
    assert.strictEqual(Throttle.widthOf(once, most), 6)
    const burst = [2, 3, 4, 5, 6, 7, 8].reduce((state, grant) => hear(state, grant, "crowded"), once)
    assert.strictEqual(Throttle.widthOf(burst, most), 6)
    assert.strictEqual(Throttle.widthOf(hear(grants(burst, 1), 9, "crowded"), most), 5)
  })

  it("never shrinks below one call, and not at all if it is told not to adapt", () => {
    let state = begun
    for (let i = 1; i < 20; i++) state = hear(grants(state, 1), i, "crowded")
    assert.strictEqual(Throttle.widthOf(state, most), 1)
    const fixed = grants(Throttle.start({ ...Throttle.defaults, adaptive: false }), 1)
    assert.strictEqual(Throttle.widthOf(hear(fixed, 1, "crowded"), most), most)
  })

  it("grows by one when the width did well for five seconds; twice as long after a growth that was punished", () => {
    const shrunk = hear(grants(begun, 8), 1, "crowded", 0)
    assert.strictEqual(Throttle.widthOf(hear(shrunk, 9, "answered", 4_999), most), 6)
    const grown = hear(shrunk, 9, "answered", 5_000)
    assert.strictEqual(Throttle.widthOf(grown, most), 7)
    const punished = hear(grants(grown, 1), 9, "crowded", 6_000)
    assert.strictEqual(Throttle.widthOf(punished, most), 5)
    assert.strictEqual(Throttle.widthOf(hear(punished, 10, "answered", 15_999), most), 5)
    assert.strictEqual(Throttle.widthOf(hear(punished, 10, "answered", 16_000), most), 6)
  })

  it("does not grow on calls that had room to spare", () => {
    const shrunk = hear(grants(begun, 8), 1, "crowded", 0)
    const idle = Throttle.heard(shrunk, signal(9, "answered"), most, false, 60_000)
    assert.strictEqual(Throttle.widthOf(idle, most), 6)
  })

  it("after a cool-down one call goes first; one that was under way before it is not that one", () => {
    const cooled = Throttle.cool(grants(begun, 3), 1_000, 0)
    assert.strictEqual(Throttle.readyAt(cooled), 1_000)
    assert.strictEqual(Throttle.widthOf(cooled, most), 1)
    assert.strictEqual(Throttle.widthOf(hear(cooled, 2, "answered"), most), 1)
    assert.strictEqual(Throttle.widthOf(hear(grants(cooled, 1, 1_000), 4, "answered"), most), most)
    // The longest wish holds, and one that is over is none.
    assert.strictEqual(Throttle.readyAt(Throttle.cool(cooled, 500, 0)), 1_000)
    assert.strictEqual(Throttle.cool(begun, 1_000, 2_000), begun)
  })

  it("ten retries may go unearned; a first try that is answered earns a tenth of one, a retry gives its own back", () => {
    let state = begun
    for (let i = 0; i < 10; i++) {
      assert.isTrue(Throttle.mayRetry(state, 5))
      state = Throttle.granted(state, { ...call, retry: true }, 0)
    }
    assert.isFalse(Throttle.mayRetry(state, 5))
    assert.isTrue(Throttle.mayRetry(state, 0))
    const tenth = Array.from({ length: 11 }).reduce<Throttle.State>((before) => hear(before, 11, "answered"), state)
    assert.isTrue(Throttle.mayRetry(tenth, 5))
    assert.isTrue(Throttle.mayRetry(Throttle.heard(state, signal(1, "answered", true), most, true, 0), 5))
    assert.isFalse(Throttle.mayRetry(Throttle.heard(state, signal(1, "failed", true), most, true, 0), 5))
  })

  it("forgets another provider's width, cool-down and limits, and what its calls under way meet", () => {
    const told = Throttle.learn(
      Throttle.cool(hear(grants(begun, 8), 1, "crowded"), 9_000, 0),
      { requestsPerMinute: 6 },
      0
    )
    const rerouted = Throttle.rerouted(told, 10)
    assert.strictEqual(Throttle.widthOf(rerouted, most), most)
    assert.isAtMost(Throttle.readyAt(rerouted), 10)
    assert.strictEqual(Throttle.widthOf(hear(rerouted, 5, "crowded"), most), most)
  })
})
