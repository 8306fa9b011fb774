/** A provider that answers by a function and counts what it was asked. Each answer is billed 820 tokens in and 110 out. */
import { Effect, Layer } from "effect"
import { LLMError } from "../../src/services/Errors.ts"
import { answer, type ChatRequest, LLM } from "../../src/services/LLM.ts"

export const bill = { inputTokens: 820, cachedTokens: 0, cacheWriteTokens: 0, outputTokens: 110, reasoningTokens: 0 }

export interface CountingLlm {
  readonly layer: Layer.Layer<LLM>
  readonly calls: () => number
  /** How often each prompt was asked, repairs included. */
  readonly asked: ReadonlyMap<string, number>
}

export const promptOf = (request: ChatRequest): string =>
  request.messages.find((message) => message.role === "user")?.content ?? ""

/** True of a repair turn: the model is shown its own answer. */
export const isRepair = (request: ChatRequest): boolean => request.messages.some(({ role }) => role === "assistant")

/** `wait` goes before each answer: by default it comes at once. */
export const countingLlm = (
  respond: (request: ChatRequest) => string | LLMError,
  wait: (request: ChatRequest) => Effect.Effect<void> = () => Effect.void
): CountingLlm => {
  const asked = new Map<string, number>()
  let calls = 0
  const layer = Layer.sync(LLM, () => ({
    provider: "counting",
    generate: (request: ChatRequest) =>
      Effect.flatMap(wait(request), () => {
        calls++
        asked.set(promptOf(request), (asked.get(promptOf(request)) ?? 0) + 1)
        const text = respond(request)
        return text instanceof LLMError
          ? Effect.fail(text)
          : Effect.succeed(answer({ text, model: request.model, usage: bill }))
      })
  }))
  return { layer, calls: () => calls, asked }
}

export const refuseForGood = new LLMError({
  reason: "bad_request",
  category: "PERMANENT",
  scope: "row",
  charge: "none",
  message: "this row cannot be asked"
})

/** A call of which nobody knows what it cost. */
export const brokenOff = new LLMError({
  reason: "connection",
  category: "TRANSIENT",
  scope: "row",
  charge: "uncertain",
  message: "the connection broke"
})

/** Counts what another provider is asked. */
export const counted = (provider: Layer.Layer<LLM>): Pick<CountingLlm, "layer" | "calls"> => {
  let calls = 0
  const layer = Layer.effect(
    LLM,
    Effect.map(LLM, (llm) => ({
      provider: llm.provider,
      generate: (request: ChatRequest) =>
        Effect.suspend(() => {
          calls++
          return llm.generate(request)
        })
    }))
  ).pipe(Layer.provide(provider))
  return { layer, calls: () => calls }
}
