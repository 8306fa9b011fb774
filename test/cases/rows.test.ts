import { readdirSync, readFileSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { Deferred, Effect, Either, Fiber, Option } from "effect"
import * as Memory from "../../src/layers/Memory.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import * as ExitCode from "../../src/programs/ExitCode.ts"
import { fromIterable } from "../../src/services/RowSource.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { promptOf } from "../support/countingLlm.ts"
import { play, type Reply } from "../support/fixtureServer.ts"
import { tempDir } from "../support/mortalProcess.ts"
import { assessing, enrich, exportTo, inputJob, inputs, readAsked } from "./inputs.ts"
import { assertSound, BILL, enriched, good, HOLD, idOf, jobOf, resultsOf, run, runId, vendors } from "./vendors.ts"

const refusing = (error: object): Reply => ({
  status: 400,
  headers: { "content-type": "application/json" },
  body: { error }
})
const pause = (ms: number) => new Promise<void>((resume) => setTimeout(resume, ms))

/** How each row ended: the id that its result is about, or why it has none. */
const endsOf = Effect.map(resultsOf, (rows) =>
  rows.map(({ id, outcome }) => [
    id,
    Option.match(outcome, {
      onNone: () => "pending",
      onSome: Either.match({ onLeft: ({ reason }) => reason, onRight: ({ parsed }) => parsed })
    })
  ])
)

describe("row integrity", () => {
  it.scopedLive(
    "B10 failed-batch-shift: a failed row in the middle keeps its place, and the others keep their results",
    () =>
      Effect.gen(function* () {
        const answered: Array<string> = []
        const server = yield* play(async (seen) => {
          const id = idOf(seen)
          if (id === "V-003") return refusing({ message: "too long", code: "context_length_exceeded" })
          // Rows 4 and 5 are answered before row 2.
          while (id === "V-002" && !(answered.includes("V-004") && answered.includes("V-005"))) await pause(5)
          answered.push(id)
          return good(seen)
        })
        const result = yield* run(jobOf({ rows: vendors(5) }), server)
        assertSound(result, server.requests.length)
        assertIncludes(result, { status: "done", rows: 5, done: 4, failed: 1, pending: 0 })
        assert.isAbove(answered.indexOf("V-002"), answered.indexOf("V-005"))
        assert.deepStrictEqual(yield* endsOf, [
          ["V-001", enriched("V-001")],
          ["V-002", enriched("V-002")],
          ["V-003", "context_length"],
          ["V-004", enriched("V-004")],
          ["V-005", enriched("V-005")]
        ])
      }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive(
    "B34 failed-rows-dropped: rows that fail for good are counted, told and exported with their reasons",
    () =>
      Effect.gen(function* () {
        const dir = yield* tempDir
        const reasons = new Map([
          ["V-002", "context_length_exceeded"],
          ["V-005", "content_filter"],
          ["V-009", "invalid_value"]
        ])
        const server = yield* play((seen) => {
          const code = reasons.get(idOf(seen))
          return code === undefined ? good(seen) : refusing({ message: `no: ${code}`, code })
        })
        const job = jobOf({ rows: vendors(10) })
        const result = yield* run(job, server)
        assertSound(result, server.requests.length)
        assertIncludes(result, { status: "done", rows: 10, done: 7, failed: 3, pending: 0, spent: 7 * BILL })
        // What was filtered may have been billed.
        assert.strictEqual(result.uncertain, HOLD)
        assert.strictEqual(ExitCode.ofResult(result), 3)
        assert.strictEqual(yield* exportTo(job, join(dir, "out.csv")), 10)
        const lines = readFileSync(join(dir, "out.csv"), "utf8").trimEnd().split("\n").slice(1)
        assert.deepStrictEqual(
          lines.map((line) => line.split(",").slice(5)),
          Array.from({ length: 10 }, (_, i) => {
            const code = reasons.get(`V-${String(i + 1).padStart(3, "0")}`)
            return code === undefined ? ["done", ""] : ["failed", `${reasonOf(code)}: no: ${code}`]
          })
        )
      }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive(
    "B115 partial-export: a run under way is exported as far as it is, pending rows too, and undisturbed",
    () =>
      Effect.gen(function* () {
        const dir = yield* tempDir
        const layer = Sqlite.layer({ filename: join(dir, "run.db") })
        const gate = yield* Deferred.make<void>()
        const isLate = (id: string) => Number(id.slice(2)) > 7
        const llm = assessing((request) =>
          isLate(readAsked(promptOf(request)).id) ? Deferred.await(gate) : Effect.void
        )
        const job = inputJob(fromIterable(inputs(10)))
        const running = yield* Effect.fork(Effect.provide(enrich(job, llm), layer))
        // Over a connection of its own, as another process reads it.
        const done = Effect.provide(Enrichment.status(runId), layer).pipe(
          Effect.map((totals) => totals.done),
          Effect.orElseSucceed(() => 0)
        )
        yield* Effect.repeat(Effect.delay(done, "10 millis"), { until: (n) => n === 7 })
        const out = join(dir, "out.csv")
        assert.strictEqual(yield* Effect.provide(exportTo(job, out), layer), 10)
        const lines = readFileSync(out, "utf8").trimEnd().split("\n").slice(1)
        assert.deepStrictEqual(
          lines.map((line) => [line.split(",")[0], line.split(",").at(-2)]),
          inputs(10).map(({ id }) => [id, isLate(id) ? "pending" : "done"])
        )
        assert.deepStrictEqual(
          readdirSync(dir).filter((name) => name.endsWith(".tmp")),
          []
        )
        assert.strictEqual(llm.calls(), 7)
        yield* Deferred.succeed(gate, undefined)
        const result = yield* Fiber.join(running)
        assertSound(result, llm.calls())
        assertIncludes(result, { status: "done", done: 10, calls: 10 })
      })
  )
})

const reasonOf = (code: string): string =>
  ({ context_length_exceeded: "context_length", content_filter: "content_filter" })[code] ?? "bad_request"
