import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import { command, type Ended } from "../support/command.ts"
import { type FakeProvider, startFakeProvider } from "../support/startFakeProvider.ts"

const job = fileURLToPath(new URL("./cli/job.ts", import.meta.url))
const limit = { timeout: 120_000 }

let cwd: string
let provider: FakeProvider
beforeAll(async () => {
  cwd = mkdtempSync(join(tmpdir(), "longhaul-cli-"))
  provider = await startFakeProvider({ latency: 300 })
}, 60_000)
afterAll(async () => {
  await provider.stop()
  rmSync(cwd, { recursive: true, force: true })
})

const longhaul = (args: ReadonlyArray<string>, env: Record<string, string> = {}): Promise<Ended> =>
  command(args, { cwd, env }).ended
const real = () => ({ OPENAI_API_KEY: "sk-test", OPENAI_BASE_URL: provider.url })

const write = (name: string, lines: ReadonlyArray<string>) => writeFileSync(join(cwd, name), `${lines.join("\n")}\n`)
const vendors = (n: number) => [
  "id,name,note",
  ...Array.from({ length: n }, (_, i) => `v${i + 1},vendor ${i + 1},"a, b"`)
]
const simulated = ["--llm", "simulated", "--budget", "1"]

describe("longhaul", () => {
  it("enriches a file: every row in input order, ids byte-equal, unknown columns kept, exit 0", limit, async () => {
    const ids = ["NA", "NAN", "TRUE", "007", "1e5", " x "]
    write("rows.csv", ["id,name,note", ...ids.map((id) => `${id},some name,"a, b"`)])
    const { code, stderr, stdout } = await longhaul(["run", job, ...simulated, "--run-id", "first", "--out", "out.csv"])
    assert.strictEqual(code, 0, stderr)
    const lines = readFileSync(join(cwd, "out.csv"), "utf8").trimEnd().split("\n")
    assert.strictEqual(lines[0], "id,name,note,summary,risk,longhaul_status,longhaul_error")
    assert.deepStrictEqual(
      lines.slice(1),
      ids.map((id) => `${id},some name,"a, b",about ${id}: some name,low,done,`)
    )
    assert.match(stdout, /^done: 6 rows in /)
    assert.match(stdout, /spent \$0\.\d+ of \$1\.00 · 6 calls/)
    assert.match(stderr, /6 \/ 6 done · \$0\.\d+ spent · 0 workers active/)

    const status = JSON.parse((await longhaul(["status", "first", "--json"])).stdout)
    assert.strictEqual(status.status, "done")
    assert.strictEqual(status.done, 6)
    assert.deepInclude(status.checkpoint, { version: 2, status: "DONE", rows: 6, spent: status.spent })
    assert.match((await longhaul(["checkpoints", "first"])).stdout, /1 {2}RUNNING {4}6 rows.*\n.*2 {2}DONE {7}6 rows/)

    assert.strictEqual((await longhaul(["export", "first", "--out", "out.jsonl"])).code, 0)
    const rows = readFileSync(join(cwd, "out.jsonl"), "utf8")
      .trimEnd()
      .split("\n")
      .map((line) => JSON.parse(line))
    assert.deepStrictEqual(
      rows.map((row) => row.id),
      ids
    )
  })

  it(
    "pace, profile and timeout are flags, kept in the run's record; a wrong one is refused by name",
    limit,
    async () => {
      const shared = ["--db", "pace.db", "--source", "pace.csv", "--run-id", "pace", "--out", "pace.csv.csv"]
      write("pace.csv", vendors(3))
      const args = ["run", job, ...simulated, ...shared, "--rpm", "6000", "--tpm", "900000", "--profile", "ollama"]
      const { code, stderr } = await longhaul([...args, "--timeout", "30", "--fixed"])
      assert.strictEqual(code, 0, stderr)
      const record = readFileSync(join(cwd, "pace.db"), "latin1")
      assert.include(record, '"profile":"ollama","timeout":30,"fixed":true')
      const status = JSON.parse((await longhaul(["status", "pace", "--db", "pace.db", "--json"])).stdout)
      assert.deepInclude(status, { requestsPerMinute: 6000, tokensPerMinute: 900000 })
      const refused = await longhaul(["run", job, ...simulated, "--source", "pace.csv", "--timeout", "0"])
      assert.strictEqual(refused.code, 2)
      assert.include(refused.stderr, "--timeout must be a whole number of seconds")
    }
  )

  it("a row that fails is a row, not the end: exit 3, and failures lists it", limit, async () => {
    write("some-in.csv", ["id,name", "a,fine", "b,unreadable", "c,fine"])
    const args = [
      "run",
      job,
      ...simulated,
      "--source",
      "some-in.csv",
      "--run-id",
      "some",
      "--db",
      "some.db",
      "--scope",
      "some"
    ]
    const { code, stdout } = await longhaul(args)
    assert.strictEqual(code, 3)
    assert.match(stdout, /rows: 2 done, 1 partial, 0 failed, 0 pending/)
    assert.match((await longhaul(["failures", "--rows", "--db", "some.db"])).stdout, /^b\tagent\tpartial/)
  })

  it(
    "SIGTERM drains: calls in flight settle, nothing is uncertain, resume pays for no answer again",
    limit,
    async () => {
      write("many-in.csv", vendors(40))
      const before = await provider.bill()
      const args = [
        "run",
        job,
        "--budget",
        "1",
        "--source",
        "many-in.csv",
        "--db",
        "many.db",
        "--run-id",
        "many",
        "--scope",
        "many"
      ]
      const running = command(args, { cwd, env: real() })
      await running.shows("run many")
      while ((await provider.bill()).requests < before.requests + 12)
        await new Promise((resolve) => setTimeout(resolve, 10))
      running.child.kill("SIGTERM")
      const { code, stderr } = await running.ended
      assert.strictEqual(code, 130, stderr)
      assert.match(
        stderr,
        /stopped: \d+ done, \d+ pending, \$0\.\d+ spent; everything is saved\nresume with: longhaul resume many --db many\.db/
      )
      const stopped = JSON.parse((await longhaul(["status", "--json", "--db", "many.db"])).stdout)
      assert.deepInclude(stopped, { status: "suspended", held: 0, uncertain: 0 })
      assert.isAbove(stopped.pending, 0)
      assert.strictEqual(stopped.calls, (await provider.bill()).requests - before.requests)

      const resumed = await longhaul(["resume", "--db", "many.db"], real())
      assert.strictEqual(resumed.code, 0, resumed.stderr)
      assert.strictEqual((await provider.bill()).requests - before.requests, 40)
    }
  )

  it("at the cap it is suspended with exit 4 and says how to go on; a higher budget ends it", limit, async () => {
    write("cap-in.csv", vendors(20))
    const args = [
      "run",
      job,
      "--llm",
      "simulated",
      "--source",
      "cap-in.csv",
      "--db",
      "cap.db",
      "--run-id",
      "cap",
      "--scope",
      "cap"
    ]
    const { code, stdout } = await longhaul([...args, "--budget", "0.0002"])
    assert.strictEqual(code, 4)
    assert.match(stdout, /^suspended: the cap of \$0\.0002 is reached/)
    assert.match(stdout, /next: longhaul resume cap --db cap\.db --budget <more>/)
    // The run's record has its cap: what the file says is for new runs.
    write("longhaul.json", [JSON.stringify({ budget: 50 })])
    const again = await longhaul(["resume", "cap", "--db", "cap.db"])
    rmSync(join(cwd, "longhaul.json"))
    assert.strictEqual(again.code, 4, again.stderr)
    assert.strictEqual((await longhaul(["resume", "cap", "--db", "cap.db", "--budget", "1"])).code, 0)
  })

  it("an operator's mistake is one clear line with exit 2, never a trace", limit, async () => {
    write("loose.ts", ['import { Enrichment } from "longhaul"', "export default Enrichment"])
    mkdirSync(join(cwd, "node_modules"))
    symlinkSync(fileURLToPath(new URL("../..", import.meta.url)), join(cwd, "node_modules", "longhaul"))
    write("twice.csv", ["id,name", "a,one", "b,two", "a,three"])
    const source = (name: string) => ["run", job, ...simulated, "--source", name, "--db", "bad.db"]
    const mistakes: ReadonlyArray<readonly [ReadonlyArray<string>, RegExp]> = [
      [source("twice.csv"), /id "a" stands on line 2 and again on line 4/],
      [source("missing.csv"), /missing\.csv/],
      [["run", "nowhere.ts", ...simulated], /there is no job module .*nowhere\.ts/],
      [["run", job, "--llm", "simulated", "--db", "bad.db"], /say how much the run may cost/],
      [
        ["run", job, ...simulated, "--concurrency", "0", "--db", "bad.db"],
        /maxConcurrency must be a whole number from 1/
      ],
      [["run", job, ...simulated, "--model", "nobody-1", "--db", "bad.db"], /nobody-1 has no price/],
      [["run", job, "--budget", "1", "--db", "bad.db"], /OPENAI_API_KEY/],
      [["resume", "nothing", "--db", "bad.db"], /there is no run nothing/],
      [["run", job, ...simulated, "--query", "select 1", "--db", "bad.db"], /--query needs --source sqlite:/],
      [["run", job, ...simulated, "--out", "no/such/out.csv", "--db", "bad.db"], /its directory does not exist/],
      [["run", job, ...simulated, "--out", "out.xlsx", "--db", "bad.db"], /must end in \.csv/],
      [["run", "loose.ts", ...simulated], /not an ES module\nfix: put "type": "module" into .*, or call it loose\.mts/],
      [["run", job, "--nonsense"], /nonsense/]
    ]
    for (const [args, message] of mistakes) {
      const { code, stderr, stdout } = await longhaul(args)
      assert.match(stderr + stdout, message)
      assert.notMatch(stderr + stdout, /\n\s+at /)
      assert.strictEqual(code, 2, args.join(" "))
    }
    assert.strictEqual((await longhaul(["status", "--db", "no/such/dir.db"])).code, 74)
  })

  it("a run that a live process works on is refused with exit 75", limit, async () => {
    write("busy-in.csv", vendors(600))
    const args = ["--budget", "1", "--source", "busy-in.csv", "--db", "busy.db", "--run-id", "busy", "--scope", "busy"]
    const first = command(["run", job, ...args], { cwd, env: real() })
    await first.shows("run busy")
    const { code, stderr } = await longhaul(["resume", "busy", "--db", "busy.db"], real())
    assert.strictEqual(code, 75)
    assert.match(stderr, new RegExp(`worked on by process ${first.child.pid} on `))
    first.child.kill("SIGKILL")
    await first.ended
  })

  it("a value comes from its flag, else the environment, else longhaul.json", limit, async () => {
    write("conf.csv", vendors(3))
    write("longhaul.json", [JSON.stringify({ budget: 7, llm: "simulated", source: "conf.csv", db: "conf.db" })])
    const cap = async (runId: string, args: ReadonlyArray<string>, env: Record<string, string>) => {
      const { code, stderr } = await longhaul(["run", job, "--run-id", runId, ...args], env)
      assert.strictEqual(code, 0, stderr)
      return JSON.parse((await longhaul(["status", runId, "--json"])).stdout).cap
    }
    assert.strictEqual(await cap("file", [], {}), 7e9)
    assert.strictEqual(await cap("env", [], { LONGHAUL_BUDGET: "8" }), 8e9)
    assert.strictEqual(await cap("flag", ["--budget", "9"], { LONGHAUL_BUDGET: "8" }), 9e9)
    rmSync(join(cwd, "longhaul.json"))
  })
})
