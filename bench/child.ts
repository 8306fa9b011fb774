/**
 * One measurement in a process of its own: `node child.mjs '<Measure as JSON>' <directory>` prints what the work took.
 */
import { existsSync } from "node:fs"
import { join } from "node:path"
import { Effect, Layer, Schema, Stream } from "effect"
import { Agent, Budget, Enrichment, LLM, Memory, Rows } from "longhaul"
import * as Sqlite from "longhaul/sqlite"
import * as Hand from "./hand.ts"
import {
  after,
  atOnce,
  model,
  type Provider,
  promptOf,
  stopwatch,
  system,
  type Took,
  tail,
  type Vendor,
  vendorOf
} from "./work.ts"

const Measure = Schema.Struct({
  loop: Schema.Literal("memory", "sqlite", "naive", "protocol", "floor"),
  rows: Schema.Int,
  concurrency: Schema.Int,
  synchronous: Schema.Literal("NORMAL", "FULL"),
  /** Log-normal latencies by median and 99th percentile; without it the provider answers at once. */
  latency: Schema.optional(Schema.Struct({ p50: Schema.Number, p99: Schema.Number }))
})
/** What is measured. */
export type Measure = typeof Measure.Type

const llmOf = (provider: Provider) =>
  Layer.succeed(LLM.LLM, {
    provider: "bench",
    generate: ({ messages, model }) =>
      Effect.async((resume) => {
        provider(messages.at(-1)?.content ?? "", (answer) => resume(Effect.succeed(LLM.answer({ ...answer, model }))))
      })
  })

const jobOf = (rows: number) =>
  Enrichment.make({
    name: "vendors",
    row: Schema.Struct({ id: Schema.Int, name: Schema.String, description: Schema.String }),
    id: (vendor) => vendor.id,
    version: () => "1",
    source: Rows.fromIterable(Array.from({ length: rows }, (_, seq) => vendorOf(seq))),
    agent: Agent.make({
      name: "enricher",
      model,
      system,
      maxOutputTokens: 400,
      prompt: (vendor: Vendor) => promptOf(vendor),
      output: Schema.Struct({ summary: Schema.String, risk: Schema.Literal("low", "medium", "high") })
    })
  })

/** From the event `Started`, that is without the load of the manifest, to the result. */
const ours = (measure: Measure, provider: Provider, file: string) =>
  Effect.gen(function* () {
    const run = yield* Enrichment.start(jobOf(measure.rows), { runId: "r" })
    yield* Stream.runHead(run.events)
    const stop = stopwatch()
    const result = yield* run.await
    const took = stop()
    if (result.done !== measure.rows) return yield* Effect.dieMessage(`${result.done} of ${measure.rows} rows are done`)
    return took
  }).pipe(
    Effect.scoped,
    Effect.provide(Budget.layer({ maxCostUsd: 50, maxConcurrency: measure.concurrency })),
    Effect.provide([measure.loop === "memory" ? Memory.layer : Sqlite.layer({ filename: file }), llmOf(provider)])
  )

/** Our tables, for the loops written by hand. */
const tables = (file: string) => Effect.scoped(Layer.build(Sqlite.layer({ filename: file })))

const byHand = async (measure: Measure, provider: Provider, file: string) => {
  await Effect.runPromise(tables(file))
  Hand.prepare(file, measure.rows)
  return measure.loop === "naive"
    ? Hand.naive({ ...measure, file, provider })
    : Hand.protocol({ ...measure, file, provider })
}

const measured = (measure: Measure, file: string): Promise<Took> => {
  if (existsSync(file)) throw new Error(`${file} is there already`)
  const { latency } = measure
  const provider = latency === undefined ? atOnce : after(tail(measure.rows, latency.p50, latency.p99))
  switch (measure.loop) {
    case "memory":
    case "sqlite":
      return Effect.runPromise(ours(measure, provider, file))
    case "naive":
    case "protocol":
      return byHand(measure, provider, file)
    case "floor":
      return Hand.floor(file, measure.rows)
  }
}

const [, , measure = "", directory = "."] = process.argv
const decoded = Schema.decodeUnknownSync(Schema.parseJson(Measure))(measure)
process.stdout.write(JSON.stringify(await measured(decoded, join(directory, "bench.db"))))
