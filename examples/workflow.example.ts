/**
 * A graph of steps: one that loads, two that run together, one that asks a person and is answered later.
 */
import { Console, Effect, Option } from "effect"
import { Workflow } from "longhaul"

const graph = Workflow.make({ name: "weekly-report" })
  .fn("load", () => Effect.succeed([3, 1, 2]))
  .fn("total", ({ load }) => Effect.succeed(load.reduce((sum, n) => sum + n, 0)), { after: "load" })
  .fn("largest", ({ load }) => Effect.succeed(Math.max(...load)), { after: "load" })
  .fn(
    "approve",
    ({ total }): Effect.Effect<string | Workflow.Suspend> =>
      Effect.succeed(Workflow.suspend({ reason: `is a total of ${total} right?`, pending: [] })),
    { after: ["total", "largest"] }
  )

const program = Effect.gen(function* () {
  const waiting = yield* graph.run()
  const question = Option.match(waiting.suspended, { onNone: () => "nothing", onSome: ({ reason }) => reason })
  yield* Console.log(`${waiting.stopReason}: ${question}`)
  // Whoever answers gives the node's output; what is done is not run again.
  const done = yield* graph.resume({ ...waiting.outputs, approve: "yes" })
  yield* Console.log(`${done.stopReason}: ${JSON.stringify(done.outputs)}`)
})

Effect.runPromise(program)
