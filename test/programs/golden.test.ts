import { copyFileSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { Chunk, Effect, Either, Option, Schema, type Scope, Stream } from "effect"
import * as fc from "fast-check"
import {
  Agent,
  Budget,
  Checkpointer,
  Enrichment,
  Journal,
  type LLM,
  LLMSimulated,
  Memory,
  Retry,
  Rows,
  Usage,
  Usd
} from "../../src/index.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import type { Op } from "../../src/services/Book.ts"
import { bill, type CountingLlm, counted, countingLlm, promptOf } from "../support/countingLlm.ts"
import { backends, type Database, nth, processOn, tempDir } from "../support/mortalProcess.ts"
import { inVirtualTime } from "../support/virtualClock.ts"

const Vendor = Schema.Struct({ id: Schema.Int, name: Schema.String })
type Vendor = typeof Vendor.Type
const Enriched = Schema.Struct({ summary: Schema.String, risk: Schema.Literal("low", "medium", "high") })

const idsOf = (count: number) => Array.from({ length: count }, (_, i) => i + 1)
const vendorsOf = (count: number, nameOf = (id: number) => `Vendor ${id}`): ReadonlyArray<Vendor> =>
  idsOf(count).map((id) => ({ id, name: nameOf(id) }))

const agent = Agent.make({
  name: "enricher",
  model: "simulated",
  promptVersion: "enricher-v1",
  system: "You assess vendors.",
  prompt: (vendor: Vendor) => vendor.name,
  output: Enriched
})

const jobOver = (vendors: ReadonlyArray<Vendor>, more: { readonly chunkSize?: number; readonly memo?: number } = {}) =>
  Enrichment.make({
    name: "vendor-enrichment",
    agent,
    row: Vendor,
    id: (vendor) => vendor.id,
    source: Rows.fromIterable(vendors),
    retry: Retry.policy({ attempts: 8, base: "1 millis", longest: "4 millis" }),
    ...more
  })
type Job = ReturnType<typeof jobOver>

const echo = (request: LLM.ChatRequest) => JSON.stringify({ summary: promptOf(request), risk: "medium" })
const roughOptions = { rate429: 0.05, rate5xx: 0.06, rateTimeout: 0.04, rateBadJson: 0.15, rateRefusal: 0.05 }
/** A rough provider, as the seed, the request and its attempts decide. */
const rough = (seed: number) => counted(LLMSimulated.layer({ seed, ...roughOptions, respond: echo }))

/** One process: a run of a job, and what is read of it while its database is open. */
const session = <A, E>(
  database: Database,
  llm: Pick<CountingLlm, "layer">,
  job: Job,
  options: Enrichment.RunOptions & Pick<Parameters<typeof Budget.layer>[0], "maxCalls" | "maxConcurrency">,
  read: (result: Enrichment.RunResult<typeof Enriched.Type>) => Effect.Effect<A, E, Enrichment.Services>,
  dies?: (op: Op) => boolean
) =>
  Effect.flatMap(Enrichment.run(job, { runId: "r1", ...options }), read).pipe(
    Effect.provide(Budget.layer({ maxCostUsd: 50, maxConcurrency: 8, ...options })),
    Effect.provide([processOn(database, dies), llm.layer])
  )

const resultsOf = (runId = "r1") =>
  Effect.map(Stream.runCollect(Enrichment.results(runId, Enriched)), Chunk.toReadonlyArray)

/** What a finished run's calls must add up to. */
const equation = (totals: Enrichment.Totals): number =>
  totals.rows +
  totals.reruns -
  totals.unasked -
  totals.storeHits -
  totals.memoHits -
  totals.replays +
  totals.retries +
  totals.repairs

/** A finished run's figures agree with each other, and with what the provider counted. */
const agree = (result: Enrichment.Totals, providerCalls: number, note: string) =>
  Effect.gen(function* () {
    assert.deepStrictEqual([result.status, result.pending, result.held], ["done", 0, 0], note)
    assert.strictEqual(result.calls, providerCalls, `${note}: calls, as the provider counted them`)
    assert.strictEqual(equation(result), result.calls, `${note}: ${JSON.stringify(result)}`)
    assert.strictEqual(result.usage.cost, result.spent, note)
    const last = Option.getOrThrow(yield* Enrichment.lastCheckpoint(result.runId))
    const { calls, spent, uncertain } = result
    assert.strictEqual(last.status, "DONE")
    assert.deepStrictEqual(
      { calls: last.state.calls, spent: last.state.spent, uncertain: last.state.uncertain },
      { calls, spent, uncertain },
      note
    )
  })

describe("the golden run", () => {
  const ids = idsOf(10_000)
  const llm = countingLlm(echo)
  it.live(
    "I22, I8: 10,000 rows with collect give the source design's result, checkpoints and figures",
    () =>
      Effect.gen(function* () {
        const result = yield* Enrichment.run(jobOver(vendorsOf(10_000)), { runId: "golden", collect: true })

        const workflow = Option.getOrThrow(result.workflow)
        assert.deepStrictEqual([workflow.stopReason, workflow.steps], ["complete", 2])
        assert.isTrue(Option.isNone(workflow.suspended))
        const { enrich_batch: batch, load_rows: rows } = workflow.outputs
        assert.deepStrictEqual(rows, vendorsOf(10_000))
        assert.deepStrictEqual([batch?.stopReason, batch?.steps], ["complete", 101])
        assert.isTrue(batch !== undefined && Option.isNone(batch.suspended))

        const chunks = Object.entries(batch?.outputs ?? {}).map(([name, outcomes = []]) => [name, outcomes] as const)
        assert.deepStrictEqual(
          chunks.map(([name, outcomes]) => [name, outcomes.length]),
          Array.from({ length: 100 }, (_, i) => [`chunk_${i}`, 100])
        )
        // 820 tokens at $0.15 and 110 at $0.60 a million.
        const rowUsage = Usage.make({ ...bill, cost: Usd.nano(189_000) })
        assert.deepStrictEqual(
          chunks.flatMap(([, outcomes]) => outcomes.map(Either.getOrThrow)),
          ids.map((id) => ({
            output: `{"summary":"Vendor ${id}","risk":"medium"}`,
            parsed: { summary: `Vendor ${id}`, risk: "medium" as const },
            usage: rowUsage,
            partial: false,
            promptVersion: "enricher-v1"
          }))
        )

        const usage = Usage.make({ inputTokens: 8_200_000, outputTokens: 1_100_000, cost: Usd.nano(1_890_000_000) })
        for (const one of [result.usage, workflow.usage, batch?.usage]) assert.deepStrictEqual(one, usage)
        assert.deepStrictEqual([result.stopReason, result.spent, result.uncertain], ["complete", usage.cost, 0])
        assert.strictEqual(result.calls, 10_000)
        yield* agree(result, llm.calls(), "golden")
        assert.strictEqual(llm.asked.size, 10_000)
        assert.deepStrictEqual(result.thisProcess, { calls: 10_000, spent: usage.cost, rows: 10_000 })

        const checkpointer = yield* Checkpointer.Checkpointer
        const versions = yield* checkpointer.listVersions("golden")
        assert.deepStrictEqual(versions, idsOf(101))
        const all = yield* Effect.forEach(versions, (version) =>
          Effect.map(checkpointer.get("golden", version, Enrichment.Progress), Option.getOrThrow)
        )
        assert.deepStrictEqual(
          all.map(({ state, status }) => [status, state.nextChunk, state.done]),
          versions.map((n) => (n <= 100 ? ["RUNNING", n, n * 100] : ["DONE", 100, 10_000]))
        )
        assert.deepStrictEqual(yield* Enrichment.doneIds("golden"), ids.map(String))

        const budget = yield* Effect.flatMap(Budget.Budget, (one) => one.reading)
        assert.deepStrictEqual(
          [budget.spent, budget.calls, budget.held, budget.remaining],
          [1_890_000_000, 10_000, 0, 48_110_000_000]
        )
      }).pipe(
        Effect.provide(Budget.layer({ maxCostUsd: 50, maxConcurrency: 8 })),
        Effect.provide([Memory.layer, llm.layer])
      ),
    60_000
  )
})

/** A refusal for the rate is waited out, as long as it takes. */
const virtually = <A, E>(effect: Effect.Effect<A, E, Scope.Scope>) =>
  Effect.promise(() => inVirtualTime(Effect.scoped(effect)))

describe("what a run counts", () => {
  it.live.prop(
    "I22: calls = rows + reruns - unasked - storeHits - memoHits - replays + retries + repairs, and what the provider counted",
    {
      seed: fc.nat(1_000_000),
      rows: fc.integer({ min: 1, max: 40 }),
      distinct: fc.integer({ min: 1, max: 40 }),
      memo: fc.constantFrom(0, 5, 100),
      stored: fc.nat(20),
      stops: fc.array(fc.nat(30), { maxLength: 3 }),
      dies: fc.option(fc.nat(150), { nil: undefined }),
      retry: fc.constantFrom(
        "transient" as const,
        "none" as const,
        "failed" as const,
        "partial" as const,
        "all" as const
      ),
      maxConcurrency: fc.integer({ min: 1, max: 8 })
    },
    ({ dies, distinct, maxConcurrency, memo, retry, rows, seed, stops, stored }) =>
      virtually(
        Effect.gen(function* () {
          const database = yield* backends.memory
          const llm = rough(seed)
          const note = JSON.stringify({ seed, rows, distinct, memo, stored, stops, dies, retry, maxConcurrency })
          const vendors = vendorsOf(rows, (id) => `Vendor ${id % distinct}`)
          // Some rows stand in the store before.
          const earlier = jobOver(vendors.slice(0, stored), { chunkSize: 7 })
          yield* session(database, llm, earlier, { runId: "earlier" }, (result) => agree(result, llm.calls(), note))

          const before = llm.calls()
          const job = jobOver(vendors, { chunkSize: 7, memo })
          const common = { maxConcurrency, retry: "none" } as const
          // A crash, then stops in mid-run, then the end, then a re-run.
          if (dies !== undefined) {
            yield* Effect.ignore(
              session(
                database,
                llm,
                job,
                common,
                () => Effect.void,
                nth(dies, () => true)
              )
            )
          }
          for (const maxCalls of stops.toSorted((a, b) => a - b)) {
            yield* session(database, llm, job, { ...common, maxCalls }, () => Effect.void)
          }
          yield* session(database, llm, job, { ...common, maxCalls: 100_000 }, (result) =>
            agree(result, llm.calls() - before, note)
          )
          yield* session(database, llm, job, { ...common, retry }, (result) =>
            agree(result, llm.calls() - before, note)
          )
        })
      ),
    { timeout: 60_000, fastCheck: { numRuns: 20 } }
  )

  for (const [backend, open] of Object.entries(backends)) {
    it.scopedLive(
      `I22: each part of the equation is there: faults, repairs, store hits, memo, replays (${backend})`,
      () =>
        Effect.gen(function* () {
          const database = yield* open
          const llm = rough(7)
          const vendors = vendorsOf(120, (id) => `Vendor ${id % 40}`)
          yield* session(database, llm, jobOver(vendors.slice(0, 20)), { runId: "earlier" }, () => Effect.void)
          const before = llm.calls()
          const job = jobOver(vendors, { memo: 1_000 })
          const stopped = { maxCalls: 40, retry: "none" } as const
          yield* session(database, llm, job, stopped, (result) => {
            assert.strictEqual(result.stopReason, "suspended")
            return Effect.void
          })
          yield* session(database, llm, job, { maxCalls: 10_000 }, (result) =>
            agree(result, llm.calls() - before, backend)
          )
          yield* session(database, llm, job, { retry: "failed" }, (result) =>
            Effect.gen(function* () {
              yield* agree(result, llm.calls() - before, backend)
              const parts = [result.reruns, result.storeHits, result.memoHits, result.retries, result.repairs]
              assert.isTrue(
                [...parts, result.uncertain].every((part) => part > 0),
                JSON.stringify(result)
              )
            })
          )
        })
    )

    it.scopedLive(`I25: a row's result after a resume is equal by value to the one before (${backend})`, () =>
      Effect.gen(function* () {
        const database = yield* open
        const job = jobOver(vendorsOf(100), { chunkSize: 10 })
        const row42 = (runId: string) =>
          Effect.map(resultsOf(runId), (rows) =>
            Option.getOrThrow(Option.fromNullable(rows[41]).pipe(Option.flatMap((row) => row.outcome)))
          )
        const before = yield* session(database, rough(3), job, { maxCalls: 60 }, () => row42("r1"))
        // Were the row asked again, another answer would come.
        const other = () => countingLlm(() => JSON.stringify({ summary: "another", risk: "high" }))
        const after = yield* session(database, other(), job, { maxCalls: 10_000 }, (result) =>
          Effect.tap(row42("r1"), () => Effect.sync(() => assert.strictEqual(result.status, "done")))
        )
        assert.deepStrictEqual(after, before)
        assert.strictEqual(Either.getOrThrow(after).parsed?.summary, "Vendor 42")
        // A later run takes it from the store: the same, at no cost.
        const hit = yield* session(database, other(), job, { runId: "r2" }, () => row42("r2"))
        assert.deepStrictEqual(
          hit,
          Either.map(before, (result) => ({ ...result, usage: Usage.zero }))
        )
      })
    )

    it.scopedLive(`I8: manifest = outcomes + pending at every snapshot (${backend})`, () =>
      Effect.gen(function* () {
        const database = yield* open
        const job = jobOver(vendorsOf(57), { chunkSize: 10 })
        const llm = rough(11)
        yield* session(database, llm, job, { maxCalls: 25, retry: "none" }, () => Effect.void)
        yield* session(database, llm, job, { maxCalls: 10_000, retry: "none" }, () =>
          Effect.gen(function* () {
            const checkpointer = yield* Checkpointer.Checkpointer
            const { reads } = yield* Journal.Journal
            const rows = yield* reads.results("r1", -1, 1_000)
            const versions = yield* checkpointer.listVersions("r1")
            assert.deepStrictEqual(versions, idsOf(versions.length))
            let ended = 0
            for (const version of versions) {
              const { state, status } = Option.getOrThrow(yield* checkpointer.get("r1", version, Enrichment.Progress))
              const upto = (yield* reads.checkpoint("r1", version))?.uptoCommitSeq ?? 0
              const covered = rows.filter(({ outcome }) => outcome !== undefined && outcome.commitSeq <= upto)
              const count = (kind: string) => covered.filter(({ outcome }) => outcome?.kind === kind).length
              assert.deepStrictEqual(
                [state.rows, state.done, state.partial, state.failed],
                [57, count("done"), count("partial"), count("failed")]
              )
              const pending = rows.length - covered.length
              assert.strictEqual(state.done + state.partial + state.failed + pending, state.rows)
              assert.deepStrictEqual(
                yield* Enrichment.doneIds("r1", version),
                covered.map(({ row }) => row.id)
              )
              assert.isAtLeast(covered.length, ended)
              ended = covered.length
              assert.strictEqual(pending === 0 && status !== "RUNNING", version === versions.length)
            }
            const suspended = yield* Effect.forEach(versions, (version) => reads.checkpoint("r1", version))
            assert.strictEqual(suspended.filter((one) => one?.status === "SUSPENDED").length, 1)
            assert.isTrue(rows.some(({ outcome }) => outcome?.kind === "failed"))
            assert.isTrue(rows.some(({ outcome }) => outcome?.kind === "partial"))
          })
        )
      })
    )

    it.scopedLive(`I7, I8: results keep input order and hold each row once, whatever the latencies (${backend})`, () =>
      Effect.gen(function* () {
        const database = yield* open
        const slow = LLMSimulated.layer({ latencyMs: { p50: 2, p99: 30 }, respond: echo })
        const job = jobOver(vendorsOf(200), { chunkSize: 20 })
        const [ended, rows] = yield* Effect.gen(function* () {
          const events = yield* Stream.runCollect(Enrichment.events(job, { runId: "r1" }))
          const ended = Chunk.toReadonlyArray(events).flatMap((event) => (event._tag === "Row" ? [event.seq] : []))
          return [ended, yield* resultsOf()] as const
        }).pipe(
          Effect.provide(Budget.layer({ maxCostUsd: 50, maxConcurrency: 16 })),
          Effect.provide([processOn(database), slow])
        )
        assert.notDeepEqual(
          ended,
          ended.toSorted((a, b) => a - b),
          "the rows did end out of order"
        )
        assert.deepStrictEqual(
          ended.toSorted((a, b) => a - b),
          idsOf(200).map((id) => id - 1)
        )
        assert.deepStrictEqual(
          rows.map(({ id, outcome, seq }) => [seq, id, Either.getOrThrow(Option.getOrThrow(outcome)).parsed?.summary]),
          idsOf(200).map((id) => [id - 1, String(id), `Vendor ${id}`])
        )
      })
    )
  }

  it.scopedLive("I26: two resumes of two copies of one database end in equal totals and equal outcomes", () =>
    Effect.gen(function* () {
      const dir = yield* tempDir
      const fileOf = (name: string) => join(dir, `${name}.db`)
      const databaseOf = (name: string): Database => Sqlite.open({ filename: fileOf(name) })
      const job = jobOver(vendorsOf(80), { chunkSize: 10 })
      const first = yield* session(databaseOf("first"), rough(2), job, { maxCalls: 30 }, Effect.succeed)
      assert.deepStrictEqual([first.status, first.reason?.kind, first.pending > 0], ["suspended", "max_calls", true])
      copyFileSync(fileOf("first"), fileOf("copy"))

      const resume = (name: string, maxConcurrency: number, latencyMs: number) => {
        const llm = counted(LLMSimulated.layer({ seed: 2, ...roughOptions, respond: echo, latencyMs }))
        return session(databaseOf(name), llm, job, { maxConcurrency, maxCalls: 10_000 }, (result) =>
          Effect.gen(function* () {
            assert.strictEqual(result.status, "done")
            assert.isAbove(llm.calls(), 0)
            const { maxConcurrency: _, workflow: __, ...totals } = result
            return { totals, rows: yield* resultsOf() }
          })
        )
      }
      assert.deepStrictEqual(yield* resume("copy", 8, 3), yield* resume("first", 1, 0))
    })
  )
})
