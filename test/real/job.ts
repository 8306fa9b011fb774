/** A job for any CSV file: the first column is the id, the second the text. Which columns those are stands in the environment. */
import { Schema } from "effect"
import { Agent, Enrichment, LLMSimulated, Rows } from "longhaul"

const id = process.env.ID_COLUMN ?? "id"
const text = process.env.TEXT_COLUMN ?? "name"
const Row = Schema.Record({ key: Schema.String, value: Schema.String })

export default Enrichment.make({
  name: "real-input",
  agent: Agent.make({
    name: "lister",
    model: "gpt-6-luna",
    maxOutputTokens: 100,
    prompt: (row: typeof Row.Type) => `${row[id]}: ${row[text]}`,
    output: Schema.Struct({ longhaul_summary: Schema.String })
  }),
  row: Row,
  id: (row) => row[id] ?? "",
  source: Rows.csv("rows.csv")
})

export const simulated = LLMSimulated.layer({ respond: () => ({ longhaul_summary: "fine" }) })
