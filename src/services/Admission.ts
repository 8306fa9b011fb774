/**
 * Admission: the run's one queue and its one semaphore, as a pure state machine. It hands out permit and hold together, oldest row first; pause, cool-down,
 * outage, throttle, call limit, cap and stop all sit here. Nothing is sent that it did not grant.
 *
 * @since 0.1.0
 */
import { HashMap, Option, Order, RedBlackTree } from "effect"
import type { StopReason } from "./Errors.ts"
import type { Limits, Pause } from "./Records.ts"
import * as Throttle from "./Throttle.ts"
import { Usd } from "./Usd.ts"

/**
 * A call that asks to be sent. `amount` is its hold, `attempt` how often its turn was tried before, `tokens` what it counts for a limit of tokens a minute.
 *
 * @since 0.1.0
 */
export interface Ticket {
  readonly id: number
  readonly seq: number
  readonly amount: Usd
  readonly attempt: number
  readonly tokens: number
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
  readonly paused: Pause | null
  readonly provider: Provider
  readonly throttle: Throttle.State
  /** The time of the last event, in milliseconds. */
  readonly now: number
  readonly stop: StopReason | null
  /** First tries, and tries of a turn that failed before. */
  readonly waiting: RedBlackTree.RedBlackTree<Ticket, null>
  readonly retrying: RedBlackTree.RedBlackTree<Ticket, null>
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
  | { readonly _tag: "Settled"; readonly amount: Usd; readonly cost: Usd; readonly signal?: Throttle.Signal }
  | { readonly _tag: "Uncertain"; readonly amount: Usd; readonly signal?: Throttle.Signal }
  | { readonly _tag: "Released"; readonly amount: Usd; readonly sent: boolean; readonly signal?: Throttle.Signal }
  | { readonly _tag: "Pause"; readonly pause: Pause }
  | { readonly _tag: "Unpause" }
  | { readonly _tag: "Cool"; readonly until: number }
  | { readonly _tag: "Rerouted" }
  | { readonly _tag: "Learned"; readonly limits: Throttle.Learned }
  | { readonly _tag: "Tick" }
  | { readonly _tag: "Provider"; readonly provider: Provider }
  /** What is left out stays. A stop for want of room ends where there is more of it. */
  | ({ readonly _tag: "Limits" } & Limits)
  | { readonly _tag: "Stop"; readonly reason: StopReason }

/**
 * What is to be done: let a ticket go, or refuse it. `grant` numbers the grants from 1.
 *
 * @since 0.1.0
 */
export type Action =
  | { readonly _tag: "Grant"; readonly ticket: Ticket; readonly grant: number }
  | { readonly _tag: "Deny"; readonly ticket: Ticket; readonly reason: StopReason }

/** What a run starts with: its limits and what its book says. @since 0.1.0 */
export type Start = Pick<
  State,
  "cap" | "maxCalls" | "maxConcurrency" | "spent" | "uncertain" | "held" | "calls" | "paused"
>

const oldestFirst = Order.mapInput(
  Order.tuple(Order.number, Order.number),
  (ticket: Ticket) => [ticket.seq, ticket.id] as const
)

/**
 * The state before the first event.
 *
 * @since 0.1.0
 */
export const start = (from: Start, throttle: Throttle.Options = Throttle.defaults, now = 0): State => ({
  // Not a spread: what is started from is a whole book, and each transition copies the state.
  cap: from.cap,
  maxCalls: from.maxCalls,
  maxConcurrency: from.maxConcurrency,
  spent: from.spent,
  uncertain: from.uncertain,
  held: from.held,
  calls: from.calls,
  inFlight: 0,
  paused: from.paused,
  provider: "up",
  throttle: Throttle.start(throttle, now),
  now,
  stop: null,
  waiting: RedBlackTree.empty(oldestFirst),
  retrying: RedBlackTree.empty(oldestFirst),
  rows: HashMap.empty(),
  rowsWaiting: 0
})

/**
 * The machine: an event in a state, at a time in milliseconds, gives the next state and what is to be done, in order. Pure.
 *
 * @since 0.1.0
 */
export const transition = (state: State, event: Event, now = state.now): readonly [State, ReadonlyArray<Action>] => {
  if (event._tag === "Ask" && state.stop !== null) {
    return [state, [{ _tag: "Deny", ticket: event.ticket, reason: state.stop }]]
  }
  // A clock that is set back does not take back what it already said.
  return advance(occur({ ...state, now: Math.max(now, state.now) }, event), event._tag === "Tick")
}

/**
 * When a `Tick` may let a waiting call go, in milliseconds; null: time alone changes nothing.
 *
 * @since 0.1.0
 */
export const wakeAt = (state: State): number | null => {
  const at = Throttle.readyAt(state.throttle)
  const waits = RedBlackTree.size(state.waiting) + RedBlackTree.size(state.retrying) > 0
  return waits && state.stop === null && at > state.now ? at : null
}

/**
 * Whether the run waits because the provider asked it to.
 *
 * @since 0.1.0
 */
export const isCooling = (state: State): boolean => state.throttle.coolUntil > state.now

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
        ...inQueue(state, event.ticket, (queue) => RedBlackTree.insert(queue, event.ticket, null)),
        ...countWaiting(state, event.ticket, 1)
      }
    case "Cancel":
      return RedBlackTree.has(queueOf(state, event.ticket), event.ticket) ? unqueue(state, event.ticket) : state
    case "Settled":
      return { ...free(state, event), spent: Usd.add(state.spent, event.cost) }
    case "Uncertain":
      return { ...free(state, event), uncertain: Usd.add(state.uncertain, event.amount) }
    case "Released":
      return { ...free(state, event), calls: state.calls - (event.sent ? 0 : 1) }
    case "Pause":
      return { ...state, paused: event.pause }
    case "Unpause":
      return { ...state, paused: null }
    case "Cool":
      return { ...state, throttle: Throttle.cool(state.throttle, event.until, state.now) }
    case "Learned":
      return { ...state, throttle: Throttle.learn(state.throttle, event.limits, state.now) }
    case "Rerouted":
      return { ...state, provider: "up", throttle: Throttle.rerouted(state.throttle, state.now) }
    case "Tick":
      return state
    case "Provider":
      return { ...state, provider: event.provider }
    case "Limits":
      return relimited(state, event)
    case "Stop":
      return stopFor(state, event.reason)
  }
}

