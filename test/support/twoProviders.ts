/**
 * Runs over one provider or several that answer by scripts, in memory and in virtual time: each event with the time of it, the run begins at 0.
 */
import { assert } from "@effect/vitest"
import { Chunk, Clock, Effect, Layer, Stream } from "effect"
import * as Memory from "../../src/layers/Memory.ts"
import * as Agent from "../../src/programs/Agent.ts"
import * as Budget from "../../src/programs/Budgets.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import type { Fallback } from "../../src/programs/Routes.ts"
import * as LLM from "../../src/services/LLM.ts"
import * as Price from "../../src/services/Price.ts"
import * as Retry from "../../src/services/Retry.ts"
import { fromIterable } from "../../src/services/RowSource.ts"
import { Output, Row, rowsOf } from "./scriptedJob.ts"
import { model, type Script, scripted, tokens } from "./scriptedLlm.ts"
import { inVirtualTime } from "./virtualClock.ts"

export const runId = "r"

export const prices = Price.layer([
  { model, from: "1970-01-01", input: 0.15, output: 0.6 },
  { model: "spare", from: "1970-01-01", input: 1, output: 2 }
])

/** A good answer of this model. */
export const from = (name: string, more: Partial<LLM.ChatAnswer> = {}): Effect.Effect<LLM.ChatAnswer> =>
  Effect.succeed(LLM.answer({ text: `{"summary":"${name}"}`, model: name, usage: tokens(10, 5), ...more }))

export const named = (provider: string, script: Script, more: Partial<LLM.LLMShape> = {}) => {
  const { counts, shape } = scripted(script)
  return { counts, layer: Layer.succeed(LLM.LLM, { ...shape, provider, ...more }) }
}

export interface Asked {
  readonly fallback?: ReadonlyArray<Fallback>
  readonly retry?: Retry.RetryPolicy
  readonly system?: string
  readonly model?: string
  readonly tier?: string
}

/** Three tries a row unless `retry` says otherwise. */
export const jobOf = (rows: number, asked: Asked = {}) =>
  Enrichment.make({
    name: "two-providers",
    agent: Agent.make({
      name: "scripted",
      model: asked.model ?? model,
      system: asked.system ?? "You are a test.",
      prompt: (row: Row) => row.text,
      output: Output,
      maxOutputTokens: 100,
      ...(asked.tier === undefined ? {} : { tier: asked.tier })
    }),
    row: Row,
    id: (row) => row.id,
    source: fromIterable(rowsOf(rows)),
    retry: asked.retry ?? Retry.policy({ attempts: 3, base: "100 millis", longest: "1 second" }),
    fallback: asked.fallback ?? [],
    chunkSize: 100
  })
export type Job = ReturnType<typeof jobOf>

/** A cap of a dollar and four calls at once unless `budget` says otherwise. */
export const eventsOf = (
  job: Job,
  llm: Layer.Layer<LLM.LLM>,
  budget: Budget.BudgetOptions = {},
  priced: Layer.Layer<never> = prices
) =>
  Stream.runCollect(
    Stream.mapEffect(Enrichment.events(job, { runId }), (event) =>
      Effect.map(Clock.currentTimeMillis, (at) => ({ at, event }))
    )
  ).pipe(
    Effect.map(Chunk.toReadonlyArray),
    Effect.provide(Budget.layer({ maxCostUsd: 1, maxConcurrency: 4, ...budget })),
    Effect.provide([llm, priced])
  )
export type Events = Effect.Effect.Success<ReturnType<typeof eventsOf>>

/** The run's result, and when it was there. */
export const endOf = (events: Events) => {
  const last = events.at(-1)
  if (last?.event._tag !== "Finished") return assert.fail("the run has no end")
  return { ...last.event.result, at: last.at }
}

export const runOf = (...asked: Parameters<typeof eventsOf>) => Effect.map(eventsOf(...asked), endOf)

export const inMemory = <A, E>(effect: Effect.Effect<A, E, Layer.Layer.Success<typeof Memory.layer>>) =>
  inVirtualTime(Effect.provide(effect, Memory.layer))
