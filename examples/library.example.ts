/**
 * The whole of it: enrich a few vendors under a cap. `Memory.layer` forgets at the end of the process; with `Sqlite.layer` in its place the run may be killed at any
 * instant, and the same call goes on with it.
 */
import { NodeRuntime } from "@effect/platform-node"
import { Console, Effect, Schema } from "effect"
import { Agent, Budget, Enrichment, LLMSimulated, Memory, Rows, Usd } from "longhaul"

const Vendor = Schema.Struct({ id: Schema.Int, name: Schema.String, description: Schema.String })
const Enriched = Schema.Struct({ summary: Schema.String, risk: Schema.Literal("low", "medium", "high") })

const enricher = Agent.make({
  name: "enricher",
  model: "gpt-6-luna",
  promptVersion: "enricher-v1",
  system: "You assess vendors.",
  prompt: (vendor: typeof Vendor.Type) => `${vendor.name}: ${vendor.description}`,
  output: Enriched
})

const vendors = Enrichment.make({
  name: "vendor-enrichment",
  agent: enricher,
  row: Vendor,
  id: (vendor) => vendor.id,
  source: Rows.fromIterable([
    { id: 1, name: "Nordlicht Fasteners", description: "makes bolts for shipyards" },
    { id: 2, name: "Pampas Paper", description: "recycles paper into packaging" }
  ]) // or Rows.csv("vendors.csv")
})

Enrichment.run(vendors, { runId: "vendors-1" }).pipe(
  Effect.tap(({ done, spent, thisProcess }) =>
    Console.log(`${done} done, ${Usd.format(spent)} spent, ${thisProcess.calls} calls in this process`)
  ),
  Effect.provide(Budget.layer({ maxCostUsd: 1, maxConcurrency: 8 })),
  // In earnest: [Sqlite.layer({ filename: "vendors.db" }), LLMOpenAI.layer], from "longhaul/sqlite" and "longhaul/openai".
  Effect.provide([Memory.layer, LLMSimulated.layer()]),
  NodeRuntime.runMain
)
