/**
 * A provider that answers by a script and keeps its own books, apart from the library's: calls, how many at once, what it bills.
 */
import { Clock, Effect, Exit, Layer } from "effect"
import { LLMError } from "../../src/services/Errors.ts"
import {
  type ChatAnswer,
  type ChatRequest,
  LLM,
  type LLMShape,
  answer as makeAnswer,
  type TokenUsage
} from "../../src/services/LLM.ts"
import * as Price from "../../src/services/Price.ts"

export const model = "scripted"

/** In force from 1970 on, where a TestClock begins. 150 nano-dollars an input token, 600 an output token. */
export const prices = Price.layer([{ model, from: "1970-01-01", input: 0.15, output: 0.6 }])
const billOf = (usage: TokenUsage): number => usage.inputTokens * 150 + usage.outputTokens * 600

/** One call as the script sees it: `row` is the request's first user message, `nth` counts the calls of that row from 1, `n` all calls. */
export interface Call {
  readonly request: ChatRequest
  readonly row: string
  readonly nth: number
  readonly n: number
  /** Bills what the answer does not say. */
  readonly bill: (usage: TokenUsage) => void
}

export type Script = (call: Call) => Effect.Effect<ChatAnswer, LLMError>

export interface Counts {
  calls: number
  live: number
  most: number
  aborted: number
  failed: number
  bill: number
  readonly byRow: Map<string, number>
  /** When each call began, in milliseconds. */
  readonly begunAt: Array<number>
  readonly requests: Array<ChatRequest>
}

export interface Scripted {
  readonly counts: Counts
  readonly shape: LLMShape
  readonly layer: Layer.Layer<LLM>
}

/** `pause` is how long a call takes; the script speaks at its end. */
export const scripted = (script: Script, pause: Effect.Effect<void> = Effect.void): Scripted => {
  const counts: Counts = {
    calls: 0,
    live: 0,
    most: 0,
    aborted: 0,
    failed: 0,
    bill: 0,
    byRow: new Map(),
    begunAt: [],
    requests: []
  }
  const begin = (request: ChatRequest, now: number): Call => {
    const row = request.messages.find((message) => message.role === "user")?.content ?? ""
    const nth = (counts.byRow.get(row) ?? 0) + 1
    counts.byRow.set(row, nth)
    counts.calls++
    counts.live++
    counts.most = Math.max(counts.most, counts.live)
    counts.begunAt.push(now)
    counts.requests.push(request)
    const bill = (usage: TokenUsage): void => {
      counts.bill += billOf(usage)
    }
    return { request, row, nth, n: counts.calls, bill }
  }
  const end = (exit: Exit.Exit<ChatAnswer, LLMError>): void => {
    counts.live--
    if (Exit.isInterrupted(exit)) counts.aborted++
    else if (Exit.isFailure(exit)) counts.failed++
    else if (exit.value.usage !== undefined) counts.bill += billOf(exit.value.usage)
  }
  const shape: LLMShape = {
    provider: "scripted",
    generate: (request) =>
      Effect.uninterruptibleMask((restore) =>
        Effect.flatMap(Clock.currentTimeMillis, (now) => {
          const call = begin(request, now)
          return Effect.onExit(
            restore(
              Effect.zipRight(
                pause,
                Effect.suspend(() => script(call))
              )
            ),
            (exit) => Effect.sync(() => end(exit))
          )
        })
      )
  }
  return { counts, shape, layer: Layer.succeed(LLM, shape) }
}

export const tokens = (inputTokens: number, outputTokens: number): TokenUsage => ({
  inputTokens,
  cachedTokens: 0,
  cacheWriteTokens: 0,
  outputTokens,
  reasoningTokens: 0
})

/** A good answer to a job of `scriptedJob.ts`. */
export const good = (usage: TokenUsage = tokens(10, 5)): Effect.Effect<ChatAnswer> =>
  Effect.succeed(makeAnswer({ text: '{"summary":"fine"}', model, usage }))

/** A good answer that does not say what it cost. */
export const silent: Effect.Effect<ChatAnswer> = Effect.succeed(
  makeAnswer({ text: '{"summary":"fine"}', model, usage: undefined })
)

/** An answer that does not fit the output schema. */
export const unreadable = (usage: TokenUsage = tokens(10, 5)): Effect.Effect<ChatAnswer> =>
  Effect.succeed(makeAnswer({ text: '{"sum', model, usage }))

export const fail = (
  parts: Partial<Pick<LLMError, keyof typeof LLMError.fields>> = {}
): Effect.Effect<never, LLMError> =>
  Effect.suspend(() =>
    Effect.fail(
      new LLMError({
        reason: "overloaded",
        category: "TRANSIENT",
        scope: "row",
        charge: "none",
        message: "scripted failure",
        ...parts
      })
    )
  )

export const permanent = fail({ reason: "bad_request", category: "PERMANENT", message: "scripted bad row" })
