/**
 * What views of the page share: the address, questions that are asked again, a run that is followed.
 *
 * @since 0.1.0
 */
import { useCallback, useEffect, useReducer, useRef, useState } from "preact/hooks"
import { ask, follow, type Line, Refusal, type Run, recall, runPath } from "./Client.ts"
import type { ServerEvent } from "./EventStream.ts"
import { heard, nothing, type RunState, recalled, viewed } from "./RunState.ts"

/** Where the page is: `#/runs/<id>/rows?end=failed`. @since 0.1.0 */
export interface Place {
  readonly path: ReadonlyArray<string>
  readonly query: URLSearchParams
}

const placeOf = (hash: string): Place => {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?")
  return {
    path: path
      .split("/")
      .filter((part) => part !== "")
      .map(decoded),
    query: new URLSearchParams(query)
  }
}

const decoded = (part: string): string => {
  try {
    return decodeURIComponent(part)
  } catch {
    return part
  }
}

/** @since 0.1.0 */
export const usePlace = (): Place => {
  const [hash, set] = useState(location.hash)
  useEffect(() => {
    const changed = () => set(location.hash)
    addEventListener("hashchange", changed)
    return () => removeEventListener("hashchange", changed)
  }, [])
  return placeOf(hash)
}

/** `#/runs/<id>…`. @since 0.1.0 */
export const runHref = (runId: string, rest = ""): string => `#/runs/${encodeURIComponent(runId)}${rest}`

/** @since 0.1.0 */
export interface Asking<A> {
  readonly data: A | undefined
  readonly refusal: Refusal | undefined
  readonly isAsking: boolean
  readonly again: () => void
}

interface Found<A> {
  readonly path: string
  readonly data?: A
  readonly refusal?: Refusal
}

/** Any throw as a refusal. @since 0.1.0 */
export const refusalFrom = (cause: unknown): Refusal =>
  cause instanceof Refusal ? cause : new Refusal(0, "unknown", cause instanceof Error ? cause.message : String(cause))

/**
 * Asks for a path, and again each `everyMs` while the page is looked at; a question that takes long is asked more seldom.
 *
 * @since 0.1.0
 */
export const useAsk = <A>(path: string, everyMs?: number): Asking<A> => {
  const [found, set] = useState<Found<A>>({ path })
  const [isAsking, setAsking] = useState(true)
  const [turn, again] = useReducer((n: number, _: undefined) => n + 1, 0)
  // A new turn asks again.
  const key = `${turn} ${path}`
  useEffect(() => {
    const abort = new AbortController()
    let timer: ReturnType<typeof setTimeout> | undefined
    const wanted = key.slice(key.indexOf(" ") + 1)
    const look = async (): Promise<void> => {
      const begun = performance.now()
      if (document.visibilityState === "visible") {
        setAsking(true)
        try {
          const data = await ask<A>(wanted, { signal: abort.signal })
          set({ path: wanted, data })
        } catch (cause) {
          if (abort.signal.aborted) return
          const refusal = refusalFrom(cause)
          set((before) => ({ ...(before.path === wanted ? before : { path: wanted }), refusal }))
        }
        setAsking(false)
      }
      if (everyMs === undefined || abort.signal.aborted) return
      timer = setTimeout(look, Math.max(everyMs, 10 * (performance.now() - begun)))
    }
    look()
    return () => {
      abort.abort()
      clearTimeout(timer)
    }
  }, [key, everyMs])
  const { data, refusal }: Found<A> = found.path === path ? found : { path }
  return { data, refusal, isAsking, again: useCallback(() => again(undefined), []) }
}

/** A run that is followed. @since 0.1.0 */
export interface Following extends RunState {
  readonly line: Line
  readonly refusal: Refusal | undefined
  /** Takes what a verb answered, and follows the run again if that had ended. */
  readonly took: (run: Run) => void
  readonly look: () => void
}

/** What was seen of a run in this tab, so that who comes back to it finds its last minutes. */
const remembered = new Map<string, RunState>()

type Change = { readonly run: Run } | { readonly event: ServerEvent } | { readonly recalled: ServerEvent }

const changed = (state: RunState, change: Change): RunState => {
  if ("recalled" in change) return recalled(state, change.recalled)
  return "run" in change ? viewed(state, change.run, Date.now()) : heard(state, change.event, Date.now())
}

/** What events do not say, such as what is held, is looked at this often. */
const LOOK_MS = 2_000
/** A run at rest may be resumed by somebody else. */
const REST_MS = 10_000

/** @since 0.1.0 */
export const useRun = (runId: string): Following => {
  const [state, change] = useReducer(changed, remembered.get(runId) ?? nothing)
  remembered.set(runId, state)
  const [line, setLine] = useState<Line>("connecting")
  const [refusal, setRefusal] = useState<Refusal>()
  const [turn, revive] = useReducer((n: number, _: undefined) => n + 1, 0)
  const now = useRef({ isOver: false, line })
  now.current = { isOver: state.isOver, line }

  const look = useCallback(async () => {
    try {
      const run = await ask<Run>(runPath(runId))
      change({ run })
      if (now.current.line === "over" && (run.phase !== "idle" || run.status === "running")) revive(undefined)
    } catch (cause) {
      const found = refusalFrom(cause)
      if (found.status === 404) setRefusal(found)
    }
  }, [runId])

  useEffect(() => {
    const abort = new AbortController()
    setRefusal(undefined)
    const follower = {
      on: (event: ServerEvent) => {
        if (event.name !== "Row") change({ event })
        // Heard before it is shown: the stream ends right after it.
        if (event.name === "Finished" || event.name === "Failed") now.current.isOver = true
        if (["Ordered", "Canary", "Stopping", "Finished", "Failed"].includes(event.name)) look()
      },
      line: setLine,
      failed: setRefusal,
      isOver: () => now.current.isOver
    }
    follow(runId, follower, abort.signal)
    return () => abort.abort()
  }, [runId, turn, look])

  useEffect(() => {
    const everyMs = line === "over" ? REST_MS : LOOK_MS
    const timer = setInterval(() => {
      if (document.visibilityState === "visible") look()
    }, everyMs)
    return () => clearInterval(timer)
  }, [line, look])

  // A page that is opened while a run waits for its canary's approval shows what it found.
  const waits = state.run?.paused?.by === "canary" && state.run.phase !== "idle" && state.canary === undefined
  // Any id of the stream does, and the first one is kept: each event has another.
  const known = useRef("")
  if (waits && known.current === "") known.current = state.lastId
  const anId = waits ? known.current : ""
  useEffect(() => {
    if (anId === "") return
    const abort = new AbortController()
    recall(runId, "Canary", anId, abort.signal).then((event) => {
      if (event !== undefined) change({ recalled: event })
    })
    return () => abort.abort()
  }, [runId, anId])

  const took = useCallback((run: Run) => {
    change({ run })
    if (now.current.line === "over" && run.phase !== "idle") revive(undefined)
  }, [])

  return { ...state, line, refusal, took, look }
}
