/**
 * How the page asks the server: with the token, and with errors as the interface says them.
 *
 * @since 0.1.0
 */
import type * as Api from "../Api.ts"
import type * as ApiViews from "../ApiViews.ts"
import { parser, type ServerEvent } from "./EventStream.ts"

/** @since 0.1.0 */
export type Run = ApiViews.Run
/** @since 0.1.0 */
export type Row = ApiViews.Row
/** @since 0.1.0 */
export type Rows = typeof ApiViews.Rows.Type
/** @since 0.1.0 */
export type RowCall = typeof ApiViews.RowCall.Type
/** @since 0.1.0 */
export type FailureGroup = typeof ApiViews.FailureGroup.Type
/** @since 0.1.0 */
export type Receipt = typeof ApiViews.Receipt.Type
/** @since 0.1.0 */
export type Checkpoint = typeof ApiViews.Checkpoint.Type
/** @since 0.1.0 */
export type Jobs = typeof ApiViews.Jobs.Type
/** @since 0.1.0 */
export type Begun = typeof ApiViews.Begun.Type
/** @since 0.1.0 */
export type Requeued = typeof ApiViews.Requeued.Type
/** @since 0.1.0 */
export type Enrich = Api.Enrich

/** What the server refused, in its words; `status` 0: it was not reached. @since 0.1.0 */
export class Refusal extends Error {
  readonly status: number
  readonly code: string
  constructor(status: number, code: string, message: string) {
    super(message)
    this.status = status
    this.code = code
  }
}

const KEY = "longhaul-token"
let token = ""
const listeners = new Set<() => void>()

/** The token of this tab; empty: none is known, or the server does not know it. @since 0.1.0 */
export const currentToken = (): string => token

/** @since 0.1.0 */
export const setToken = (next: string): void => {
  token = next
  if (next === "") sessionStorage.removeItem(KEY)
  else sessionStorage.setItem(KEY, next)
  for (const listener of listeners) listener()
}

/** Calls back when the token changes; gives what ends that. @since 0.1.0 */
export const onToken = (listener: () => void): (() => void) => {
  listeners.add(listener)
  return () => void listeners.delete(listener)
}

/** Takes the token from the address, `#token=…`, and out of it; else this tab's. @since 0.1.0 */
export const readToken = (): void => {
  const given = /^#token=(.+)$/.exec(location.hash)?.[1]
  if (given !== undefined) {
    history.replaceState(null, "", `${location.pathname}#/`)
    setToken(decodeURIComponent(given))
  } else token = sessionStorage.getItem(KEY) ?? ""
}

interface Asked {
  readonly method?: string
  readonly body?: object
  readonly headers?: Readonly<Record<string, string>>
  readonly signal?: AbortSignal
}

const send = async (path: string, { body, headers, method = "GET", signal }: Asked): Promise<Response> => {
  const used = token
  const answer = await fetch(path, {
    method,
    headers: {
      authorization: `Bearer ${used}`,
      ...(body === undefined ? {} : { "content-type": "application/json" }),
      ...headers
    },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    ...(signal === undefined ? {} : { signal })
  }).catch((cause: unknown) => {
    if (signal?.aborted === true) throw cause
    throw new Refusal(0, "unreachable", "the server does not answer")
  })
  if (answer.ok) return answer
  if (answer.status === 401 && token === used) setToken("")
  throw await refusalOf(answer)
}

const refusalOf = async (answer: Response): Promise<Refusal> => {
  const said: { code?: unknown; message?: unknown } = await answer.json().catch(() => ({}))
  const message = typeof said.message === "string" ? said.message : `the server answered ${answer.status}`
  return new Refusal(answer.status, typeof said.code === "string" ? said.code : "unknown", message)
}

/** Asks, and gives the answer's JSON. Throws `Refusal`. @since 0.1.0 */
export const ask = async <A>(path: string, asked: Asked = {}): Promise<A> => {
  const answer: A = await (await send(path, asked)).json()
  return answer
}

