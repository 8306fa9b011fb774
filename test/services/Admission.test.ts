import { assert, describe, it } from "@effect/vitest"
import { HashMap } from "effect"
import * as fc from "fast-check"
import {
  type Action,
  type Event,
  isCooling,
  type Provider,
  type Start,
  type State,
  start,
  type Ticket,
  transition
} from "../../src/services/Admission.ts"
import type { StopReason } from "../../src/services/Errors.ts"
import { Usd } from "../../src/services/Usd.ts"

const ticketOf = (id: number, seq: number, amount: number): Ticket => ({
  id,
  seq,
  amount: Usd.nano(amount),
  attempt: 0,
  tokens: 0
})

const operator: StopReason = { kind: "operator", message: "asked to stop" }

/** A wish that becomes an event which may happen in the world as it is, or none. Numbers choose among what there is. */
type Wish =
  | { readonly wish: "enter" | "leave" | "cancel" | "uncertain" | "stop"; readonly pick: number }
  | { readonly wish: "ask"; readonly pick: number; readonly amount: number }
  | { readonly wish: "settle"; readonly pick: number; readonly share: number }
  | { readonly wish: "release"; readonly pick: number; readonly sent: boolean }
  | { readonly wish: "pause" | "cool"; readonly on: boolean }
  | { readonly wish: "provider"; readonly provider: Provider }
  | { readonly wish: "limits"; readonly maxConcurrency: number; readonly room: number }

const pick = fc.nat(1_000)
const wishes = fc.oneof(
  { weight: 6, arbitrary: fc.record({ wish: fc.constant("enter" as const), pick }) },
  {
    weight: 10,
    arbitrary: fc.record({ wish: fc.constant("ask" as const), pick, amount: fc.integer({ min: 1, max: 60 }) })
  },
  { weight: 4, arbitrary: fc.record({ wish: fc.constant("leave" as const), pick }) },
  { weight: 8, arbitrary: fc.record({ wish: fc.constant("settle" as const), pick, share: fc.nat(100) }) },
  { weight: 2, arbitrary: fc.record({ wish: fc.constant("uncertain" as const), pick }) },
  { weight: 2, arbitrary: fc.record({ wish: fc.constant("release" as const), pick, sent: fc.boolean() }) },
  { weight: 2, arbitrary: fc.record({ wish: fc.constant("cancel" as const), pick }) },
  { weight: 2, arbitrary: fc.record({ wish: fc.constantFrom("pause" as const, "cool" as const), on: fc.boolean() }) },
  {
    weight: 2,
    arbitrary: fc.record({
      wish: fc.constant("provider" as const),
      provider: fc.constantFrom<Provider>("up", "up", "down", "probing")
    })
  },
  {
    weight: 1,
    arbitrary: fc.record({
      wish: fc.constant("limits" as const),
      maxConcurrency: fc.integer({ min: 1, max: 5 }),
      room: fc.nat(40)
    })
  }
)
const rareStop = fc.record({ wish: fc.constant("stop" as const), pick })
const script: fc.Arbitrary<ReadonlyArray<Wish>> = fc.array(
  fc.oneof({ weight: 150, arbitrary: wishes }, { weight: 1, arbitrary: rareStop }),
  { maxLength: 120, size: "max" }
)
const limits = fc.record({
  cap: fc.option(fc.integer({ min: 0, max: 400 }), { freq: 6 }),
  maxCalls: fc.option(fc.nat(30), { freq: 1 }),
  maxConcurrency: fc.integer({ min: 1, max: 5 })
})

const startOf = (parts: {
  readonly cap: number | null
  readonly maxCalls: number | null
  readonly maxConcurrency: number
}) =>
  start({
    cap: parts.cap === null ? null : Usd.nano(parts.cap),
    maxCalls: parts.maxCalls,
    maxConcurrency: parts.maxConcurrency,
    spent: Usd.zero,
    uncertain: Usd.zero,
    held: Usd.zero,
    calls: 0,
    paused: null
  } satisfies Start)

/** What the outside knows, kept apart from the machine: who asked, who flies, which rows are under way. */
class World {
  nextId = 0
  readonly rows = new Set<number>()
  waiting: ReadonlyArray<Ticket> = []
  flying: ReadonlyArray<Ticket> = []
  readonly fate = new Map<number, ReadonlyArray<string>>()

