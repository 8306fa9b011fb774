import { spawn } from "node:child_process"
import { readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Schema } from "effect"
import { command } from "../support/command.ts"
import { play } from "../support/fixtureServer.ts"
import { tempDir } from "../support/mortalProcess.ts"
import { good, runId } from "./vendors.ts"

const main = fileURLToPath(new URL("../../dist/programs/main.js", import.meta.url))
const simulatedJob = fileURLToPath(new URL("../programs/cli/job.ts", import.meta.url))
const job = fileURLToPath(new URL("./command/job.ts", import.meta.url))
const trial = ["run", simulatedJob, "--llm", "simulated", "--budget", "9", "--run-id", runId]

const rows = (cwd: string, n: number) => {
  const lines = Array.from({ length: n }, (_, i) => `V-${i + 1},Acme ${i + 1}`)
  writeFileSync(join(cwd, "rows.csv"), `id,name\n${lines.join("\n")}\n`)
}

/** A line of progress, whole: how far, the money, who works, how long still. */
const whole =
  /^[\d,]+ \/ [\d,]+ done · \$[\d.]+ spent · \d+ workers? active · (?:est\. \S+ \S+ remaining|– remaining|nothing remaining) · [\d.,]+ rows\/s/
const progressIn = (text: string) => text.split("\n").filter((line) => / \/ [\d,]+ done · /.test(line))

/** What the command writes to a terminal of its own, of so many columns, with line ends as a file has them. */
const onTerminal = (args: ReadonlyArray<string>, cwd: string, columns: number, env: Record<string, string>) =>
  Effect.promise(
    () =>
      new Promise<string>((resolve, reject) => {
        const quoted = [process.execPath, main, ...args].map((word) => `'${word}'`).join(" ")
        const { CI: _, NO_COLOR: __, FORCE_COLOR: ___, ...own } = process.env
        // A new terminal has no width until it is told one.
        const child = spawn("script", ["-qefc", `stty cols ${columns} rows 24; exec ${quoted}`, "/dev/null"], {
          cwd,
          env: { ...own, TERM: "xterm", ...env },
          stdio: ["ignore", "pipe", "inherit"]
        })
        let text = ""
        child.stdout.on("data", (chunk) => {
          text += chunk
        })
        child.on("error", reject)
        child.on("close", (code) =>
          code === 0 ? resolve(text.replaceAll("\r\n", "\n")) : reject(new Error(`exit ${code}: ${text}`))
        )
      })
  )

describe("progress in a log", () => {
  it.scopedLive(
    "B119 ci-progress: 10,000 rows into a pipe are a whole line each ten seconds, no control codes, the end last",
    () =>
      Effect.gen(function* () {
        const cwd = yield* tempDir
        rows(cwd, 10_000)
        const begun = Date.now()
        const { code, stderr, stdout } = yield* Effect.promise(() => command(trial, { cwd }).ended)
        const seconds = (Date.now() - begun) / 1_000
        assert.strictEqual(code, 0, stderr)
        assert.notMatch(stderr + stdout, /[^\P{Cc}\n]/u)
        const lines = progressIn(stderr)
        for (const line of lines) assert.match(line, whole)
        assert.isAtMost(lines.length, Math.floor(seconds / 10) + 1)
        assert.match(lines.at(-1) ?? "", /^10,000 \/ 10,000 done · .* · nothing remaining/)
        assert.match(stdout, /^done: 10,000 rows/)
      })
  )

  it.scopedLive(
    "B119 ci-progress: nor are there any on the terminal of a build service, a dumb one or one without a width",
    () =>
      Effect.gen(function* () {
        const logs: ReadonlyArray<readonly [number, Record<string, string>]> = [
          [100, { CI: "1" }],
          [100, { TERM: "dumb" }],
          [0, {}],
          [100, { CI: "true", NO_COLOR: "1" }]
        ]
        for (const [columns, env] of logs) {
          const cwd = yield* tempDir
          rows(cwd, 20)
          const text = yield* onTerminal(trial, cwd, columns, env)
          assert.notMatch(text, /[^\P{Cc}\n]/u, JSON.stringify([columns, env]))
          const lines = progressIn(text)
          assert.lengthOf(lines, 1)
          assert.match(lines[0] ?? "", whole)
        }
        // A person's terminal: the line is drawn in place. Without colour, if so asked: the codes that are left move the cursor.
        const cwd = yield* tempDir
        rows(cwd, 20)
        const drawn = yield* onTerminal(trial, cwd, 100, {})
        assert.include(drawn, "\u001b[2K20 / 20 done")
        assert.include(drawn, "\u001b[33mWARN")
        const again = yield* onTerminal(["resume", runId], cwd, 100, { NO_COLOR: "1" })
        assert.include(again, "\u001b[2K20 / 20 done")
        assert.notMatch(again.replaceAll("\u001b[1G", "").replaceAll("\u001b[2K", ""), /[^\P{Cc}\n]/u)
      })
  )
})

