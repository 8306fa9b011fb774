/** The job of the cases that are about the command. A row called `throws` cannot even be asked. */
import { Schema } from "effect"
import { Agent, Enrichment, Retry, Rows } from "longhaul"

const Row = Schema.Struct({ id: Schema.String, name: Schema.String })
const Enriched = Schema.Struct({
  vendor_id: Schema.String,
  summary: Schema.String,
  risk: Schema.Literal("low", "medium", "high")
})

export default Enrichment.make({
  name: "cases",
  agent: Agent.make({
    name: "assessor",
    model: "gpt-4o-mini",
    maxOutputTokens: 400,
    // Long enough that the bill of 820 tokens stays below its hold.
    system: "You assess vendors. ".repeat(50),
    prompt: (row: typeof Row.Type) => {
      if (row.name === "throws") throw new Error("this row has no prompt")
      return `${row.id}: ${row.name}`
    },
    output: Enriched
  }),
  row: Row,
  id: (row) => row.id,
  source: Rows.csv("rows.csv"),
  retry: Retry.policy({ attempts: 3, base: "10 millis", longest: "20 millis" })
})
