/**
 * A program written by hand, under a cap: no job, no rows, any shape of calls. Each agent inside is metered by one book.
 */
import { Console, Effect, Schema } from "effect"
import { Agent, Budget, LLMSimulated, Memory } from "longhaul"

const namer = Agent.make({
  name: "namer",
  model: "gpt-6-luna",
  prompt: (product: string) => `A name for ${product}`,
  output: Schema.Struct({ name: Schema.String })
})

const critic = Agent.make({
  name: "critic",
  model: "gpt-6-luna",
  prompt: (name: string) => `Is "${name}" a good name?`,
  output: Schema.Struct({ verdict: Schema.Literal("good", "bad") })
})

const named = (product: string) =>
  Effect.gen(function* () {
    const { parsed } = yield* namer.run(product)
    const name = parsed?.name ?? product
    // A permit covers one call and nothing around it, so programs nest to any depth within maxConcurrency.
    const opinions = yield* Effect.all([critic.run(name), critic.run(name.toUpperCase())], { concurrency: 2 })
    yield* Console.log(`${product}: ${name} (${opinions.map((one) => one.parsed?.verdict ?? "unread").join(", ")})`)
  })

const program = Effect.forEach(["a bolt", "a box", "a truck"], named, { concurrency: 8, discard: true }).pipe(
  Budget.within({ runId: "names", maxCostUsd: 0.5, maxConcurrency: 4 }),
  Effect.catchTag("RunStopped", ({ reason }) => Console.log(`stopped: ${reason.message}`)),
  Effect.provide([Memory.layer, LLMSimulated.layer()])
)

Effect.runPromise(program)
