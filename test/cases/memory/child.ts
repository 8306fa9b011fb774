/**
 * A run in a process with a small heap: it makes its rows in a file, streamed, runs so many of them, and exports. Prints what it did as one line of JSON.
 *
 *   node --max-old-space-size=… --import tsx child.ts <directory> <rows> <bytes a row> <calls> <bytes a result>
 */
import { createWriteStream, statSync } from "node:fs"
import { join } from "node:path"
import { Readable } from "node:stream"
import { pipeline } from "node:stream/promises"
import { Effect, Schema, Stream } from "effect"
import * as Export from "../../../src/layers/Export.ts"
import * as Rows from "../../../src/layers/Rows.ts"
import * as Sqlite from "../../../src/layers/Sqlite.ts"
import * as Agent from "../../../src/programs/Agent.ts"
import * as Enrichment from "../../../src/programs/Enrichment.ts"
import * as ResultRows from "../../../src/programs/ResultRows.ts"
import * as Budget from "../../../src/services/Budget.ts"
import * as Price from "../../../src/services/Price.ts"
import { countingLlm } from "../../support/countingLlm.ts"

const [place = "", ...numbers] = process.argv.slice(2)
const [rows = 0, rowBytes = 0, maxCalls = 0, resultBytes = 0] = numbers.map(Number)
const Output = Schema.Struct({ summary: Schema.String })

function* lines() {
  for (let i = 1; i <= rows; i++) yield `{"id":"V-${i}","description":"${"x".repeat(rowBytes)}"}\n`
}

const job = Enrichment.make({
  name: "memory",
  agent: Agent.make({
    name: "assessor",
    model: "mock-mini",
    prompt: (row: { readonly id: string }) => row.id,
    output: Output,
    maxOutputTokens: 400
  }),
  row: Schema.Struct({ id: Schema.String, description: Schema.String }),
  id: (row) => row.id,
  source: Rows.jsonl(join(place, "rows.jsonl"))
})

const answer = JSON.stringify({ summary: "x".repeat(resultBytes) })
const llm = countingLlm(() => answer)

const program = Effect.gen(function* () {
  yield* Effect.promise(() => pipeline(Readable.from(lines()), createWriteStream(join(place, "rows.jsonl"))))
  const { done, pending, rows } = yield* Enrichment.run(job, { runId: "r" })
  const { columns, row } = ResultRows.layout(Output, ["id", "description"])
  const results = Stream.map(Enrichment.results("r", Schema.Unknown), row)
  const calls = llm.calls()
  const sizes: Array<number> = []
  for (const name of pending > 0 ? [] : ["out.jsonl", "out.csv", "out.csv"]) {
    yield* Export.write(join(place, name), columns, results)
    sizes.push(statSync(join(place, name)).size)
  }
  return { rows, done, pending, calls, again: llm.calls() - calls, sizes }
}).pipe(
  Effect.provide(Budget.layer({ maxCostUsd: 100, maxConcurrency: 8, maxCalls: maxCalls })),
  Effect.provide([llm.layer, Price.layer([{ model: "mock-mini", from: "1970-01-01", input: 0.15, output: 0.6 }])]),
  Effect.provide(Sqlite.layer({ filename: join(place, "run.db") }))
)

console.log(JSON.stringify(await Effect.runPromise(program)))
