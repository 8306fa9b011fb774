/** The job of the command's tests. Rows whose name says so are refused by the simulated provider or answered badly. */
import { Schema } from "effect"
import { Agent, Enrichment, LLMSimulated, Rows } from "longhaul"

const Row = Schema.Struct({ id: Schema.String, name: Schema.String })
const Enriched = Schema.Struct({ summary: Schema.String, risk: Schema.Literal("low", "high") })

export default Enrichment.make({
  name: "cli",
  agent: Agent.make({
    name: "assessor",
    model: "gpt-4o-mini",
    maxOutputTokens: 100,
    prompt: (row: typeof Row.Type) => `${row.id}: ${row.name}`,
    output: Enriched
  }),
  row: Row,
  id: (row) => row.id,
  version: () => "1",
  source: Rows.csv("rows.csv"),
  chunkSize: 10
})

export const simulated = LLMSimulated.layer({
  respond: ({ messages }) => {
    const text = messages[0]?.content ?? ""
    return text.includes("unreadable") ? "I would rather not say" : { summary: `about ${text}`, risk: "low" }
  }
})
