/**
 * How fast a run may go, as a pure state machine within admission: the width (calls at once, below the operator's own limit), the cool-down, the pace by the minute,
 * and the budget of retries.
 *
 * The width shrinks by a quarter when "too many requests" comes in bursts or to more than an eighth of the calls, and not for a stray one: some servers say it whatever is
 * sent. A width that is new gives way sooner. It grows by one at a time; a growth that was punished makes the next one wait
 * twice as long, so that it settles just below what the provider takes. After a cool-down of more than two seconds one call goes first.
 *
 * @since 0.1.0
 */

/**
 * `adaptive: false` leaves the width at the operator's limit; cool-down and pace hold all the same. `requestsPerMinute` and `tokensPerMinute` null: learned from the
 * provider where it tells them.
 *
 * @since 0.1.0
 */
export interface Options {
  readonly adaptive: boolean
  readonly requestsPerMinute: number | null
  readonly tokensPerMinute: number | null
}

/** @since 0.1.0 */
export const defaults: Options = { adaptive: true, requestsPerMinute: null, tokensPerMinute: null }

/** `perMinute` null: no limit is known. `nextAt`: when the next one may go, in milliseconds. @since 0.1.0 */
export interface Pace {
  readonly perMinute: number | null
  readonly nextAt: number
}

/** Times in milliseconds. @since 0.1.0 */
export interface State {
  readonly options: Options
  /** Calls at once; null: as many as the operator allows. */
  readonly width: number | null
  readonly changedAt: number
  /** How long a width must do well before it grows. */
  readonly growAfter: number
  /** Whether the last change was a growth. */
  readonly grew: boolean
  readonly grants: number
  /** The grants before the last shrink: what those calls meet was the same burst. */
  readonly shrunkAt: number
  /** How many of the last calls were refused as too many, as a share. */
  readonly crowding: number
  /** Up to which grant a new width is on probation, and how many calls were refused under it so far. */
  readonly probation: number
  readonly refused: number
  /** How many were refused of those in flight when the last burst began, and the grants at that time. */
  readonly burst: number
  readonly burstAt: number
  readonly coolUntil: number
  /** One call goes first, to find out: one that is granted after the cool-down. */
  readonly probing: boolean
  readonly cooledAt: number
  /** How many retries may go. */
  readonly retries: number
  readonly requests: Pace
  readonly tokens: Pace
}

/**
 * How a granted call ended, as far as the speed is concerned. `grant`: its number. `unused`: how many of the tokens that it counted for were not used, where the
 * provider counts what is used.
 *
 * @since 0.1.0
 */
export interface Signal {
  readonly grant: number
  readonly retry: boolean
  readonly end: "answered" | "crowded" | "failed"
  readonly unused: number
}

/** What a provider says of its limits; what it does not say is undefined. @since 0.1.0 */
export interface Learned {
  readonly requestsPerMinute?: number | undefined
  readonly tokensPerMinute?: number | undefined
}

const GROW_AFTER = 5_000
const MAX_GROW_AFTER = 60_000
/** How much a late timer may catch up with, in milliseconds. Idle time is not caught up with: a limit by the minute is often enforced by the second. */
const SLACK = 50
/** After a cool-down up to this long, in milliseconds, nobody has to find out first. */
const SHORT = 2_000
/** A share of refused calls that is still no reason to send fewer at once, and over how many calls it is taken. */
const STRAY = 0.125
const MEMORY = 40
/** Retries that may go before any call was answered; a first try that is answered earns a tenth of one. */
const RETRIES = 10

/**
 * The state before the first call: nothing is saved up, so that a resumed run does not begin with a burst.
 *
 * @since 0.1.0
 */
export const start = (options: Options, now = 0): State => ({
  options,
  width: null,
  changedAt: now,
  growAfter: GROW_AFTER,
  grew: false,
  grants: 0,
  shrunkAt: 0,
  crowding: 0,
  probation: 0,
  refused: 0,
  burst: 0,
  burstAt: 0,
  coolUntil: 0,
  probing: false,
  cooledAt: 0,
  retries: RETRIES,
  requests: { perMinute: options.requestsPerMinute, nextAt: now },
  tokens: { perMinute: options.tokensPerMinute, nextAt: now }
})

/**
 * How many calls may be in flight, of the operator's `most`.
 *
 * @since 0.1.0
 */
export const widthOf = (state: State, most: number): number =>
  state.probing ? 1 : state.width === null ? most : Math.min(state.width, most)

/**
 * From when on a call may be granted; a time that has passed: now.
 *
 * @since 0.1.0
 */
export const readyAt = ({ coolUntil, requests, tokens }: State): number =>
  Math.max(coolUntil, requests.perMinute === null ? 0 : requests.nextAt, tokens.perMinute === null ? 0 : tokens.nextAt)

/**
 * Whether a retry may go: they are a tenth of the calls and what they earn back, so that an outage cannot multiply calls. With nothing in flight one may
 * always go.
 *
 * @since 0.1.0
 */
export const mayRetry = (state: State, inFlight: number): boolean => state.retries >= 1 || inFlight === 0

/**
 * A call is granted; `tokens` is what it counts for the provider's limit, `waited` whether it waited for its time to come.
 *
 * @since 0.1.0
 */
export const granted = (
  state: State,
  call: { readonly retry: boolean; readonly tokens: number; readonly waited: boolean },
  now: number
): State => {
  const from = call.waited ? now - SLACK : now
  return {
    ...state,
    grants: state.grants + 1,
    retries: call.retry ? Math.max(0, state.retries - 1) : state.retries,
    requests: paced(state.requests, 1, from),
    tokens: paced(state.tokens, call.tokens, from)
  }
}