const decodeJson = Schema.decodeUnknownSync(
  Schema.parseJson(Schema.Record({ key: Schema.String, value: Schema.Unknown }))
)

describe("stdout", () => {
  it.scopedLive(
    "B146 stdout-logs: with --json there is JSON on stdout and nothing else, whatever there is to say besides",
    () =>
      Effect.gen(function* () {
        const cwd = yield* tempDir
        rows(cwd, 3)
        // A key of no use, as from an older version; a model that will be shut down; the SDK at its loudest; a source that changed.
        writeFileSync(join(cwd, "longhaul.json"), JSON.stringify({ budget: 1, maxSpend: 3 }))
        const server = yield* play(good)
        const env = { OPENAI_API_KEY: "sk-test", OPENAI_BASE_URL: server.url, OPENAI_LOG: "debug" }
        const longhaul = (...args: ReadonlyArray<string>) => Effect.promise(() => command(args, { cwd, env }).ended)
        const ran = yield* longhaul("run", job, "--json", "--run-id", runId)
        assert.strictEqual(ran.code, 0, ran.stderr)
        assert.match(ran.stderr, /WARN .*will be shut down/)
        assert.match(ran.stderr, /run case · database longhaul\.db/)
        rows(cwd, 4)
        const resumed = yield* longhaul("resume", "--json", runId)
        assert.strictEqual(resumed.code, 0, resumed.stderr)
        assert.match(resumed.stderr, /WARN .*changed/)
        const watched = yield* longhaul("watch", "--json", runId)
        for (const { stdout } of [ran, resumed, watched]) {
          const lines = stdout.trimEnd().split("\n")
          for (const line of lines) decodeJson(line)
          assert.isAtLeast(lines.length, 1)
        }
        assert.include(ran.stdout, '"_tag":"Finished"')

        const documents = yield* Effect.forEach(
          [
            ["status", "--json", runId],
            ["plan", "--json", job],
            ["receipt", "--json", runId],
            ["failures", "--json", runId],
            ["receipt", "--json", "--row", "V-1", runId]
          ],
          (args) => longhaul(...args),
          { concurrency: 2 }
        )
        for (const { code, stderr, stdout } of documents) {
          assert.strictEqual(code, 0, stderr)
          assert.doesNotThrow(() => JSON.parse(stdout))
        }
      })
  )

  it.scopedLive("B146 stdout-logs: a failure with --json is a JSON object too, and the same on stderr", () =>
    Effect.gen(function* () {
      const cwd = yield* tempDir
      rows(cwd, 3)
      writeFileSync(join(cwd, "torn.csv"), 'id,name\nV-1,"never closed\n')
      const longhaul = (...args: ReadonlyArray<string>) => Effect.promise(() => command(args, { cwd }).ended)
      const failures = yield* Effect.forEach(
        [
          ["status", "--json", "nobody", "--db", "none.db"],
          ["plan", "--json", job, "--source", "none.csv"],
          ["plan", "--json", "none.ts"],
          ["run", "--json", job, "--source", "torn.csv", "--budget", "1", "--llm", "simulated"],
          ["run", "--json", job, "--llm", "simulated"],
          ["receipt", "--json", "--no-such-flag", "x"]
        ],
        (args) => longhaul(...args),
        { concurrency: 2 }
      )
      for (const { code, stderr, stdout } of failures) {
        assert.include([2, 74], code, stderr)
        const { _tag, kind, message } = decodeJson(stdout)
        assert.strictEqual(_tag, "Error")
        assert.isString(kind)
        if (message !== "the arguments were not understood: stderr says why")
          assert.include(stderr, `error: ${message}`)
      }
      // Without it stdout stays empty.
      assert.strictEqual((yield* longhaul("status", "nobody", "--db", "none.db")).stdout, "")
    })
  )

  it.scopedLive("B146 stdout-logs: an export is a file, and stdout says how many rows it has", () =>
    Effect.gen(function* () {
      const cwd = yield* tempDir
      rows(cwd, 3)
      const { code, stderr } = yield* Effect.promise(() => command(trial, { cwd }).ended)
      assert.strictEqual(code, 0, stderr)
      const exported = yield* Effect.promise(() => command(["export", runId, "--out", "out.jsonl"], { cwd }).ended)
      assert.strictEqual(exported.stdout, "3 rows: out.jsonl\n")
      assert.strictEqual(exported.stderr, "")
      for (const line of readFileSync(join(cwd, "out.jsonl"), "utf8").trimEnd().split("\n")) decodeJson(line)
      const refused = yield* Effect.promise(() => command(["export", runId, "--out", "/dev/stdout"], { cwd }).ended)
      assert.strictEqual(refused.code, 2)
      assert.include(refused.stderr, "the kind of file is not known by its extension")
    })
  )
})
