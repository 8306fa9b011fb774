/**
 * Admission: the run's one queue and its one semaphore, as a pure state machine. It hands out permit and hold together, oldest row first; pause, cool-down,
 * outage, call limit, cap and stop all sit here. Nothing is sent that it did not grant.
 *
 * @since 0.1.0
 */
import { HashMap, Option, Order, RedBlackTree } from "effect"
import type { StopReason } from "./Errors.ts"
import { Usd } from "./Usd.ts"

/** A call that asks to be sent. `amount` is its hold. @since 0.1.0 */
export interface Ticket {
  readonly id: number
  readonly seq: number
  readonly amount: Usd
}

/** Whether the provider answers: `probing` lets one call through to find out. @since 0.1.0 */
export type Provider = "up" | "down" | "probing"

/**
 * `cap` and `maxCalls` null: no limit. `spent + uncertain + held <= cap` in every state that is reached from one where it held.
 *
 * @since 0.1.0
 */
export interface State {
  readonly cap: Usd | null
  readonly maxCalls: number | null
  readonly maxConcurrency: number
  readonly spent: Usd
  readonly uncertain: Usd
  readonly held: Usd
  readonly calls: number
  readonly inFlight: number
  readonly paused: boolean
  readonly cooling: boolean
  readonly provider: Provider
  readonly stop: StopReason | null
  readonly waiting: RedBlackTree.RedBlackTree<Ticket, null>
  /** The rows under way, each with the number of its tickets that wait. */
  readonly rows: HashMap.HashMap<number, number>
  /** How many of them wait with nothing else to do. */
  readonly rowsWaiting: number
}

/**
 * What happens. `Enter` and `Leave` bracket a row, so that a row which backs off or decodes its answer is known to come back: while it may, the run does not
 * stop for want of room.
 *
 * @since 0.1.0
 */
export type Event =
  | { readonly _tag: "Enter"; readonly seq: number }
  | { readonly _tag: "Leave"; readonly seq: number }
  | { readonly _tag: "Ask"; readonly ticket: Ticket }
  | { readonly _tag: "Cancel"; readonly ticket: Ticket }
  | { readonly _tag: "Settled"; readonly amount: Usd; readonly cost: Usd }
  | { readonly _tag: "Uncertain"; readonly amount: Usd }
  | { readonly _tag: "Released"; readonly amount: Usd; readonly sent: boolean }
  | { readonly _tag: "Pause" }
  | { readonly _tag: "Unpause" }
  | { readonly _tag: "Cool" }
  | { readonly _tag: "Warm" }
  | { readonly _tag: "Provider"; readonly provider: Provider }
  | {
      readonly _tag: "Limits"
      readonly cap?: Usd | null
      readonly maxCalls?: number | null
      readonly maxConcurrency?: number
    }
  | { readonly _tag: "Stop"; readonly reason: StopReason }

/**
 * What is to be done: let a ticket go, or refuse it.
 *
 * @since 0.1.0
 */
export type Action =
  | { readonly _tag: "Grant"; readonly ticket: Ticket }
  | { readonly _tag: "Deny"; readonly ticket: Ticket; readonly reason: StopReason }

/** What a run starts with: its limits and what its book says. @since 0.1.0 */
export type Start = Pick<State, "cap" | "maxCalls" | "maxConcurrency" | "spent" | "uncertain" | "held" | "calls">

const oldestFirst = Order.mapInput(
  Order.tuple(Order.number, Order.number),
  (ticket: Ticket) => [ticket.seq, ticket.id] as const
)

/**
 * The state before the first event.
 *
 * @since 0.1.0
 */
export const start = (from: Start): State => ({
  // Not a spread: what is started from is a whole book, and each transition copies the state.
  cap: from.cap,
  maxCalls: from.maxCalls,
  maxConcurrency: from.maxConcurrency,
  spent: from.spent,
  uncertain: from.uncertain,
  held: from.held,
  calls: from.calls,
  inFlight: 0,
  paused: false,
  cooling: false,
  provider: "up",
  stop: null,
  waiting: RedBlackTree.empty(oldestFirst),
  rows: HashMap.empty(),
  rowsWaiting: 0
})

/**
 * The machine: an event in a state gives the next state and what is to be done, in order. Pure.
 *
 * @since 0.1.0
 */
export const transition = (state: State, event: Event): readonly [State, ReadonlyArray<Action>] => {
  if (event._tag === "Ask" && state.stop !== null) {
    return [state, [{ _tag: "Deny", ticket: event.ticket, reason: state.stop }]]
  }
  return advance(occur(state, event))
}

