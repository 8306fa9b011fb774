/** Admission step by step: what each event does to each figure, who goes next, and what ends it. The laws over any order of events are in Admission.test.ts. */
import { assert, describe, it } from "@effect/vitest"
import { HashMap } from "effect"
import {
  type Action,
  allowed,
  type Event,
  isCooling,
  type Start,
  type State,
  start,
  type Ticket,
  transition,
  wakeAt
} from "../../src/services/Admission.ts"
import type { StopReason } from "../../src/services/Errors.ts"
import * as Throttle from "../../src/services/Throttle.ts"
import { Usd } from "../../src/services/Usd.ts"

const from: Start = {
  cap: Usd.nano(1_000),
  maxCalls: null,
  maxConcurrency: 4,
  spent: Usd.nano(100),
  uncertain: Usd.nano(50),
  held: Usd.zero,
  calls: 3,
  paused: null
}
const begun = (parts: Partial<Start> = {}, throttle = Throttle.defaults, now = 0) =>
  start({ ...from, ...parts }, throttle, now)
const ticket = (id: number, parts: Partial<Ticket> = {}): Ticket => ({
  id,
  seq: id,
  amount: Usd.nano(10),
  attempt: 0,
  tokens: 0,
  ...parts
})
const ask = (id: number, parts: Partial<Ticket> = {}): Event => ({ _tag: "Ask", ticket: ticket(id, parts) })
const enter = (seq: number): Event => ({ _tag: "Enter", seq })
const leave = (seq: number): Event => ({ _tag: "Leave", seq })
const operator: StopReason = { kind: "operator", message: "asked to stop" }
const pause: Event = { _tag: "Pause", pause: { by: "operator", message: "paused by ada" } }
const settled = (signal?: Throttle.Signal): Event => {
  const closing = { _tag: "Settled", amount: Usd.nano(10), cost: Usd.nano(4) } as const
  return signal === undefined ? closing : { ...closing, signal }
}

/** What the events come to, one after the other, and all that was to be done. */
const run = (state: State, ...events: ReadonlyArray<Event>): readonly [State, ReadonlyArray<Action>] =>
  events.reduce<readonly [State, ReadonlyArray<Action>]>(
    ([before, done], event) => {
      const [next, actions] = transition(before, event)
      return [next, [...done, ...actions]]
    },
    [state, []]
  )
const at = (state: State, ...events: ReadonlyArray<Event>) => run(state, ...events)[0]
const granted = (actions: ReadonlyArray<Action>) =>
  actions.flatMap((action) => (action._tag === "Grant" ? [action.ticket.id] : []))
const grants = (state: State, ...events: ReadonlyArray<Event>) => granted(run(state, ...events)[1])
const queued = (state: State) => ({
  waiting: [...state.waiting].map(([one]) => one.id),
  retrying: [...state.retrying].map(([one]) => one.id),
  rows: [...HashMap.entries(state.rows)].sort(([a], [b]) => a - b),
  rowsWaiting: state.rowsWaiting
})
/** The figures of a state. */
const figures = ({ calls, held, inFlight, spent, uncertain }: State) => ({
  spent: Number(spent),
  uncertain: Number(uncertain),
  held: Number(held),
  calls,
  inFlight
})
/** Both calls in flight, so that what one says is not of a call alone. */
const flying = (count: number, state = begun()) => at(state, ...Array.from({ length: count }, (_, id) => ask(id)))

describe("Admission begins", () => {
  it("with what the book says, its own limits, and nothing under way", () => {
    const state = begun({ maxCalls: 9, held: Usd.nano(7) }, { ...Throttle.defaults, requestsPerMinute: 60 }, 5)
    assert.deepStrictEqual(figures(state), { spent: 100, uncertain: 50, held: 7, calls: 3, inFlight: 0 })
    assert.deepStrictEqual(queued(state), { waiting: [], retrying: [], rows: [], rowsWaiting: 0 })
    const { cap, maxCalls, maxConcurrency, now, paused, provider, stop } = state
    assert.deepStrictEqual(
      { cap, maxCalls, maxConcurrency, now, paused, provider, stop },
      { cap: Usd.nano(1_000), maxCalls: 9, maxConcurrency: 4, now: 5, paused: null, provider: "up", stop: null }
    )
    assert.deepStrictEqual(state.throttle, Throttle.start({ ...Throttle.defaults, requestsPerMinute: 60 }, 5))
  })
})

