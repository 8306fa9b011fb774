import { once } from "node:events"
import { readdirSync, readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Fiber, Stream } from "effect"
import * as Export from "../../src/layers/Export.ts"
import * as Memory from "../../src/layers/Memory.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import * as Budget from "../../src/services/Budget.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { command, type Running } from "../support/command.ts"
import { type FixtureServer, play, type Reply } from "../support/fixtureServer.ts"
import { tempDir } from "../support/mortalProcess.ts"
import job from "./command/job.ts"
import { assertSound, good, HOLD, jobOf, openai, run, runId, until, vendors } from "./vendors.ts"

const path = fileURLToPath(new URL("./command/job.ts", import.meta.url))
const silence: Reply = { status: 200, headers: {}, body: "", wire: { send_bytes: 0, ends: "stall" } }
const limited: Reply = {
  status: 429,
  headers: { "content-type": "application/json", "retry-after": "60" },
  body: { error: { message: "slow down", code: "rate_limit_exceeded" } }
}

/** Replies that wait until they are let go, from the `from`th on. */
const gated = (from = 1) =>
  Effect.gen(function* () {
    let open = () => {}
    const gate = new Promise<void>((resume) => {
      open = resume
    })
    const server = yield* play(async (seen) => {
      if (seen.n >= from) await gate
      return good(seen)
    })
    return { server, open }
  })

/** A place with so many rows. */
const placeOf = (n: number) =>
  Effect.map(tempDir, (cwd) => {
    const lines = Array.from({ length: n }, (_, i) => `V-${i + 1},Acme ${i + 1}`)
    writeFileSync(join(cwd, "rows.csv"), `id,name\n${lines.join("\n")}\n`)
    return { cwd, db: join(cwd, "longhaul.db") }
  })

const longhaul = (cwd: string, { url }: FixtureServer, args: ReadonlyArray<string>, env: Record<string, string> = {}) =>
  Effect.acquireRelease(
    Effect.sync(() => command(args, { cwd, env: { OPENAI_API_KEY: "sk-test", OPENAI_BASE_URL: url, ...env } })),
    ({ child }) => Effect.sync(() => child.kill("SIGKILL"))
  )
const started = (cwd: string, server: FixtureServer, ...args: ReadonlyArray<string>) =>
  longhaul(cwd, server, ["run", path, "--budget", "1", "--run-id", runId, ...args])
const endOf = ({ ended }: Running) => Effect.promise(() => ended)
const statusIn = (filename: string) => Effect.provide(Enrichment.status(runId), Sqlite.layer({ filename }))