/** The first reason stays, unless more room would lift it and not the second. */
const stopFor = (state: State, reason: StopReason): State =>
  state.stop === null || (isForRoom(state.stop) && !isForRoom(reason)) ? { ...state, stop: reason } : state
const isForRoom = ({ kind }: StopReason): boolean => kind === "budget" || kind === "max_calls"

const relimited = (state: State, limits: Limits): State => {
  const { cap = state.cap, maxCalls = state.maxCalls, maxConcurrency = state.maxConcurrency } = limits
  const isMore = (now: number | null, before: number | null) => before !== null && (now === null || now > before)
  const { stop } = state
  const goesOn =
    (stop?.kind === "budget" && isMore(cap, state.cap)) ||
    (stop?.kind === "max_calls" && isMore(maxCalls, state.maxCalls))
  return {
    ...state,
    cap,
    maxCalls,
    maxConcurrency,
    throttle: Throttle.limit(state.throttle, limits, state.now),
    stop: goesOn ? null : stop
  }
}

type Closing = Extract<Event, { readonly amount: Usd }>

const free = (state: State, { amount, signal }: Closing): State => ({
  ...state,
  inFlight: state.inFlight - 1,
  held: Usd.nano(state.held - amount),
  throttle: signal === undefined ? state.throttle : hear(state, signal)
})

const hear = (state: State, signal: Throttle.Signal): Throttle.State => {
  // Of one call alone, or of a provider that is ill, fewer at once would do no better.
  const isAlone = state.inFlight <= 1 || state.provider !== "up"
  const said = isAlone && signal.end === "crowded" ? { ...signal, end: "failed" as const } : signal
  return Throttle.heard(state.throttle, said, state.maxConcurrency, state.inFlight >= allowed(state), state.now)
}

