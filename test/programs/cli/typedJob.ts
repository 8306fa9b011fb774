/** A job whose output has a field of each kind. A row named so gets no readable answer. */
import { Schema } from "effect"
import { Agent, Enrichment, LLMSimulated, Rows } from "longhaul"

const Row = Schema.Struct({ id: Schema.Int, name: Schema.String })

export default Enrichment.make({
  name: "typed",
  agent: Agent.make({
    name: "assessor",
    model: "gpt-4o-mini",
    maxOutputTokens: 100,
    prompt: (row: typeof Row.Type) => `${row.id}: ${row.name}`,
    output: Schema.Struct({
      name: Schema.String,
      risk: Schema.NullOr(Schema.Literal("low", "high")),
      score: Schema.Int.pipe(Schema.between(0, 10)),
      share: Schema.Number,
      listed: Schema.Boolean,
      tags: Schema.Array(Schema.String)
    })
  }),
  row: Row,
  id: (row) => row.id,
  version: () => "1",
  source: Rows.csv("rows.csv"),
  chunkSize: 5
})

export const simulated = LLMSimulated.layer({
  respond: ({ messages }) => {
    const [id = "", name = ""] = (messages[0]?.content ?? "").split(": ")
    if (name === "unreadable") return "I would rather not say"
    const n = Number(id)
    return {
      name: name.toUpperCase(),
      risk: n % 3 === 0 ? null : "low",
      score: n % 11,
      share: n / 8,
      listed: n % 2 === 0,
      tags: [name, 'é, "quoted"']
    }
  }
})
