/** Steering by the command, over processes that are really killed. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import { command, type Ended } from "../../support/command.ts"
import { type FakeProvider, startFakeProvider } from "../../support/startFakeProvider.ts"

const job = fileURLToPath(new URL("./job.ts", import.meta.url))
const limit = { timeout: 180_000 }

let cwd: string
let provider: FakeProvider
beforeAll(async () => {
  cwd = mkdtempSync(join(tmpdir(), "longhaul-steering-"))
  provider = await startFakeProvider({ latency: 200 })
}, 60_000)
afterAll(async () => {
  await provider.stop()
  rmSync(cwd, { recursive: true, force: true })
})

const env = (on = provider) => ({ OPENAI_API_KEY: "sk-test", OPENAI_BASE_URL: on.url })
const longhaul = async (args: ReadonlyArray<string>, code = 0): Promise<Ended> => {
  const ended = await command(args, { cwd, env: env() }).ended
  assert.strictEqual(ended.code, code, ended.stderr)
  return ended
}
const status = async (run: string) =>
  JSON.parse((await longhaul(["status", run, "--json", "--db", `${run}.db`])).stdout)
const asked = async (on = provider) => (await on.bill()).requests
const until = async (is: () => Promise<boolean>) => {
  while (!(await is())) await new Promise((resolve) => setTimeout(resolve, 10))
}

/** What `--json` prints: an object a line. */
const parsed = (lines: string): ReadonlyArray<ReturnType<typeof JSON.parse>> =>
  lines
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line))

/** Begins a run of so many rows over the slow provider, or one of its own, and waits for its first calls. */
const begin = async (run: string, rows: number, args: ReadonlyArray<string>, on = provider) => {
  const lines = ["id,name", ...Array.from({ length: rows }, (_, i) => `v${i + 1},vendor ${i + 1}`)]
  writeFileSync(join(cwd, `${run}-in.csv`), `${lines.join("\n")}\n`)
  const before = await asked(on)
  const flags = ["--source", `${run}-in.csv`, "--db", `${run}.db`, "--run-id", run, "--scope", run, ...args]
  const running = command(["run", job, ...flags], { cwd, env: env(on) })
  await until(async () => (await asked(on)) >= before + 8 || running.child.exitCode !== null)
  return { running, calls: async () => (await asked(on)) - before }
}

describe("longhaul", () => {
  it("pause, SIGKILL, resume: still paused, 0 new requests; unpause from another terminal ends it", limit, async () => {
    const { calls, running } = await begin("killed", 300, ["--budget", "1", "-c", "4"])
    const said = await longhaul(["pause", "killed", "--db", "killed.db", "-m", "look at row 3"])
    assert.match(said.stdout, /^run killed is paused: no call begins/)
    running.child.kill("SIGKILL")
    await running.ended
    const before = await calls()

    const again = command(["resume", "killed", "-c", "20", "--db", "killed.db"], { cwd, env: env() })
    await again.shows("look at row 3; it waits. Go on with: longhaul unpause killed --db killed.db")
    await new Promise((resolve) => setTimeout(resolve, 1_500))
    assert.strictEqual(await calls(), before)
    await longhaul(["unpause", "killed", "--db", "killed.db"])
    const ended = await again.ended
    assert.strictEqual(ended.code, 0, ended.stderr)
    const { done, paused, uncertain } = await status("killed")
    assert.deepStrictEqual([done, paused], [300, null])
    // What was in flight at the kill is asked again, and nothing else.
    assert.isAtMost(await calls(), 300 + 4)
    assert.strictEqual(uncertain > 0, (await calls()) > 300)
    const receipt = await longhaul(["receipt", "killed", "--db", "killed.db"])
    assert.match(receipt.stdout, /order {6}\S+ \S+: paused by \S+: look at row 3/)
    assert.match(receipt.stdout, /digest {5}[0-9a-f]{64}/)
  })

  it("set, drain, watch and requeue reach a run at work, each a command of its own", limit, async () => {
    const { calls, running } = await begin("steered", 600, ["--budget", "1", "-c", "2"])
    const set = await longhaul(["set", "steered", "--db", "steered.db", "--concurrency", "6", "--budget", "2"])
    assert.match(set.stdout, /^run steered: cap \$2\.00, 6 at once/)
    assert.match(set.stdout, new RegExp(`process ${running.child.pid} on`))
    const watching = command(["watch", "steered", "--db", "steered.db", "--json"], { cwd, env: env() })
    await until(async () => (await status("steered")).done >= 60)
    await longhaul(["drain", "steered", "--db", "steered.db"])
    const drained = await running.ended
    assert.strictEqual(drained.code, 4, drained.stderr)
    assert.match(drained.stdout, /^suspended: drained by \S+; \d+ of 600 rows are pending/)
    const watched = await watching.ended
    assert.strictEqual(watched.code, 4, watched.stderr)
    const looks = parsed(watched.stdout)
    assert.strictEqual(looks.at(-1).status, "suspended")

    await longhaul(["requeue", "steered", "v1", "v2", "--db", "steered.db"])
    const resumed = await longhaul(["resume", "steered", "-c", "30", "--db", "steered.db", "--json"])
    const events = parsed(resumed.stdout)
    const finished = events.find(({ _tag }) => _tag === "Finished")
    assert.deepInclude(finished, { status: "done", done: 600, reruns: 2, maxConcurrency: 30, uncertain: 0 })
    assert.strictEqual(await calls(), 602)
  })

  it("watch says what the worker is at: here that its provider is gone", limit, async () => {
    const own = await startFakeProvider({ latency: 200 })
    const { running } = await begin("gone", 200, ["--budget", "1", "-c", "8"], own)
    const watching = command(["watch", "gone", "--db", "gone.db", "--json"], { cwd, env: env() })
    const looks = () => parsed(watching.stdout())
    await until(async () => looks().length > 0)
    assert.deepInclude(looks()[0], { phase: "running", allowed: 8 })
    await own.stop()
    await until(async () => looks().at(-1).phase === "provider_down")
    const shown = command(["watch", "gone", "--db", "gone.db"], { cwd, env: env() })
    await until(async () => shown.stdout().includes("workers active"))
    assert.match(shown.stdout(), /^provider down, probing · \d+ \/ 200 done · /m)
    for (const { child, ended } of [watching, shown, running]) {
      child.kill("SIGINT")
      await ended
    }
  })

  it("cancel ends it for good; what cannot be ordered is one line with exit 2", limit, async () => {
    const { running } = await begin("given", 600, ["--budget", "1", "-c", "2"])
    await longhaul(["cancel", "given", "--db", "given.db"])
    const ended = await running.ended
    assert.strictEqual(ended.code, 5)
    assert.match(ended.stdout, /^cancelled by \S+; \d+ of 600 rows are pending/)
    for (const [args, message] of [
      [["resume", "given"], /run given was cancelled: begin a new one/],
      [["set", "given", "--budget", "9"], /run given was cancelled/],
      [["set", "given"], /nothing to set/],
      [["requeue", "given"], /requeue takes rows, or --failed, or --partial/],
      [["pause", "nobody"], /there is no run nobody/]
    ] as const) {
      const { stderr } = await longhaul([...args, "--db", "given.db"], 2)
      assert.match(stderr, message)
      assert.notMatch(stderr, /\n\s+at /)
    }
  })
})