describe("A call", () => {
  it("is granted with its hold and its number", () => {
    const [state, actions] = run(begun(), ask(1, { tokens: 5 }), ask(2))
    assert.deepStrictEqual(figures(state), { spent: 100, uncertain: 50, held: 20, calls: 5, inFlight: 2 })
    assert.deepStrictEqual(actions, [
      { _tag: "Grant", ticket: ticket(1, { tokens: 5 }), grant: 1 },
      { _tag: "Grant", ticket: ticket(2), grant: 2 }
    ])
    assert.deepStrictEqual(queued(state).waiting, [])
  })

  for (const [event, parts] of [
    [settled(), { spent: 104, uncertain: 50, calls: 5 }],
    [
      { _tag: "Uncertain", amount: Usd.nano(10) },
      { spent: 100, uncertain: 60, calls: 5 }
    ],
    [
      { _tag: "Released", amount: Usd.nano(10), sent: true },
      { spent: 100, uncertain: 50, calls: 5 }
    ],
    [
      { _tag: "Released", amount: Usd.nano(10), sent: false },
      { spent: 100, uncertain: 50, calls: 4 }
    ]
  ] as const) {
    const how = event._tag === "Released" ? `Released, ${event.sent ? "sent" : "unsent"}` : event._tag
    it(`gives its permit and its hold back: ${how}`, () => {
      const before = flying(2)
      const state = at(before, event)
      assert.deepStrictEqual(figures(state), { held: 10, inFlight: 1, ...parts })
      assert.strictEqual(state.throttle, before.throttle)
    })
  }

  it("takes no more permits than there are, and lets the next one go when it ends", () => {
    const [state, actions] = run(begun({ maxConcurrency: 2 }), ask(1), ask(2), ask(3))
    assert.deepStrictEqual(granted(actions), [1, 2])
    assert.deepStrictEqual(grants(state, settled()), [3])
    assert.deepStrictEqual(grants(state, { _tag: "Limits", maxConcurrency: 3 }), [3])
  })

  it("that is paced takes up the time of its tokens and of itself; a tick lets it catch up with 50 ms", () => {
    const paced = { ...Throttle.defaults, requestsPerMinute: 60, tokensPerMinute: 600 }
    const [asked] = transition(begun({}, paced), ask(1, { tokens: 20 }), 1_000)
    assert.strictEqual(asked.throttle.requests.nextAt, 2_000)
    assert.strictEqual(asked.throttle.tokens.nextAt, 3_000)
    const [waits, none] = transition(asked, ask(2), 1_000)
    assert.deepStrictEqual([none, wakeAt(waits)], [[], 3_000])
    assert.deepStrictEqual(transition(waits, { _tag: "Tick" }, 2_999)[1], [])
    const [ticked, actions] = transition(waits, { _tag: "Tick" }, 3_100)
    assert.deepStrictEqual(granted(actions), [2])
    assert.strictEqual(ticked.throttle.requests.nextAt, 4_050)
  })
})

describe("Time", () => {
  it("never goes back", () => {
    const [later] = transition(begun(), pause, 500)
    assert.strictEqual(later.now, 500)
    assert.strictEqual(transition(later, pause, 400)[0].now, 500)
    assert.strictEqual(transition(later, pause)[0].now, 500)
  })

  it("a cool-down holds calls back until its end, and wakes who waits, first try or not", () => {
    const cooled = at(begun(), { _tag: "Cool", until: 1_000 })
    assert.isTrue(isCooling(cooled))
    assert.isNull(wakeAt(cooled), "nobody waits")
    for (const attempt of [0, 1]) {
      const [waits, none] = run(cooled, ask(1, { attempt }))
      assert.deepStrictEqual([none, wakeAt(waits)], [[], 1_000])
      const [done, actions] = transition(waits, { _tag: "Tick" }, 1_000)
      assert.deepStrictEqual(granted(actions), [1])
      assert.isFalse(isCooling(done))
      assert.isNull(wakeAt(done))
    }
  })

  it("alone changes nothing for who waits for a permit", () => {
    assert.isNull(wakeAt(flying(5)))
    assert.deepStrictEqual(queued(flying(5)).waiting, [4])
  })

  it("a tick alone changes nothing else", () => {
    const state = flying(5)
    const ticked = at(state, { _tag: "Tick" })
    assert.deepStrictEqual([queued(ticked), figures(ticked)], [queued(state), figures(state)])
    assert.deepStrictEqual([ticked.provider, ticked.throttle], [state.provider, state.throttle])
  })
})

