import { readFileSync } from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Schema } from "effect"
import { Agent, Budget, Enrichment, OutputAdapter, Retry, Rows } from "../../src/index.ts"
import type { Op } from "../../src/services/Book.ts"
import { brokenOff, type CountingLlm, countingLlm, isRepair, promptOf, refuseForGood } from "../support/countingLlm.ts"
import { backends, type Database, nth, processOn } from "../support/mortalProcess.ts"
import { type Name, ROWS, type Scenario, scenarios, toMarkdown } from "./scenarios.ts"

const Vendor = Schema.Struct({ id: Schema.Int, name: Schema.String, updatedAt: Schema.String })
type Vendor = typeof Vendor.Type
const Output = Schema.Struct({ summary: Schema.String, risk: Schema.Literal("low", "high") })
const Checked = Output.pipe(Schema.filter(({ summary }) => summary !== "" || "a summary is needed"))

const GOOD = JSON.stringify({ summary: "sells paint", risk: "low" })
const BAD = JSON.stringify({ summary: "sells paint", risk: "none of these" })

const vendors: ReadonlyArray<Vendor> = Array.from({ length: ROWS }, (_, i) => ({
  id: i + 1,
  name: `Vendor ${i + 1}`,
  updatedAt: "2026-07-03"
}))

const agentOptions = {
  name: "assessor",
  model: "simulated",
  prompt: (vendor: Vendor) => `Assess ${vendor.name}.`,
  output: Output
}
const agent = Agent.make(agentOptions)

const jobOptions = {
  name: "vendors",
  agent,
  row: Vendor,
  id: (vendor: Vendor) => vendor.id,
  version: (vendor: Vendor) => vendor.updatedAt,
  source: Rows.fromIterable(vendors),
  chunkSize: 2
}
const job = Enrichment.make(jobOptions)
type Job = typeof job

/** One process: a run of a job, with one call at a time. */
const session = (
  database: Database,
  llm: CountingLlm,
  run: Job,
  options: Enrichment.RunOptions = {},
  dies?: (op: Op) => boolean
) =>
  Enrichment.run(run, { runId: "r1", ...options }).pipe(
    Effect.provide(Budget.layer({ maxCostUsd: 10, maxConcurrency: 1 })),
    Effect.provide([processOn(database, dies), llm.layer])
  )

const good = () => countingLlm(() => GOOD)
const isOf = (request: Parameters<typeof promptOf>[0], ...ids: ReadonlyArray<number>) =>
  ids.some((id) => promptOf(request).includes(`Vendor ${id}.`))

/** What a choice cost: the calls, or that nothing was sent. */
type Play = (database: Database, choice: string) => Effect.Effect<number | "refused", unknown>

/** A finished run, then the same run of a changed job. */
const drift =
  (changed: Job): Play =>
  (database, choice) =>
    Effect.gen(function* () {
      yield* session(database, good(), job)
      const llm = good()
      const onDrift = choice.includes("keep") ? "keep" : choice.includes("rerun") ? "rerun" : undefined
      const again = yield* Effect.either(session(database, llm, changed, { onDrift }))
      if (again._tag === "Right") {
        const { done, pending, reruns, status } = again.right
        assert.deepStrictEqual({ done, pending, status }, { done: ROWS, pending: 0, status: "done" })
        assert.strictEqual(reruns, onDrift === "rerun" ? ROWS : 0)
        return llm.calls()
      }
      assert.strictEqual(again.left._tag === "RunRefused" ? again.left.reason : again.left, "drift")
      assert.match(again.left.message, new RegExp(`^${ROWS} rows of run r1 `))
      assert.strictEqual(llm.calls(), 0)
      return "refused"
    })

/** A run that dies, then its resume: the calls of the resume, which ends all rows well. */
const crash = (database: Database, first: CountingLlm, dies: (op: Op) => boolean) =>
  Effect.gen(function* () {
    assert.strictEqual((yield* Effect.flip(session(database, first, job, {}, dies)))._tag, "StorageError")
    const llm = good()
    const { done, uncertain } = yield* session(database, llm, job)
    assert.deepStrictEqual([done, uncertain], [ROWS, 0])
    return llm.calls()
  })

/** A run of which two rows end badly, then the same again with a provider that answers well. */
const again = (database: Database, first: CountingLlm, retry: Enrichment.RunOptions["retry"]) =>
  Effect.gen(function* () {
    const before = yield* session(database, first, job)
    assert.deepStrictEqual([before.done, before.partial + before.failed, before.status], [2, 2, "done"])
    const llm = good()
    const { done } = yield* session(database, llm, job, retry === undefined ? {} : { retry })
    assert.strictEqual(done, retry === undefined ? 2 : 4)
    return llm.calls()
  })

/** A run, then a later one. */
const later = (database: Database, first: Job, second: Job) =>
  Effect.gen(function* () {
    yield* session(database, good(), first)
    const llm = good()
    const { done, storeHits } = yield* session(database, llm, second, { runId: "r2" })
    assert.strictEqual(done, ROWS)
    assert.strictEqual(storeHits, ROWS - llm.calls())
    return llm.calls()
  })

const checkedJob = Enrichment.make({ ...jobOptions, agent: Agent.make({ ...agentOptions, output: Checked }) })

/** A re-run that dies after its first row, and its resume, to which nothing is said of the drift any more. */
const crashInRerun = (database: Database, changed: Job) =>
  Effect.gen(function* () {
    yield* session(database, good(), job)
    const llm = good()
    const dies = nth(2, (op) => op._tag === "Outcome")
    yield* Effect.flip(session(database, llm, changed, { onDrift: "rerun" }, dies))
    const { done, replays, reruns } = yield* session(database, llm, changed)
    assert.deepStrictEqual([done, reruns, replays], [ROWS, ROWS, ROWS - llm.calls()])
    return llm.calls()
  })

