/** A prompt that is another one each time it is rendered. */
import { Schema } from "effect"
import { Agent, Enrichment, Rows } from "longhaul"

const Vendor = Schema.Struct({ id: Schema.Int, name: Schema.String })
let rendered = 0
const agent = Agent.make({
  name: "assessor",
  model: "simulated",
  prompt: (vendor: typeof Vendor.Type) => `Assess ${vendor.name}, question ${++rendered}.`,
  output: Schema.Struct({ risk: Schema.Literal("low", "high") })
})

export default Enrichment.make({
  name: "vendors",
  agent,
  row: Vendor,
  id: (vendor) => vendor.id,
  source: Rows.fromIterable(Array.from({ length: 80 }, (_, i) => ({ id: i + 1, name: `Vendor ${i + 1}` })))
})
