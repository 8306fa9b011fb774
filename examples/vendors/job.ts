/**
 * Enriches the vendors of a CSV file that changed in the last seven days with a summary and a risk category.
 *
 *   longhaul run examples/vendors/job.ts --source vendors.csv --budget 50 --concurrency 8
 */
import { Schema } from "effect"
import { Agent, Enrichment, type LLM, LLMSimulated, Rows } from "longhaul"

const Vendor = Schema.Struct({
  id: Schema.Int,
  name: Schema.String,
  description: Schema.String,
  updatedAt: Schema.Date
})
type Vendor = typeof Vendor.Type

const Enriched = Schema.Struct({ summary: Schema.String, risk: Schema.Literal("low", "medium", "high") })

const enricher = Agent.make({
  name: "enricher",
  model: "gpt-6-luna",
  promptVersion: "enricher-v1",
  maxRepairs: 1,
  maxOutputTokens: 400,
  system: "You assess vendors for a purchasing department.",
  prompt: (vendor: Vendor) => `${vendor.name}: ${vendor.description}`,
  output: Enriched
})

const week = 7 * 24 * 3_600_000

export default Enrichment.make({
  name: "vendor-enrichment",
  agent: enricher,
  row: Vendor,
  id: (vendor) => vendor.id,
  version: (vendor) => vendor.updatedAt.toISOString(),
  where: (vendor, now) => now.getTime() - vendor.updatedAt.getTime() <= week,
  source: Rows.csv("vendors.csv"),
  chunkSize: 100
})

/** A trial's provider: the first sentence is the summary, the words decide the risk. */
const assess = ({ messages }: LLM.ChatRequest): typeof Enriched.Type => {
  const text = messages[1]?.content ?? ""
  const summary = text.slice(text.indexOf(": ") + 2).split(/(?<=\.)\s/)[0] ?? ""
  const risk = /investigat|lawsuit|breach|insolven/i.test(text)
    ? "high"
    : /new|few|young/i.test(text)
      ? "medium"
      : "low"
  return { summary, risk }
}
export const simulated = LLMSimulated.layer({
  respond: assess,
  latencyMs: { p50: 30, p99: 90 },
  rate429: 0.002,
  rate5xx: 0.001,
  rateBadJson: 0.002
})