  event(wish: Wish, state: State): Event | undefined {
    switch (wish.wish) {
      case "enter": {
        const seq = wish.pick % 12
        return this.rows.has(seq) || this.waiting.some((ticket) => ticket.seq === seq)
          ? undefined
          : { _tag: "Enter", seq }
      }
      case "leave": {
        const idle = [...this.rows].filter((seq) => this.waiting.every((ticket) => ticket.seq !== seq))
        const seq = idle[wish.pick % idle.length]
        return seq === undefined ? undefined : { _tag: "Leave", seq }
      }
      case "ask":
        return { _tag: "Ask", ticket: ticketOf(this.nextId++, wish.pick % 12, wish.amount) }
      case "cancel": {
        const ticket = this.waiting[wish.pick % this.waiting.length]
        return ticket === undefined ? undefined : { _tag: "Cancel", ticket }
      }
      case "settle": {
        const ticket = this.flying[wish.pick % this.flying.length]
        if (ticket === undefined) return undefined
        return {
          _tag: "Settled",
          amount: ticket.amount,
          cost: Usd.nano(Math.floor((ticket.amount * wish.share) / 100)),
          signal: { grant: 0, retry: false, end: "answered", unused: 0 }
        }
      }
      case "uncertain": {
        const ticket = this.flying[wish.pick % this.flying.length]
        return ticket === undefined ? undefined : { _tag: "Uncertain", amount: ticket.amount }
      }
      case "release": {
        const ticket = this.flying[wish.pick % this.flying.length]
        return ticket === undefined ? undefined : { _tag: "Released", amount: ticket.amount, sent: wish.sent }
      }
      case "pause":
        return wish.on ? { _tag: "Pause", pause: { by: "operator", message: "paused" } } : { _tag: "Unpause" }
      case "cool":
        return wish.on ? { _tag: "Cool", until: state.now + 1_000 } : { _tag: "Tick" }
      case "provider":
        return { _tag: "Provider", provider: wish.provider }
      case "limits": {
        const { maxConcurrency, room } = wish
        // A cap below what is already spent or held is no state to start from.
        const cap = state.cap === null ? {} : { cap: Usd.nano(state.spent + state.uncertain + state.held + room) }
        return { _tag: "Limits", maxConcurrency, ...cap }
      }
      case "stop":
        return { _tag: "Stop", reason: operator }
    }
  }

  /** What the event itself means, before the machine answers. */
  occur(event: Event): void {
    const record = (ticket: Ticket, what: string) =>
      this.fate.set(ticket.id, [...(this.fate.get(ticket.id) ?? []), what])
    if (event._tag === "Enter") this.rows.add(event.seq)
    if (event._tag === "Leave") this.rows.delete(event.seq)
    if (event._tag === "Ask") {
      this.waiting = [...this.waiting, event.ticket].sort((a, b) => a.seq - b.seq || a.id - b.id)
      record(event.ticket, "asked")
    }
    if (event._tag === "Cancel") {
      this.waiting = this.waiting.filter((ticket) => ticket.id !== event.ticket.id)
      record(event.ticket, "cancelled")
    }
    if (event._tag === "Settled" || event._tag === "Uncertain" || event._tag === "Released") {
      const gone = this.flying.findIndex((ticket) => ticket.amount === event.amount)
      this.flying = this.flying.filter((_, i) => i !== gone)
    }
  }

  act(action: Action): void {
    const { ticket } = action
    this.fate.set(ticket.id, [...(this.fate.get(ticket.id) ?? []), action._tag])
    this.waiting = this.waiting.filter((other) => other.id !== ticket.id)
    if (action._tag === "Grant") this.flying = [...this.flying, ticket]
  }

  /** Rows under way that wait for nothing: they back off, or read their answer. */
  parked(): number {
    return [...this.rows].filter((seq) => this.waiting.every((ticket) => ticket.seq !== seq)).length
  }
}

interface Step {
  readonly before: State
  readonly event: Event
  readonly after: State
  readonly actions: ReadonlyArray<Action>
  readonly world: World
  /** The waiting and the flying between the event and the machine's answer. */
  readonly waitingBefore: ReadonlyArray<Ticket>
  readonly flyingBefore: ReadonlyArray<Ticket>
}