describe("The rows under way", () => {
  it("are those that entered, each with its waiting calls; one that waits twice counts once", () => {
    const [first, second] = [ticket(10, { seq: 1 }), ticket(11, { seq: 1, attempt: 1 })]
    const asks = [first, second].map((one): Event => ({ _tag: "Ask", ticket: one }))
    const state = at(begun(), pause, enter(1), enter(2), ...asks)
    assert.deepStrictEqual(queued(state), {
      waiting: [10],
      retrying: [11],
      rows: [
        [1, 2],
        [2, 0]
      ],
      rowsWaiting: 1
    })
    const one = at(state, { _tag: "Cancel", ticket: first })
    assert.deepStrictEqual([queued(one).rows[0], one.rowsWaiting], [[1, 1], 1])
    const none = at(one, { _tag: "Cancel", ticket: second })
    assert.deepStrictEqual([queued(none).rows[0], none.rowsWaiting], [[1, 0], 0])
    const left = at(state, leave(1))
    assert.deepStrictEqual([queued(left).rows, left.rowsWaiting], [[[2, 0]], 0])
    assert.strictEqual(at(state, leave(2)).rowsWaiting, 1)
    assert.strictEqual(at(state, leave(9)).rowsWaiting, 1)
  })

  it("a call that is granted waits no more", () => {
    const state = at(begun(), enter(1), ask(10, { seq: 1 }))
    assert.deepStrictEqual(queued(state), { waiting: [], retrying: [], rows: [[1, 0]], rowsWaiting: 0 })
  })

  it("a call of a row that did not enter is not counted", () => {
    assert.deepStrictEqual(queued(at(begun(), pause, ask(1))), { waiting: [1], retrying: [], rows: [], rowsWaiting: 0 })
  })

  it("who cancels what does not wait changes nothing", () => {
    const state = at(begun(), pause, enter(1), ask(1))
    for (const other of [ticket(2, { seq: 1 }), ticket(1, { attempt: 1 })]) {
      assert.deepStrictEqual(queued(at(state, { _tag: "Cancel", ticket: other })), queued(state))
    }
  })
})

describe("Who goes next", () => {
  const open: Event = { _tag: "Unpause" }

  it("the oldest row, and of one row the oldest call; a retry in its place", () => {
    const calls = [
      ask(5, { seq: 2 }),
      ask(9, { seq: 1 }),
      ask(8, { seq: 1, attempt: 1 }),
      ask(7, { seq: 3, attempt: 2 })
    ]
    assert.deepStrictEqual(grants(begun(), pause, ...calls, open), [8, 9, 5, 7])
  })

  it("a retry only while there is something left for retries, or alone", () => {
    const spent = { ...begun(), throttle: { ...Throttle.start(Throttle.defaults), retries: 0 } }
    const retry = ask(1, { attempt: 1 })
    assert.deepStrictEqual(grants(spent, retry), [1])
    assert.deepStrictEqual(grants(spent, pause, retry, ask(2), open), [1, 2])
    assert.deepStrictEqual(grants(spent, ask(2), retry, ask(3)), [2, 3])
    assert.deepStrictEqual(grants(spent, ask(2), retry, ask(3), settled(), settled()), [2, 3, 1])
  })

  it("while the provider is down nobody; while it is probed the one tried least, alone", () => {
    const down: Event = { _tag: "Provider", provider: "down" }
    const probing: Event = { _tag: "Provider", provider: "probing" }
    const retries = [ask(1, { attempt: 3 }), ask(2, { attempt: 1 }), ask(3, { attempt: 1 })]
    assert.deepStrictEqual(grants(begun(), down, ...retries, ask(4)), [])
    assert.deepStrictEqual(grants(begun(), down, ...retries, ask(4), ask(5), probing), [4])
    const [probed, actions] = run(begun(), down, ...retries, probing)
    assert.deepStrictEqual(granted(actions), [2])
    assert.strictEqual(allowed(probed), 1)
    assert.deepStrictEqual(grants(probed, { _tag: "Provider", provider: "up" }), [1, 3])
    assert.strictEqual(allowed(at(probed, { _tag: "Rerouted" })), 4)
    assert.deepStrictEqual(grants(probed, { _tag: "Rerouted" }), [1, 3])
    assert.deepStrictEqual(grants(begun(), probing), [])
  })

  it("the oldest one where the one that is to find out does not fit", () => {
    const down: Event = { _tag: "Provider", provider: "down" }
    const probing: Event = { _tag: "Provider", provider: "probing" }
    const dear = ask(2, { amount: Usd.nano(900) })
    const cheap = ask(1, { attempt: 1, amount: Usd.nano(850) })
    assert.deepStrictEqual(grants(begun(), down, cheap, dear, probing), [1])
    // The oldest of them all: a first try, or one that was tried before.
    const dearer = ask(4, { amount: Usd.nano(900), attempt: 1 })
    const retry = ask(3, { amount: Usd.nano(900), attempt: 2 })
    const [state, actions] = run(begun(), down, retry, dearer, probing)
    assert.strictEqual(state.stop?.kind, "budget")
    assert.deepStrictEqual(
      actions.map((action) => [action._tag, action.ticket.id]),
      [
        ["Deny", 3],
        ["Deny", 4]
      ]
    )
  })
})

