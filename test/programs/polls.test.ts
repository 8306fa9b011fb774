/** Who looks on is in nobody's way: a run's readers and its one writer, over one SQLite file. */
import { spawn } from "node:child_process"
import { once } from "node:events"
import { join } from "node:path"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { Deferred, Effect, Fiber, Schema, Stream } from "effect"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import * as Agent from "../../src/programs/Agent.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import * as Budget from "../../src/services/Budget.ts"
import { fromIterable } from "../../src/services/RowSource.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { countingLlm, promptOf } from "../support/countingLlm.ts"
import { tempDir } from "../support/mortalProcess.ts"
import { Polled } from "../support/poller.ts"

const ROWS = 2_000
const LOOKS = 1_000
const runId = "polled"

const job = Enrichment.make({
  name: "polls",
  agent: Agent.make({
    name: "assessor",
    model: "simulated",
    // Long enough that the bill stays below its hold.
    prompt: ({ id }: { readonly id: string }) => `${id}: ${"Makes things. ".repeat(80)}`,
    output: Schema.Struct({ summary: Schema.String })
  }),
  row: Schema.Struct({ id: Schema.String }),
  id: ({ id }) => id,
  source: fromIterable(Array.from({ length: ROWS }, (_, i) => ({ id: `V-${i + 1}` }))),
  chunkSize: 10
})

/** The poller, ready to begin. */
const poller = (filename: string) =>
  Effect.gen(function* () {
    const script = fileURLToPath(new URL("../support/poller.ts", import.meta.url))
    const child = yield* Effect.acquireRelease(
      Effect.sync(() =>
        spawn(process.execPath, ["--import", "tsx", script, filename, runId, String(LOOKS)], {
          stdio: ["pipe", "pipe", "inherit"]
        })
      ),
      (child) => Effect.sync(() => child.kill("SIGKILL"))
    )
    const lines = createInterface({ input: child.stdout })
    yield* Effect.promise(() => once(lines, "line"))
    const said = Effect.promise(async () => String((await once(lines, "line"))[0]))
    return { go: () => child.stdin.end("go\n"), polled: Effect.flatMap(said, Schema.decode(Polled)) }
  })

describe("status", () => {
  it.scopedLive(
    "1,000 looks from another process while a run commits meet no busy database, and the run no fault",
    () =>
      Effect.gen(function* () {
        const filename = join(yield* tempDir, "run.db")
        const { go, polled } = yield* poller(filename)
        const over = yield* Deferred.make<void>()
        // The last row is answered when the last look was had.
        const llm = countingLlm(
          () => '{"summary":"fine"}',
          (request) => (promptOf(request).startsWith(`V-${ROWS}:`) ? Deferred.await(over) : Effect.sleep("5 millis"))
        )
        const running = yield* Stream.runForEach(Enrichment.events(job, { runId }), (event) =>
          Effect.sync(() => event._tag === "Started" && go())
        ).pipe(
          Effect.provide([Budget.layer({ maxCostUsd: 50, maxConcurrency: 8 }), llm.layer]),
          Effect.provide(Sqlite.layer({ filename })),
          Effect.fork
        )
        const early = Effect.zipRight(Fiber.join(running), Effect.dieMessage("the run ended before the last look"))
        const { done, errors, looks, running: seen } = yield* Effect.raceFirst(polled, early)
        yield* Deferred.succeed(over, undefined)
        assert.deepStrictEqual(errors, [])
        assert.deepStrictEqual([looks, seen], [LOOKS, LOOKS])
        // It went on while it was looked at.
        assert.isAbove(done[1], done[0])
        yield* Fiber.join(running)
        const status = yield* Effect.provide(Enrichment.status(runId), Sqlite.layer({ filename }))
        assertIncludes(status, { status: "done", done: ROWS, failed: 0, calls: ROWS, uncertain: 0 })
      }),
    { timeout: 180_000 }
  )
})