/** Plays a script and shows every step. */
const play = (initial: State, wished: ReadonlyArray<Wish>, look: (step: Step) => void): World => {
  const world = new World()
  let state = Object.freeze(initial)
  for (const wish of wished) {
    const event = world.event(wish, state)
    if (event === undefined) continue
    world.occur(event)
    const [waitingBefore, flyingBefore] = [world.waiting, world.flying]
    const [after, actions] = transition(state, event, event._tag === "Tick" ? state.now + 2_000 : state.now)
    for (const action of actions) world.act(action)
    look({ before: state, event, after, actions, world, waitingBefore, flyingBefore })
    state = Object.freeze(after)
  }
  return world
}

const always = (check: (step: Step) => void, atEnd: (world: World) => void = () => {}) =>
  fc.assert(
    fc.property(limits, script, (from, wished) => atEnd(play(startOf(from), wished, check))),
    { numRuns: 600 }
  )

const grants = (actions: ReadonlyArray<Action>) => actions.filter((action) => action._tag === "Grant")
const isShut = (state: State) => state.paused || isCooling(state) || state.provider === "down"
const widthOf = (state: State) => (state.provider === "probing" || state.throttle.probing ? 1 : state.maxConcurrency)
const shown = (state: State) => ({
  ...state,
  waiting: [...state.waiting].map(([ticket]) => ticket),
  retrying: [...state.retrying].map(([ticket]) => ticket),
  rows: [...HashMap.entries(state.rows)].sort(([a], [b]) => a - b)
})
const oldestOf = (tickets: ReadonlyArray<Ticket>) => tickets[0]