describe("The stop", () => {
  const dear = (id: number, amount: number) => ask(id, { amount: Usd.nano(amount) })

  it("I10: a call fits up to the cap, and not one nano-dollar above it: spent, uncertain and held all count", () => {
    assert.deepStrictEqual(grants(begun(), dear(1, 850)), [1])
    assert.deepStrictEqual(grants(begun(), dear(1, 840), dear(2, 10)), [1, 2])
    const [waits, actions] = run(begun(), dear(1, 840), dear(2, 11))
    assert.deepStrictEqual([granted(actions), waits.stop], [[1], null])
    assert.deepStrictEqual(grants(begun({ cap: null }), dear(1, 1e9)), [1])
  })

  it("I27: for the cap says what is left and what the call may cost, and denies all who wait", () => {
    const [state, actions] = run(begun(), pause, dear(1, 851), ask(2, { attempt: 1 }), ask(3), { _tag: "Unpause" })
    const reason = {
      kind: "budget",
      message: "the cap of $0.000001 is reached: $0.00000085 left, the next call may cost $0.000000851"
    } as const
    assert.deepStrictEqual(state.stop, reason)
    assert.deepStrictEqual(actions, [
      { _tag: "Deny", ticket: ticket(1, { amount: Usd.nano(851) }), reason },
      { _tag: "Deny", ticket: ticket(3), reason },
      { _tag: "Deny", ticket: ticket(2, { attempt: 1 }), reason }
    ])
    assert.deepStrictEqual(queued(state), { waiting: [], retrying: [], rows: [], rowsWaiting: 0 })
    assert.deepStrictEqual(at(begun({ cap: Usd.nano(120) }), ask(1)).stop?.message.includes("$0.00 left"), true)
  })

  it("I27: denies all, as many as there are first tries and retries", () => {
    const waits = at(begun(), pause, ask(1), ask(2, { attempt: 1 }))
    const [state, actions] = transition(waits, { _tag: "Stop", reason: operator })
    assert.deepStrictEqual(
      actions.map(({ ticket }) => ticket.id),
      [1, 2]
    )
    assert.deepStrictEqual(queued(state), { waiting: [], retrying: [], rows: [], rowsWaiting: 0 })
  })

  it("I27: waits for what is in flight, and for a row that may come back", () => {
    const budget = (...events: ReadonlyArray<Event>) => at(begun(), ...events).stop?.kind === "budget"
    assert.isFalse(budget(ask(1), dear(2, 851)))
    assert.isTrue(budget(ask(1), dear(2, 851), settled()))
    assert.isFalse(budget(enter(1), enter(2), dear(2, 851)))
    assert.isTrue(budget(enter(1), enter(2), dear(2, 851), leave(1)))
    assert.isTrue(budget(enter(2), dear(2, 851)))
    assert.isTrue(budget(dear(2, 851)))
  })

  it("for the call limit comes after the last call", () => {
    const limited = begun({ maxCalls: 4 })
    const [state, actions] = run(limited, ask(1), ask(2), settled())
    assert.deepStrictEqual(state.stop, { kind: "max_calls", message: "the limit of 4 calls is reached" })
    assert.deepStrictEqual(
      actions.map((action) => action._tag),
      ["Grant", "Deny"]
    )
    assert.deepStrictEqual(
      grants(limited, ask(1), ask(2), { _tag: "Released", amount: Usd.nano(10), sent: false }),
      [1, 2]
    )
  })

  it("of the operator denies all who wait and all who come, aborts nothing, and the first reason stands", () => {
    const before = at(begun(), ask(1), pause, enter(2), ask(2))
    const [state, actions] = run(before, { _tag: "Stop", reason: operator })
    assert.deepStrictEqual(actions, [{ _tag: "Deny", ticket: ticket(2), reason: operator }])
    assert.deepStrictEqual([figures(state), queued(state).rows], [figures(before), [[2, 0]]])
    const [again, none] = transition(state, { _tag: "Stop", reason: { kind: "budget", message: "later" } })
    assert.deepStrictEqual([again.stop, none], [operator, []])
    const [same, denied] = transition(state, ask(3), 700)
    assert.strictEqual(same, state)
    assert.deepStrictEqual(denied, [{ _tag: "Deny", ticket: ticket(3), reason: operator }])
    assert.deepStrictEqual(grants(state, { _tag: "Unpause" }, settled()), [])
  })
})

