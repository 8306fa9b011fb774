/** T12: a row's prompt works for three seconds without a pause. The stall is reported with its length, and nothing is lost by it. Control: without it none is reported. */
import { Effect, Schema, Stream } from "effect"
import { Agent, Budget, Enrichment, LLMSimulated, Memory, Rows } from "../../src/index.ts"
import { type Fault, makeChecks } from "./fault.ts"

const STALL_MS = 3_000
const ROWS = 40
const Row = Schema.Struct({ id: Schema.Int })

const block = (): void => {
  const end = performance.now() + STALL_MS
  while (performance.now() < end);
}

const jobOf = (stalls: boolean) =>
  Enrichment.make({
    name: "stall",
    agent: Agent.make({
      name: "stall",
      model: "simulated",
      prompt: (row: typeof Row.Type) => {
        if (stalls && row.id === 17) block()
        return `row ${row.id}`
      },
      output: Schema.Struct({ summary: Schema.String })
    }),
    row: Row,
    id: (row) => row.id,
    source: Rows.fromIterable(Array.from({ length: ROWS }, (_, id) => ({ id }))),
    chunkSize: 5
  })

/** The run's end and the stalls that it told of. */
const ran = (stalls: boolean) =>
  Stream.runFold(
    Enrichment.events(jobOf(stalls), { runId: "stall" }),
    { done: 0, spent: 0, uncertain: 0, held: 0, told: [] as ReadonlyArray<number> },
    (so, event) => {
      if (event._tag === "Stalled") return { ...so, told: [...so.told, event.ms] }
      if (event._tag !== "Finished") return so
      const { done, held, spent, uncertain } = event.result
      return { ...so, done, held, spent, uncertain }
    }
  ).pipe(
    Effect.provide([
      Budget.layer({ maxCostUsd: 1, maxConcurrency: 8 }),
      LLMSimulated.layer({ latencyMs: { p50: 100, p99: 200 } })
    ]),
    Effect.provide(Memory.layer)
  )

export const stall: Fault = {
  id: "T12",
  name: "loop stall",
  run: Effect.gen(function* () {
    const { broken, check } = makeChecks()
    const blocked = yield* ran(true)
    const [ms = 0] = blocked.told
    check(`${blocked.told.length} stalls were told, 1 wanted`, blocked.told.length === 1)
    check(`a stall of ${ms} ms was told, about ${STALL_MS} wanted`, ms > STALL_MS * 0.8 && ms < STALL_MS * 2)
    check(`${blocked.done} of ${ROWS} rows done`, blocked.done === ROWS)
    check("nothing is held or uncertain", blocked.held === 0 && blocked.uncertain === 0)
    const smooth = yield* ran(false)
    check(`control: ${smooth.told.length} stalls told`, smooth.told.length === 0)
    check("both runs cost the same", smooth.spent === blocked.spent)
    return {
      figure: `${STALL_MS} ms blocked, ${ms} ms told, ${blocked.done} rows done`,
      control: `${smooth.told.length} stalls told`,
      broken
    }
  })
}