describe("process signals", () => {
  it.scopedLive(
    "B21 sigterm-drain: SIGTERM lets eight calls in flight finish, sends no other, and says how to go on",
    () =>
      Effect.gen(function* () {
        const { cwd, db } = yield* placeOf(20)
        const { open, server } = yield* gated()
        const running = yield* started(cwd, server)
        yield* until(() => server.requests.length === 8)
        running.child.kill("SIGTERM")
        yield* Effect.promise(() => running.shows("8 calls in flight may finish first"))
        open()
        const { code, stderr } = yield* endOf(running)
        assert.strictEqual(code, 130, stderr)
        assert.include(stderr, `resume with: longhaul resume ${runId} --db longhaul.db`)
        const stopped = yield* statusIn(db)
        assertSound(stopped, server.requests.length)
        assertIncludes(stopped, { status: "suspended", done: 8, pending: 12, calls: 8, uncertain: 0, held: 0 })
      })
  )

  it.scopedLive(
    "B21 sigterm-drain: a second signal leaves at once, and a resume counts what was in flight in full",
    () =>
      Effect.gen(function* () {
        const { cwd, db } = yield* placeOf(20)
        const { server } = yield* gated()
        const running = yield* started(cwd, server, "--grace", "60")
        yield* until(() => server.requests.length === 8)
        running.child.kill("SIGTERM")
        yield* Effect.promise(() => running.shows("a second signal abandons them"))
        running.child.kill("SIGTERM")
        assert.deepStrictEqual(yield* Effect.promise(() => once(running.child, "exit")), [null, "SIGTERM"])
        const left = yield* statusIn(db)
        assertIncludes(left, { done: 0, calls: 8, spent: 0, uncertain: 0 })
        assert.isAbove(left.held, 0)
        const next = yield* play(good)
        const resumed = yield* Enrichment.resume(job, { runId }).pipe(
          Effect.provide([Budget.layer({}), openai(next)]),
          Effect.provide(Sqlite.layer({ filename: db }))
        )
        assertSound(resumed, server.requests.length + next.requests.length)
        assertIncludes(resumed, { status: "done", done: 20, calls: 28, uncertain: left.held })
      })
  )

  it.scopedLive(
    "B21 sigterm-drain: what does not come within the grace is given up, counted in full, and asked again",
    () =>
      Effect.gen(function* () {
        const rows = vendors(20)
        const server = yield* play(() => silence)
        const fiber = yield* Effect.fork(run(jobOf({ rows }), server, { run: { graceMs: 100 } }))
        yield* until(() => server.requests.length === 8)
        yield* Fiber.interrupt(fiber)
        const stopped = yield* Enrichment.status(runId)
        assertSound(stopped, 8)
        assertIncludes(stopped, { status: "suspended", done: 0, failed: 0, pending: 20, uncertain: 8 * HOLD })
        const next = yield* play(good)
        const resumed = yield* run(jobOf({ rows }), next)
        assertSound(resumed, 8 + next.requests.length)
        assertIncludes(resumed, { status: "done", done: 20, calls: 28, uncertain: 8 * HOLD })
      }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive("B21 sigterm-drain: a run that waits for a minute wakes up and leaves at once", () =>
    Effect.gen(function* () {
      const server = yield* play(() => limited)
      const fiber = yield* Effect.fork(run(jobOf({ rows: vendors(2) }), server, { budget: { maxConcurrency: 1 } }))
      yield* until(() => server.requests.length === 1 && server.live() === 0)
      yield* Effect.sleep("200 millis")
      // Well below the minute that it was told to wait, and the ten seconds of grace.
      yield* Effect.timeout(Fiber.interrupt(fiber), "5 seconds")
      const stopped = yield* Enrichment.status(runId)
      assertSound(stopped, 1)
      assertIncludes(stopped, { status: "suspended", pending: 2, failed: 0, spent: 0, uncertain: 0 })
    }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive("B21 sigterm-drain: an export that is stopped leaves no file, and the one from before", () =>
    Effect.gen(function* () {
      const dir = yield* tempDir
      const out = join(dir, "out.csv")
      yield* Export.writeCsv(out, ["id"], Stream.make({ id: "V-001" }))
      let written = 0
      const endless = Stream.tap(Stream.repeatValue({ id: "V-002" }), () => Effect.sync(() => written++))
      const fiber = yield* Effect.fork(Export.writeCsv(out, ["id"], endless))
      yield* until(() => written > 1_000)
      yield* Fiber.interrupt(fiber)
      assert.deepStrictEqual(readdirSync(dir), ["out.csv"])
      assert.strictEqual(readFileSync(out, "utf8"), "id\nV-001\n")
    })
  )

  it.scopedLive("B133 hangup: a closed terminal drains like SIGTERM, and nobody who reads is no error", () =>
    Effect.gen(function* () {
      const { cwd, db } = yield* placeOf(12)
      const { open, server } = yield* gated()
      const { child } = yield* started(cwd, server, "--concurrency", "4")
      yield* until(() => server.requests.length === 4)
      child.stdout?.destroy()
      child.stderr?.destroy()
      const exit = once(child, "exit")
      child.kill("SIGHUP")
      yield* Effect.sleep("300 millis")
      // The kernel's own, after the shell's.
      child.kill("SIGHUP")
      yield* Effect.sleep("300 millis")
      open()
      assert.deepStrictEqual(yield* Effect.promise(() => exit), [130, null])
      const stopped = yield* statusIn(db)
      assertSound(stopped, server.requests.length)
      assertIncludes(stopped, { status: "suspended", done: 4, pending: 8, calls: 4, uncertain: 0 })
    })
  )
})

describe("resume without flags", () => {
  it.scopedLive(
    "B16 resume-config-lost: model, width, cap and prompt are the run's own, whatever the shell says now",
    () =>
      Effect.gen(function* () {
        const { cwd, db } = yield* placeOf(20)
        const elsewhere = yield* tempDir
        const env = { LONGHAUL_MODEL: "gpt-4o", LONGHAUL_CONCURRENCY: "50", LONGHAUL_BUDGET: "9" }
        writeFileSync(join(elsewhere, "longhaul.json"), JSON.stringify({ model: "gpt-4o", concurrency: 50, budget: 9 }))
        const before = yield* gated(6)
        const first = yield* started(cwd, before.server, "--concurrency", "2", "--model", "gpt-4o-mini")
        // Five are answered, and the next two are under way.
        yield* until(() => before.server.requests.length === 7)
        first.child.kill("SIGKILL")
        yield* endOf(first)
        const after = yield* play(good)
        const resumed = yield* longhaul(elsewhere, after, ["resume", runId, "--db", db], env)
        const { code, stderr, stdout } = yield* endOf(resumed)
        assert.strictEqual(code, 0, stderr)
        assert.include(stdout, " of $1.00 ")
        const ended = yield* statusIn(db)
        assertSound(ended, before.server.requests.length + after.requests.length)
        assertIncludes(ended, { status: "done", done: 20, cap: 1_000_000_000, calls: 22 })
        assert.deepStrictEqual([...new Set(after.requests.map(({ model }) => model))], ["gpt-4o-mini"])
        assert.isAtMost(after.most(), 2)
        const bodies = [...before.server.requests, ...after.requests].map(({ body, said }) => body.replace(said, ""))
        assert.lengthOf(new Set(bodies), 1)
      })
  )
})