describe("What the operator and the provider say", () => {
  it("new limits: null lifts one, what is not said stays", () => {
    const limits = ({ cap, maxCalls, maxConcurrency }: State) => ({ cap, maxCalls, maxConcurrency })
    const old = begun({ maxCalls: 9 })
    assert.deepStrictEqual(limits(at(old, { _tag: "Limits" })), {
      cap: Usd.nano(1_000),
      maxCalls: 9,
      maxConcurrency: 4
    })
    const none = { cap: null, maxCalls: null }
    assert.deepStrictEqual(limits(at(old, { _tag: "Limits", ...none })), { ...none, maxConcurrency: 4 })
    const all = { cap: Usd.nano(5), maxCalls: 6, maxConcurrency: 7 }
    assert.deepStrictEqual(limits(at(old, { _tag: "Limits", ...all })), all)
  })

  it("a pause grants nothing until it ends", () => {
    assert.deepStrictEqual(grants(begun(), pause, ask(1)), [])
    assert.deepStrictEqual(grants(begun(), pause, ask(1), { _tag: "Unpause" }), [1])
  })

  it("limits that are learned, a cool-down and another route go to the throttle, at the time of the event", () => {
    const state = begun()
    const limits = { requestsPerMinute: 30 }
    assert.deepStrictEqual(
      transition(state, { _tag: "Learned", limits }, 70)[0].throttle,
      Throttle.learn(state.throttle, limits, 70)
    )
    const cool: Event = { _tag: "Cool", until: 9_000 }
    assert.deepStrictEqual(transition(state, cool, 70)[0].throttle, Throttle.cool(state.throttle, 9_000, 70))
    const routed = transition(flying(2), { _tag: "Rerouted" }, 70)[0].throttle
    assert.deepStrictEqual(routed, Throttle.rerouted(flying(2).throttle, 70))
  })

  it("'too many' counts against the width, but not of a call alone nor of a provider that is ill", () => {
    const crowded = (grant: number): Event => settled({ grant, retry: false, end: "crowded", unused: 0 })
    const refusals = (state: State, ...events: ReadonlyArray<Event>) => at(state, ...events).throttle.refused
    assert.strictEqual(refusals(flying(2), crowded(1)), 1)
    assert.strictEqual(refusals(flying(2), crowded(1), crowded(2)), 1, "the second is alone")
    assert.strictEqual(refusals(flying(1), crowded(1)), 0)
    assert.strictEqual(refusals(flying(3), { _tag: "Provider", provider: "probing" }, crowded(1)), 0)
  })

  it("a retry takes a place among the retries, a first try does not; what it hears alone is told as it is", () => {
    const five = { ...begun(), throttle: { ...Throttle.start(Throttle.defaults), retries: 5 } }
    assert.strictEqual(flying(1, five).throttle.retries, 5)
    const retried = at(five, ask(1, { attempt: 1 }))
    assert.strictEqual(retried.throttle.retries, 4)
    const end = (how: Throttle.Signal["end"]) => settled({ grant: 1, retry: true, end: how, unused: 0 })
    assert.strictEqual(at(retried, end("answered")).throttle.retries, 5)
    assert.strictEqual(at(retried, end("crowded")).throttle, retried.throttle)
  })

  it("an answer lets the width grow if it was full", () => {
    const answered: Event = settled({ grant: 1, retry: false, end: "answered", unused: 0 })
    const grown = (state: State) => transition(state, answered, 60_000)[0].throttle.width
    const narrow = (count: number) =>
      flying(count, { ...begun(), throttle: { ...Throttle.start(Throttle.defaults), width: 2 } })
    assert.strictEqual(grown(narrow(1)), 2)
    assert.strictEqual(grown(narrow(2)), 3)
    // More than the width: it shrank while they flew.
    const shrunk = flying(3)
    assert.strictEqual(grown({ ...shrunk, throttle: { ...shrunk.throttle, width: 2 } }), 3)
  })
})
