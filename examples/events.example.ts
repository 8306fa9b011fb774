/** A run's events, shown in the caller's own way: here a dot a row, and a word where something happens. */
import { Effect, Either, Schema, Stream } from "effect"
import { Agent, Budget, Enrichment, LLMSimulated, Memory, Rows, Usd } from "longhaul"

const Row = Schema.Struct({ id: Schema.Int })
const output = Schema.Struct({ risk: Schema.Literal("low", "high") })
const agent = Agent.make({
  name: "assessor",
  model: "gpt-6-luna",
  prompt: ({ id }: typeof Row.Type) => `${id}`,
  output
})
const source = Rows.fromIterable(Array.from({ length: 100 }, (_, i) => ({ id: i + 1 })))
const job = Enrichment.make({ name: "dots", agent, row: Row, id: ({ id }) => id, source, chunkSize: 50 })

const shown = (event: Enrichment.RunEvent<typeof output.Type>): string => {
  if (event._tag === "Row") return Either.match(event.outcome, { onLeft: () => "x", onRight: () => "." })
  if (event._tag === "Checkpoint") return ` [${event.rows} saved] `
  return event._tag === "Finished" ? `\n${event.result.done} done, ${Usd.format(event.result.spent)}\n` : ""
}

Stream.runForEach(Enrichment.events(job), (event) => Effect.sync(() => process.stdout.write(shown(event)))).pipe(
  Effect.provide([Budget.layer({ maxCostUsd: 1 }), Memory.layer, LLMSimulated.layer({ rateRefusal: 0.05 })]),
  Effect.runPromise
)