const withRows = (rows: ReadonlyArray<Vendor>, more: Partial<typeof jobOptions> = {}) =>
  Enrichment.make({ ...jobOptions, ...more, source: Rows.fromIterable(rows) })
const changeLast = (change: Partial<Vendor>) =>
  vendors.map((vendor) => (vendor.id === ROWS ? { ...vendor, ...change } : vendor))

const plays: Record<Name, Play> = {
  "crash after the answer": (database) =>
    crash(
      database,
      good(),
      nth(ROWS, (op) => op._tag === "Outcome")
    ),
  "crash before the repair": (database) =>
    crash(
      database,
      countingLlm((request) => (isOf(request, ROWS) && !isRepair(request) ? BAD : GOOD)),
      (op) => op._tag === "Hold" && op.hold.turn === 1
    ),
  "partial rows again": (database, choice) =>
    again(
      database,
      countingLlm((request) => (isOf(request, 2, 3) ? BAD : GOOD)),
      choice.includes("partial") ? "partial" : undefined
    ),
  "failed rows again": (database, choice) =>
    again(
      database,
      countingLlm((request) => (isOf(request, 2, 3) ? refuseForGood : GOOD)),
      choice.includes("failed") ? "failed" : undefined
    ),
  "prompt changed": drift(
    Enrichment.make({
      ...jobOptions,
      agent: Agent.make({ ...agentOptions, prompt: (vendor: Vendor) => `Judge ${vendor.name}.` })
    })
  ),
  "schema changed on the decode side only": (database, choice) =>
    choice.includes("crash") ? crashInRerun(database, checkedJob) : drift(checkedJob)(database, choice),
  "model changed": drift(Enrichment.make({ ...jobOptions, agent: agent.withModel("gpt-4o-mini") })),
  "equal rows": (database, choice) =>
    Effect.gen(function* () {
      const llm = good()
      const twins = vendors.slice(0, 2).map((vendor) => ({ ...vendor, name: "Twin" }))
      const memo = Number(choice.slice("memo: ".length))
      const run = Enrichment.make({ ...jobOptions, memo, source: Rows.fromIterable(twins) })
      const { done, memoHits } = yield* session(database, llm, run)
      assert.deepStrictEqual([done, memoHits], [2, 2 - llm.calls()])
      return llm.calls()
    }),
  "id with a new version": (database) => later(database, job, withRows(changeLast({ updatedAt: "2026-07-10" }))),
  "no version function": (database, choice) => {
    const { version: _, ...unversioned } = jobOptions
    const rows = choice === "one row changed" ? changeLast({ updatedAt: "2026-07-10" }) : [...vendors]
    const second = Enrichment.make({ ...unversioned, source: Rows.fromIterable(rows) })
    return later(database, Enrichment.make(unversioned), second)
  },
  "second run of the week": (database, choice) =>
    later(database, job, choice === "same scope" ? job : Enrichment.make({ ...jobOptions, scope: "another" })),
  "output mode changed": drift(
    Enrichment.make({ ...jobOptions, agent: Agent.make({ ...agentOptions, adapter: OutputAdapter.jsonObject }) })
  )
}

describe("what is asked again (I5, I15, I22)", () => {
  const table: ReadonlyArray<Scenario & { readonly name: Name }> = scenarios
  for (const [backend, database] of Object.entries(backends)) {
    for (const { calls, name } of table) {
      for (const [choice, expected] of calls) {
        it.scopedLive(`${name}, ${choice}: ${expected} (${backend})`, () =>
          Effect.gen(function* () {
            assert.strictEqual(yield* plays[name](yield* database, choice), expected)
          })
        )
      }
    }
  }

  it.scopedLive("equal rows that wait for one answer do not keep a run from stopping at its cap", () =>
    Effect.gen(function* () {
      // The one that is asked fails and counts at its hold, and there is no room for a second try.
      const llm = countingLlm(() => brokenOff)
      const twins = vendors.map((vendor) => ({ ...vendor, name: "Twin" }))
      const retry = Retry.policy({ attempts: 3, base: "1 millis", longest: "1 millis" })
      const { pending, reason } = yield* Enrichment.run(
        Enrichment.make({ ...jobOptions, memo: 10, retry, source: Rows.fromIterable(twins) }),
        { runId: "r1" }
      ).pipe(
        Effect.provide([
          Budget.layer({ maxCostUsd: 0.001, maxConcurrency: 4 }),
          processOn(yield* backends.memory),
          llm.layer
        ])
      )
      assert.deepStrictEqual([pending, reason?.kind, llm.calls()], [ROWS, "budget", 1])
    })
  )

  it.scopedLive("equal rows: what failed is not remembered, so that each asks for itself", () =>
    Effect.gen(function* () {
      const llm = countingLlm(() => refuseForGood)
      const twins = vendors.map((vendor) => ({ ...vendor, name: "Twin" }))
      const run = Enrichment.make({ ...jobOptions, memo: 10, source: Rows.fromIterable(twins) })
      const { failed, memoHits } = yield* session(yield* backends.memory, llm, run)
      assert.deepStrictEqual([failed, memoHits, llm.calls()], [ROWS, 0, ROWS])
    })
  )

  it("docs/scenarios.md is written from the table", () => {
    const stored = readFileSync(new URL("../../docs/scenarios.md", import.meta.url), "utf8")
    const write = `node --import tsx -e 'import("./test/programs/scenarios.ts").then((it) => process.stdout.write(it.toMarkdown()))' > docs/scenarios.md`
    assert.strictEqual(stored, toMarkdown(), `write it anew: ${write}`)
  })
})
