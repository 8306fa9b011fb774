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
  /** Calls in flight together, of which these are refused. */
  const burst = (state: Throttle.State, refused: number, now = 0) => {
    const inFlight = grants(state, 8, now)
    return Array.from({ length: refused }).reduce<Throttle.State>(
      (before, _, i) => hear(before, inFlight.grants - i, "crowded", now),
      inFlight
    )
  }

  it("shrinks by a quarter, once for a burst: calls that began before the shrink say the same", () => {
    assert.strictEqual(Throttle.widthOf(burst(begun, 2), most), 8)
    const once = burst(begun, 3)
    assert.strictEqual(Throttle.widthOf(once, most), 6)
    assert.strictEqual(Throttle.widthOf(burst(begun, 8), most), 6)
    assert.strictEqual(Throttle.widthOf(burst(once, 3), most), 5)
  })

  it("one call in twenty that is refused whatever is sent does not narrow it; one in five does", () => {
    const every = (n: number) => {
      let state = begun
      for (let i = 1; i <= 400; i++) {
        state = grants(state, 1)
        state = hear(state, state.grants, i % n === 0 ? "crowded" : "answered")
      }
      return Throttle.widthOf(state, most)
    }
    assert.strictEqual(every(20), most)
    assert.isBelow(every(5), most)
  })

  it("never shrinks below one call, and not at all if it is told not to adapt", () => {
    let state = begun
    for (let i = 0; i < 20; i++) state = burst(state, 8)
    assert.strictEqual(Throttle.widthOf(state, most), 1)
    const fixed = Throttle.start({ ...Throttle.defaults, adaptive: false })
    assert.strictEqual(Throttle.widthOf(burst(fixed, 8), most), most)
  })

  it("grows by one when the width did well for five seconds; twice as long after a growth that was punished", () => {
    const shrunk = burst(begun, 3)
    assert.strictEqual(Throttle.widthOf(hear(shrunk, 9, "answered", 4_999), most), 6)
    const grown = hear(shrunk, 9, "answered", 5_000)
    assert.strictEqual(Throttle.widthOf(grown, most), 7)
    const punished = burst(grown, 3, 6_000)
    // A new width gives way at the second refusal, by one.
    assert.strictEqual(Throttle.widthOf(punished, most), 6)
    assert.strictEqual(Throttle.widthOf(hear(punished, 20, "answered", 15_999), most), 6)
    assert.strictEqual(Throttle.widthOf(hear(punished, 20, "answered", 16_000), most), 7)
  })

  it("does not grow on calls that had room to spare", () => {
    const shrunk = burst(begun, 3)
    const idle = Throttle.heard(shrunk, signal(9, "answered"), most, false, 60_000)
    assert.strictEqual(Throttle.widthOf(idle, most), 6)
  })

  it("after a cool-down one call goes first; one that was under way before it is not that one", () => {
    const cooled = Throttle.cool(grants(begun, 3), 5_000, 0)
    assert.strictEqual(Throttle.readyAt(cooled), 5_000)
    assert.strictEqual(Throttle.widthOf(cooled, most), 1)
    assert.strictEqual(Throttle.widthOf(hear(cooled, 2, "answered"), most), 1)
    assert.strictEqual(Throttle.widthOf(hear(grants(cooled, 1, 5_000), 4, "answered"), most), most)
    // The longest wish holds, one that is over is none, and after a short one nobody has to find out.
    assert.strictEqual(Throttle.readyAt(Throttle.cool(cooled, 500, 0)), 5_000)
    assert.strictEqual(Throttle.cool(begun, 1_000, 2_000), begun)
    assert.strictEqual(Throttle.widthOf(Throttle.cool(begun, 2_000, 0), most), most)
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
    const told = Throttle.learn(Throttle.cool(burst(begun, 3), 9_000, 0), { requestsPerMinute: 6 }, 0)
    const rerouted = Throttle.rerouted(told, 10)
    assert.strictEqual(Throttle.widthOf(rerouted, most), most)
    assert.isAtMost(Throttle.readyAt(rerouted), 10)
    for (const grant of [6, 7, 8]) {
      assert.strictEqual(Throttle.widthOf(hear(rerouted, grant, "crowded"), most), most)
    }
  })
})
