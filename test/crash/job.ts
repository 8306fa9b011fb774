/** The job of the crash harness: its prompt carries the row's id, so the provider's bill can be told apart by row. */
import { Schema } from "effect"
import { Agent, Enrichment, Retry, Rows } from "longhaul"

const Row = Schema.Struct({ id: Schema.Int, name: Schema.String })

export default Enrichment.make({
  name: "crash",
  agent: Agent.make({
    name: "echo",
    model: "gpt-4o-mini",
    // Just what an answer needs: a hold is then about twice a row's cost, and a run lives through several kills.
    maxOutputTokens: 70,
    prompt: (row: typeof Row.Type) => `${row.id} ${row.name}`,
    output: Schema.Struct({ id: Schema.Int, summary: Schema.String })
  }),
  row: Row,
  id: (row) => row.id,
  version: () => "1",
  source: Rows.csv("rows.csv"),
  chunkSize: 10,
  retry: Retry.policy({ attempts: 8, base: "20 millis", longest: "200 millis" })
})
