/** Crash and resume, the source design's check: stopped after 300 of 1,000 rows, resumed by another process. `npx tsx examples/adversarial.ts` */
import { deepStrictEqual as equal } from "node:assert"
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import { Console, Effect, Layer, Option, Schema } from "effect"
import { Agent, Budget, Checkpointer, Enrichment, Journal, LLM, Rows, Usd } from "longhaul"
import * as Sqlite from "longhaul/sqlite"

const Row = Schema.Struct({ id: Schema.Int })
const prompt = (row: typeof Row.Type) => `row ${row.id}`
const output = Schema.Struct({ summary: Schema.String })
const agent = Agent.make({ name: "enricher", model: "simulated", prompt, output })
const ids = Array.from({ length: 1_000 }, (_, i) => i + 1)
const source = Rows.fromIterable(ids.map((id) => ({ id })))
const job = Enrichment.make({ name: "vendors", agent, row: Row, id: (row) => row.id, source, chunkSize: 100 })

/** A provider that remembers which rows it was asked. */
const asked: Array<number> = []
const usage = { inputTokens: 820, cachedTokens: 0, cacheWriteTokens: 0, outputTokens: 110, reasoningTokens: 0 }
const generate = ({ messages, model }: LLM.ChatRequest) => {
  asked.push(Number(messages[0]?.content.replace("row ", "")))
  return Effect.succeed(LLM.answer({ text: '{"summary":"fine"}', model, usage }))
}
const provider = Layer.succeed(LLM.LLM, { provider: "counted", generate })

/** One process: its own connection, and its own budget over the run's one book. Then what stands in the database. */
const dir = mkdtempSync(join(tmpdir(), "adversarial-"))
const session = (limits: Budget.BudgetOptions) =>
  Effect.gen(function* () {
    const result = yield* Enrichment.run(job, { runId: "run-x" })
    const { reads } = yield* Journal.Journal
    const outcomes = (yield* reads.results("run-x", -1, 1_000)).flatMap(({ outcome }) => outcome ?? [])
    const versions = yield* Effect.flatMap(Checkpointer.Checkpointer, (one) => one.listVersions("run-x"))
    const last = Option.getOrThrow(yield* Enrichment.lastCheckpoint("run-x"))
    return { result, outcomes, versions, last, doneIds: yield* Enrichment.doneIds("run-x") }
  }).pipe(Effect.provide([Budget.layer(limits), Sqlite.layer({ filename: join(dir, "run.db") }), provider]))

const program = Effect.gen(function* () {
  const one = yield* session({ maxCostUsd: 50, maxConcurrency: 8, maxCalls: 300 })
  equal([one.result.stopReason, one.last.status, one.result.calls], ["suspended", "SUSPENDED", 300])
  equal(one.doneIds, ids.slice(0, 300).map(String))

  const two = yield* session({ maxCalls: 1_000 })
  equal([two.result.stopReason, two.last.status, two.result.calls], ["complete", "DONE", 1_000])
  const inOrder = asked.sort((a, b) => a - b)
  equal(inOrder, ids) // rows 1 to 300 were not asked again, and so cost nothing again
  equal(two.result.spent - one.result.spent, 700 * (one.result.spent / 300))
  equal(two.outcomes.slice(0, 300), one.outcomes)
  equal(new Set(two.outcomes.map((outcome) => outcome.key)).size, 1_000)
  equal(two.versions, ids.slice(0, 12)) // 3 chunks, the stop, 7 chunks, the end
  yield* Console.log(`300 rows for ${Usd.format(one.result.spent)}, then 700 more: ${Usd.format(two.result.spent)}`)
})
const cleanUp = Effect.sync(() => rmSync(dir, { recursive: true }))
NodeRuntime.runMain(Effect.ensuring(program, cleanUp))
