/** A job as a user writes it: a model without a listed price, and answers that must be about their row. */
import { Schema } from "effect"
import { Agent, Enrichment, Rows } from "longhaul"

const Vendor = Schema.Struct({ id: Schema.Int, name: Schema.String })
const agent = Agent.make({
  name: "assessor",
  model: "model-of-our-own",
  prompt: (vendor: typeof Vendor.Type) => `Assess ${vendor.name}.`,
  output: Schema.Struct({ vendor: Schema.Int, risk: Schema.Literal("low", "high") })
})

export default Enrichment.make({
  name: "vendors",
  agent,
  row: Vendor,
  id: (vendor) => vendor.id,
  source: Rows.fromIterable(Array.from({ length: 80 }, (_, i) => ({ id: i + 1, name: `Vendor ${i + 1}` }))),
  outputId: ({ vendor }) => vendor
})