/** What the event itself changes. */
const occur = (state: State, event: Event): State => {
  switch (event._tag) {
    case "Enter":
      return { ...state, rows: HashMap.set(state.rows, event.seq, 0) }
    case "Leave": {
      const waited = Option.exists(HashMap.get(state.rows, event.seq), (tickets) => tickets > 0)
      return {
        ...state,
        rows: HashMap.remove(state.rows, event.seq),
        rowsWaiting: state.rowsWaiting - (waited ? 1 : 0)
      }
    }
    case "Ask":
      return {
        ...state,
        waiting: RedBlackTree.insert(state.waiting, event.ticket, null),
        ...countWaiting(state, event.ticket, 1)
      }
    case "Cancel":
      return RedBlackTree.has(state.waiting, event.ticket) ? unqueue(state, event.ticket) : state
    case "Settled":
      return { ...free(state, event.amount), spent: Usd.add(state.spent, event.cost) }
    case "Uncertain":
      return { ...free(state, event.amount), uncertain: Usd.add(state.uncertain, event.amount) }
    case "Released":
      return { ...free(state, event.amount), calls: state.calls - (event.sent ? 0 : 1) }
    case "Pause":
      return { ...state, paused: true }
    case "Unpause":
      return { ...state, paused: false }
    case "Cool":
      return { ...state, cooling: true }
    case "Warm":
      return { ...state, cooling: false }
    case "Provider":
      return { ...state, provider: event.provider }
    case "Limits":
      return {
        ...state,
        cap: event.cap === undefined ? state.cap : event.cap,
        maxCalls: event.maxCalls === undefined ? state.maxCalls : event.maxCalls,
        maxConcurrency: event.maxConcurrency ?? state.maxConcurrency
      }
    case "Stop":
      return state.stop === null ? { ...state, stop: event.reason } : state
  }
}

const free = (state: State, amount: Usd): State => ({
  ...state,
  inFlight: state.inFlight - 1,
  held: Usd.nano(state.held - amount)
})

const unqueue = (state: State, ticket: Ticket): State => ({
  ...state,
  waiting: RedBlackTree.removeFirst(state.waiting, ticket),
  ...countWaiting(state, ticket, -1)
})

/** Rows that did not enter (a program written by hand) are not counted: nothing is known of their return. */
const countWaiting = (state: State, ticket: Ticket, by: 1 | -1): Pick<State, "rows" | "rowsWaiting"> =>
  Option.match(HashMap.get(state.rows, ticket.seq), {
    onNone: () => ({ rows: state.rows, rowsWaiting: state.rowsWaiting }),
    onSome: (before) => ({
      rows: HashMap.set(state.rows, ticket.seq, before + by),
      rowsWaiting: state.rowsWaiting + (before === 0 ? 1 : before + by === 0 ? -1 : 0)
    })
  })

/** What follows: grants while they fit, or the stop. */
const advance = (before: State): readonly [State, ReadonlyArray<Action>] => {
  const actions: Array<Action> = []
  let state = before
  while (state.stop === null && mayGrant(state)) {
    const oldest = RedBlackTree.first(state.waiting)
    if (Option.isNone(oldest)) return [state, actions]
    const [ticket] = oldest.value
    const short = shortOf(state, ticket)
    if (short === null) {
      state = grant(unqueue(state, ticket), ticket)
      actions.push({ _tag: "Grant", ticket })
    } else if (mayStillFit(state)) {
      return [state, actions]
    } else {
      state = { ...state, stop: short }
    }
  }
  return state.stop === null ? [state, actions] : stopAll(state, state.stop, actions)
}

const mayGrant = (state: State): boolean =>
  !state.paused &&
  !state.cooling &&
  state.provider !== "down" &&
  state.inFlight < (state.provider === "probing" ? 1 : state.maxConcurrency)

/** A call in flight may cost less than its hold; a row that backs off may be older and smaller than the one that waits. */
const mayStillFit = (state: State): boolean => state.inFlight > 0 || HashMap.size(state.rows) > state.rowsWaiting

const shortOf = (state: State, ticket: Ticket): StopReason | null => {
  if (state.maxCalls !== null && state.calls >= state.maxCalls) {
    return { kind: "max_calls", message: `the limit of ${state.maxCalls} calls is reached` }
  }
  if (state.cap === null || state.spent + state.uncertain + state.held + ticket.amount <= state.cap) return null
  const left = Usd.nano(Math.max(0, state.cap - state.spent - state.uncertain))
  return {
    kind: "budget",
    message: `the cap of ${Usd.format(state.cap)} is reached: ${Usd.format(left)} left, the next call may cost ${Usd.format(ticket.amount)}`
  }
}

const grant = (state: State, ticket: Ticket): State => ({
  ...state,
  inFlight: state.inFlight + 1,
  held: Usd.add(state.held, ticket.amount),
  calls: state.calls + 1
})

const stopAll = (state: State, reason: StopReason, actions: Array<Action>): readonly [State, ReadonlyArray<Action>] => {
  if (RedBlackTree.size(state.waiting) === 0 && actions.length === 0) return [state, []]
  let next = state
  for (const [ticket] of state.waiting) {
    actions.push({ _tag: "Deny", ticket, reason })
    next = unqueue(next, ticket)
  }
  return [next, actions]
}