type Queue = State["waiting"]
const queueOf = (state: State, { attempt }: Ticket): Queue => (attempt > 0 ? state.retrying : state.waiting)
const inQueue = (state: State, ticket: Ticket, change: (queue: Queue) => Queue): Partial<State> =>
  ticket.attempt > 0 ? { retrying: change(state.retrying) } : { waiting: change(state.waiting) }

const unqueue = (state: State, ticket: Ticket): State => ({
  ...state,
  ...inQueue(state, ticket, (queue) => RedBlackTree.removeFirst(queue, ticket)),
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
const advance = (before: State, ticked: boolean): readonly [State, ReadonlyArray<Action>] => {
  const actions: Array<Action> = []
  let state = before
  while (state.stop === null && mayGrant(state)) {
    const wanted = next(state)
    if (wanted === undefined) return [state, actions]
    // The oldest may fit where the one that is to find out does not.
    const ticket = shortOf(state, wanted) === null ? wanted : (oldest(state) ?? wanted)
    const short = shortOf(state, ticket)
    if (short === null) {
      state = grant(unqueue(state, ticket), ticket, ticked)
      actions.push({ _tag: "Grant", ticket, grant: state.throttle.grants })
    } else if (mayStillFit(state)) {
      return [state, actions]
    } else {
      state = { ...state, stop: short }
    }
  }
  return state.stop === null ? [state, actions] : stopAll(state, state.stop, actions)
}

/**
 * How many calls may be in flight now.
 *
 * @since 0.1.0
 */
export const allowed = (state: State): number =>
  state.provider === "probing" ? 1 : Throttle.widthOf(state.throttle, state.maxConcurrency)

const mayGrant = (state: State): boolean =>
  state.paused === null &&
  state.provider !== "down" &&
  state.inFlight < allowed(state) &&
  Throttle.readyAt(state.throttle) <= state.now

/** The oldest one that may go. While the provider is probed it is the one tried least, so that no row has to find out alone. */
const next = (state: State): Ticket | undefined => {
  if (state.provider === "probing") return leastTried(state)
  const fresh = first(state.waiting)
  const again = first(state.retrying)
  if (again === undefined || !Throttle.mayRetry(state.throttle, state.inFlight)) return fresh
  return fresh === undefined || oldestFirst(again, fresh) < 0 ? again : fresh
}

const oldest = (state: State): Ticket | undefined => {
  const [fresh, again] = [first(state.waiting), first(state.retrying)]
  return fresh === undefined || (again !== undefined && oldestFirst(again, fresh) < 0) ? again : fresh
}

const first = (queue: Queue): Ticket | undefined => Option.getOrUndefined(RedBlackTree.first(queue))?.[0]

const leastTried = (state: State): Ticket | undefined => {
  let least = first(state.waiting)
  if (least !== undefined) return least
  for (const [ticket] of state.retrying) if (least === undefined || ticket.attempt < least.attempt) least = ticket
  return least
}

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

const grant = (state: State, ticket: Ticket, waited: boolean): State => ({
  ...state,
  inFlight: state.inFlight + 1,
  held: Usd.add(state.held, ticket.amount),
  calls: state.calls + 1,
  throttle: Throttle.granted(state.throttle, { retry: ticket.attempt > 0, tokens: ticket.tokens, waited }, state.now)
})

const stopAll = (state: State, reason: StopReason, actions: Array<Action>): readonly [State, ReadonlyArray<Action>] => {
  if (RedBlackTree.size(state.waiting) + RedBlackTree.size(state.retrying) === 0) return [state, actions]
  let stopped = state
  for (const queue of [state.waiting, state.retrying]) {
    for (const [ticket] of queue) {
      actions.push({ _tag: "Deny", ticket, reason })
      stopped = unqueue(stopped, ticket)
    }
  }
  return [stopped, actions]
}
