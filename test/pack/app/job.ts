import { Schema } from "effect"
import { Agent, Enrichment, Rows } from "longhaul"

const Vendor = Schema.Struct({ id: Schema.NumberFromString, name: Schema.String })

const assessor = Agent.make({
  name: "assessor",
  model: "gpt-6-luna",
  prompt: (vendor: typeof Vendor.Type) => `Assess ${vendor.name}.`,
  output: Schema.Struct({ summary: Schema.String, risk: Schema.Literal("low", "medium", "high") })
})

export default Enrichment.make({
  name: "vendors",
  agent: assessor,
  row: Vendor,
  id: (vendor) => vendor.id,
  source: Rows.csv("rows.csv")
})