describe("Admission", () => {
  it("I10: spent + uncertain + held never passes the cap, whatever happens in whatever order", () => {
    let bound = 0
    always(({ after, before, event, world }) => {
      assert.strictEqual(after.spent - before.spent, event._tag === "Settled" ? event.cost : 0)
      assert.strictEqual(after.uncertain - before.uncertain, event._tag === "Uncertain" ? event.amount : 0)
      assert.strictEqual(
        after.held,
        world.flying.reduce((sum, ticket) => sum + ticket.amount, 0)
      )
      if (after.cap === null) return
      assert.isAtMost(after.spent + after.uncertain + after.held, after.cap)
      if (after.stop?.kind === "budget") bound++
    })
    assert.isAbove(bound, 0, "no script reached a cap")
  })

  it("I7: calls in flight never pass maxConcurrency, one at a time while the provider is probed", () => {
    let probed = 0
    always(({ actions, after, world }) => {
      assert.strictEqual(after.inFlight, world.flying.length)
      if (grants(actions).length === 0) return
      assert.isAtMost(after.inFlight, widthOf(after))
      if (after.provider === "probing") probed++
    })
    assert.isAbove(probed, 0, "no script probed")
  })

  it("I10: grants are in order of (seq, id) among the waiting, so the oldest row has the money first", () => {
    always(({ actions, waitingBefore }) => {
      const order = actions.map((action) => action.ticket.id)
      const expected = waitingBefore.slice(0, order.length).map((ticket) => ticket.id)
      assert.deepStrictEqual(order, expected)
    })
  })

  it("I10: nothing is granted while paused, cooling, down or stopped", () => {
    let shut = 0
    always(({ actions, after, before, event }) => {
      if (isShut(after) || before.stop !== null) {
        if (event._tag === "Ask") shut++
        assert.lengthOf(grants(actions), 0)
      }
      if (after.stop !== null) assert.lengthOf([...after.waiting], 0)
    })
    assert.isAbove(shut, 0, "nothing was asked while it was shut")
  })

  it("I27: nothing waits for ever: with nothing in flight and no row parked, the oldest is granted or the run stops for the budget", () => {
    let stops = 0
    always(({ after, before, world }) => {
      const oldest = oldestOf(world.waiting)
      if (after.stop === null && oldest !== undefined && !isShut(after) && after.inFlight < widthOf(after)) {
        const need = after.spent + after.uncertain + after.held + oldest.amount
        const short =
          (after.cap !== null && need > after.cap) || (after.maxCalls !== null && after.calls >= after.maxCalls)
        assert.isTrue(short, "the oldest fits and still waits")
        assert.isTrue(after.inFlight > 0 || world.parked() > 0, "nothing is left that could free room")
      }
      if (before.stop === null && after.stop?.kind === "budget") stops++
    })
    assert.isAbove(stops, 0, "no script ran out of money")
  })

  it("I27: a stop for the budget means that the oldest does not fit under the cap with nothing in flight and no row to come back", () => {
    let stops = 0
    always(({ actions, after, before, waitingBefore, flyingBefore }) => {
      if (before.stop !== null || after.stop?.kind !== "budget") return
      stops++
      const oldest = oldestOf(waitingBefore)
      assert.isDefined(oldest)
      assert.isNotNull(after.cap)
      assert.isBelow((after.cap ?? 0) - (after.spent + after.uncertain), oldest?.amount ?? 0)
      assert.strictEqual(after.held, 0)
      assert.lengthOf(flyingBefore, 0)
      assert.deepStrictEqual(
        actions.map((action) => action._tag),
        waitingBefore.map(() => "Deny" as const)
      )
    })
    assert.isAbove(stops, 0, "no script ran out of money")
  })

  it("I10: every ticket is granted, denied, cancelled or still waiting: none is lost, none is answered twice", () => {
    let state: State | undefined
    always(
      ({ after }) => {
        state = after
      },
      (world) => {
        const waiting = new Set(state === undefined ? [] : [...state.waiting].map(([ticket]) => ticket.id))
        for (const [id, fate] of world.fate) {
          assert.strictEqual(fate[0], "asked")
          assert.lengthOf(fate, waiting.has(id) ? 1 : 2, `ticket ${id}: ${fate.join(", ")}`)
        }
        assert.strictEqual(waiting.size, world.waiting.length)
        state = undefined
      }
    )
  })

  it("I10: the machine is pure: the input state is unchanged, and the same event in it gives the same answer again", () => {
    fc.assert(
      fc.property(limits, script, (from, wished) => {
        let kept = shown(startOf(from))
        play(startOf(from), wished, ({ actions, after, before, event }) => {
          assert.deepStrictEqual(shown(before), kept)
          const [again, sameActions] = transition(before, event, after.now)
          assert.deepStrictEqual(shown(again), shown(after))
          assert.deepStrictEqual(sameActions, actions)
          kept = shown(after)
        })
      }),
      { numRuns: 500 }
    )
  })

  it("I27: a row that backs off (entered, without a waiting ticket) holds the stop back until it leaves", () => {
    const reached = (events: ReadonlyArray<Event>) =>
      events.reduce(
        (state, event) => transition(state, event)[0],
        startOf({ cap: 100, maxCalls: null, maxConcurrency: 4 })
      )
    const tooDear: Event = { _tag: "Ask", ticket: ticketOf(1, 1, 101) }
    const enter = (seq: number): Event => ({ _tag: "Enter", seq })
    assert.isNull(reached([enter(0), enter(1), tooDear]).stop)
    assert.strictEqual(reached([enter(0), enter(1), tooDear, { _tag: "Leave", seq: 0 }]).stop?.kind, "budget")
    assert.strictEqual(reached([enter(1), tooDear]).stop?.kind, "budget")
    assert.strictEqual(reached([tooDear]).stop?.kind, "budget")
    // The row that comes back is older and fits: it goes first, and only then there is nothing left to wait for.
    const back: Event = { _tag: "Ask", ticket: ticketOf(2, 0, 100) }
    const flying = reached([enter(0), enter(1), tooDear, back])
    assert.isNull(flying.stop)
    assert.strictEqual(flying.held, 100)
  })

  it("I27: a call limit stops the run as the cap does: nothing is aborted, the rest is denied", () => {
    const initial = startOf({ cap: null, maxCalls: 1, maxConcurrency: 4 })
    const ask = (id: number): Event => ({ _tag: "Ask", ticket: ticketOf(id, id, 10) })
    const [one] = transition(initial, ask(1))
    const [two, none] = transition(one, ask(2))
    assert.lengthOf(none, 0)
    assert.isNull(two.stop)
    const [three, denied] = transition(two, { _tag: "Settled", amount: Usd.nano(10), cost: Usd.nano(4) })
    assert.strictEqual(three.stop?.kind, "max_calls")
    assert.deepStrictEqual(
      denied.map((action) => action._tag),
      ["Deny"]
    )
  })
})
