/** A run in a file, for faults that damage it: 400 rows, ten a snapshot, against the simulated provider. */
import { Effect, Layer, Schema } from "effect"
import { Agent, Budget, Enrichment, LLM, LLMSimulated, Rows } from "../../src/index.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"

export const ROWS = 400
export const RUN = "damage"

const Row = Schema.Struct({ id: Schema.Int })
const job = Enrichment.make({
  name: "damage",
  agent: Agent.make({
    name: "damage",
    model: "simulated",
    prompt: (row: typeof Row.Type) => `row ${row.id}`,
    output: Schema.Struct({ summary: Schema.String })
  }),
  row: Row,
  id: (row) => row.id,
  source: Rows.fromIterable(Array.from({ length: ROWS }, (_, id) => ({ id }))),
  chunkSize: 10
})

/** The simulated provider, each of whose calls is told of. */
const told = (onCall: () => void) =>
  Layer.effect(
    LLM.LLM,
    Effect.map(LLM.LLM, (llm) => ({
      ...llm,
      generate: (request: LLM.ChatRequest) => Effect.zipRight(Effect.sync(onCall), llm.generate(request))
    }))
  ).pipe(Layer.provide(LLMSimulated.layer({ latencyMs: { p50: 10, p99: 20 } })))

/** Runs or resumes it. */
export const start = (
  filename: string,
  onCall: () => void,
  options: { readonly create: boolean; readonly acceptLoss?: boolean }
) =>
  Effect.scoped(
    Effect.flatMap(Enrichment.start(job, { runId: RUN, acceptLoss: options.acceptLoss }), (handle) => handle.await)
  ).pipe(
    Effect.provide([Budget.layer({ maxCostUsd: 1, maxConcurrency: 4 }), told(onCall)]),
    Effect.provide(Sqlite.layer({ filename, create: options.create }))
  )