/** Paid afterwards: a call larger than a minute's tokens goes, and the next one waits the longer. */
const paced = (pace: Pace, weight: number, from: number): Pace =>
  pace.perMinute === null ? pace : { ...pace, nextAt: Math.max(pace.nextAt, from) + (weight * 60_000) / pace.perMinute }

/**
 * A granted call ended. `full`: as many were in flight as the width allows.
 *
 * @since 0.1.0
 */
export const heard = (before: State, signal: Signal, most: number, full: boolean, now: number): State => {
  const state = refunded(before, signal.unused)
  if (signal.end === "failed") return state
  return signal.end === "crowded"
    ? shrunk(state, signal.grant, most, now)
    : grown(earned(state, signal), most, full, now)
}

const refunded = (state: State, tokens: number): State =>
  state.tokens.perMinute === null || tokens === 0
    ? state
    : {
        ...state,
        tokens: { ...state.tokens, nextAt: state.tokens.nextAt - (tokens * 60_000) / state.tokens.perMinute }
      }

const shrunk = (before: State, grant: number, most: number, now: number): State => {
  if (!before.options.adaptive || grant <= before.shrunkAt) return before
  const isSame = grant <= before.burstAt
  const state = {
    ...before,
    crowding: before.crowding + (1 - before.crowding) / MEMORY,
    burst: isSame ? before.burst + 1 : 1,
    burstAt: isSame ? before.burstAt : before.grants,
    refused: before.refused + 1
  }
  const width = state.width === null ? most : Math.min(state.width, most)
  const isMuch = state.crowding > STRAY || state.burst >= (width > 5 ? 3 : 2)
  const isTooWide = grant <= state.probation && state.refused > 1
  if (!isMuch && !isTooWide) return state
  const narrower = Math.max(1, isMuch ? Math.min(width - 1, Math.round(width * 0.75)) : width - 1)
  return {
    ...state,
    width: narrower,
    changedAt: now,
    growAfter: state.grew ? Math.min(2 * state.growAfter, MAX_GROW_AFTER) : state.growAfter,
    grew: false,
    shrunkAt: state.grants,
    // The new width is judged by what comes from now on.
    crowding: 0,
    probation: state.grants + 2 * narrower,
    refused: 0
  }
}

/** A retry that is answered gives its place back, a first try earns a tenth of one. */
const earned = (state: State, { grant, retry }: Signal): State => {
  const probing = state.probing && grant <= state.cooledAt
  if (state.retries >= RETRIES && probing === state.probing && state.crowding < 0.001) return state
  const crowding = state.crowding - state.crowding / MEMORY
  return { ...state, probing, crowding, retries: Math.min(RETRIES, state.retries + (retry ? 1 : 0.1)) }
}

const grown = (state: State, most: number, full: boolean, now: number): State => {
  if (state.width === null || !full || now - state.changedAt < state.growAfter) return state
  return {
    ...state,
    width: state.width + 1 >= most ? null : state.width + 1,
    probation: state.grants + 2 * (state.width + 1),
    refused: 0,
    changedAt: now,
    growAfter: state.grew ? Math.max(GROW_AFTER, state.growAfter / 2) : state.growAfter,
    grew: true
  }
}

/**
 * The provider asks for time until `until`; the longest wish holds, one that is over is none.
 *
 * @since 0.1.0
 */
export const cool = (state: State, until: number, now: number): State =>
  until <= state.coolUntil || until <= now
    ? state
    : { ...state, coolUntil: until, probing: state.probing || until - now > SHORT, cooledAt: state.grants }

/**
 * Another provider answers from now on: what was learned of the first one is void, and its calls in flight say nothing.
 *
 * @since 0.1.0
 */
export const rerouted = ({ grants, options, retries }: State, now: number): State => ({
  ...start(options, now),
  grants,
  retries,
  shrunkAt: grants
})

/**
 * What the provider says of its limits; the operator's own stand above it.
 *
 * @since 0.1.0
 */
export const learn = (state: State, learned: Learned, now: number): State => {
  const { options } = state
  const requests = relimited(state.requests, options.requestsPerMinute, learned.requestsPerMinute, now)
  const tokens = relimited(state.tokens, options.tokensPerMinute, learned.tokensPerMinute, now)
  return requests === state.requests && tokens === state.tokens ? state : { ...state, requests, tokens }
}

/**
 * The operator's own limits changed; what is undefined stays, and after null what the provider says next holds.
 *
 * @since 0.1.0
 */
export const limit = (
  state: State,
  { requestsPerMinute, tokensPerMinute }: { readonly [K in keyof Learned]: Learned[K] | null },
  now: number
): State => ({
  ...state,
  options: {
    ...state.options,
    requestsPerMinute: requestsPerMinute === undefined ? state.options.requestsPerMinute : requestsPerMinute,
    tokensPerMinute: tokensPerMinute === undefined ? state.options.tokensPerMinute : tokensPerMinute
  },
  requests: paceOf(state.requests, state.options.requestsPerMinute, requestsPerMinute, now),
  tokens: paceOf(state.tokens, state.options.tokensPerMinute, tokensPerMinute, now)
})

/** What the old pace made the next call wait for is void; what the provider said is not, where the operator's word stays. */
const paceOf = (pace: Pace, before: number | null, wanted: number | null | undefined, now: number): Pace =>
  wanted === undefined || wanted === before ? pace : { perMinute: wanted, nextAt: now }

const relimited = (pace: Pace, own: number | null, learned: number | undefined, now: number): Pace =>
  own !== null || learned === undefined || !(learned >= 1) || learned === pace.perMinute
    ? pace
    : { perMinute: learned, nextAt: Math.max(pace.nextAt, now) }