/** Fetches a file and hands it to the browser as a download. Throws `Refusal`. @since 0.1.0 */
export const download = async (path: string, name: string): Promise<void> => {
  const blob = await (await send(path, {})).blob()
  const link = document.createElement("a")
  link.href = URL.createObjectURL(blob)
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000)
}

/** `/runs/<id>…`. @since 0.1.0 */
export const runPath = (runId: string, rest = ""): string => `/runs/${encodeURIComponent(runId)}${rest}`

/** Random, for a form; `randomUUID` is not there on a page without TLS. @since 0.1.0 */
export const newKey = (): string =>
  [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("")

/** Whether the stream stands: `waiting` for another try, or `over` because the run is. @since 0.1.0 */
export type Line = "connecting" | "live" | "waiting" | "over"

/** @since 0.1.0 */
export interface Follower {
  readonly on: (event: ServerEvent) => void
  readonly line: (line: Line) => void
  readonly failed: (refusal: Refusal) => void
  /** Whether the run has ended by what was heard: a stream that ends then is not asked for again. */
  readonly isOver: () => boolean
}

/** Without a sign of life for this long a stream is given up, in milliseconds: the server gives one each ten seconds. */
const SILENT_MS = 25_000
const LONGEST_WAIT_MS = 15_000

/**
 * Follows the events of a run, over losses of the line, until the run is over or the signal aborts.
 *
 * @since 0.1.0
 */
export const follow = async (runId: string, follower: Follower, signal: AbortSignal): Promise<void> => {
  let last = ""
  for (let tries = 0; !signal.aborted; tries++) {
    if (tries > 0) {
      follower.line("waiting")
      await pause(Math.min(LONGEST_WAIT_MS, 500 * 2 ** tries) * (0.75 + Math.random() / 2), signal)
    }
    try {
      follower.line("connecting")
      await listen(runId, last, signal, (event) => {
        tries = 0
        if (event.id !== "") last = event.id
        follower.line("live")
        follower.on(event)
      })
      if (follower.isOver()) return follower.line("over")
    } catch (cause) {
      if (signal.aborted) return
      if (cause instanceof Refusal && cause.status >= 400 && cause.status < 500 && cause.status !== 429) {
        return follower.failed(cause)
      }
    }
  }
}

const RECALL_MS = 5_000

/** An event that happened before the one with this id, if the server still has it. @since 0.1.0 */
export const recall = async (
  runId: string,
  name: string,
  id: string,
  signal: AbortSignal
): Promise<ServerEvent | undefined> => {
  const own = new AbortController()
  const found: Array<ServerEvent> = []
  const until = AbortSignal.any([signal, own.signal, AbortSignal.timeout(RECALL_MS)])
  // An id ends in the event's number.
  await listen(runId, id.replace(/\d+$/, "0"), until, (event) => {
    if (event.name === name) found.push(event)
    if (event.name === name || event.name === "gap" || event.name === "snapshot") own.abort()
  }).catch(() => undefined)
  return found[0]
}

const listen = async (runId: string, last: string, outer: AbortSignal, on: (event: ServerEvent) => void) => {
  const silence = new AbortController()
  const signal = AbortSignal.any([outer, silence.signal])
  let timer = setTimeout(() => silence.abort(), SILENT_MS)
  try {
    const answer = await send(runPath(runId, "/events"), {
      signal,
      headers: last === "" ? {} : { "last-event-id": last }
    })
    const reader = answer.body?.getReader()
    const decoder = new TextDecoder()
    const parse = parser()
    for (;;) {
      const piece = await reader?.read()
      if (piece === undefined || piece.done) return
      clearTimeout(timer)
      timer = setTimeout(() => silence.abort(), SILENT_MS)
      for (const event of parse(decoder.decode(piece.value, { stream: true }))) on(event)
    }
  } finally {
    clearTimeout(timer)
    silence.abort()
  }
}

const pause = (ms: number, signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms)
    signal.addEventListener("abort", () => {
      clearTimeout(timer)
      resolve()
    })
  })
