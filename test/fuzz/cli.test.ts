/** Whatever an operator types: the command ends with a code of its own, and says what is wrong in words, never by a trace. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import * as NodeContext from "@effect/platform-node/NodeContext"
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import { Cause, Console, Effect, Exit, Layer, Logger } from "effect"
import fc from "fast-check"
import { main } from "../../src/programs/Cli.ts"
import * as ExitCode from "../../src/programs/ExitCode.ts"
import { runs } from "./fuzz.ts"

const job = fileURLToPath(new URL("../programs/cli/job.ts", import.meta.url))
const dir = mkdtempSync(join(tmpdir(), "longhaul-fuzz-"))
const before = process.cwd()
beforeAll(() => {
  writeFileSync(join(dir, "rows.csv"), "id,name\na,one\nb,two\n")
  writeFileSync(join(dir, "bad.csv"), 'id,name\n"a')
  writeFileSync(join(dir, "throws.mjs"), "throw new Error('no job')")
  writeFileSync(join(dir, "empty.mjs"), "export default 1")
  writeFileSync(join(dir, "bad.db"), "not a database, and long enough to be read as the head of one".repeat(40))
  for (const name of Object.keys(process.env)) if (/^(OPENAI|LONGHAUL)_/.test(name)) delete process.env[name]
  process.chdir(dir)
})
afterAll(() => {
  process.chdir(before)
  rmSync(dir, { recursive: true })
})

/** What it said, and its code. The test's own code is put back. */
const typed = async (args: ReadonlyArray<string>) => {
  const said: Array<string> = []
  const log = (...words: ReadonlyArray<unknown>) => Effect.sync(() => void said.push(words.map(String).join(" ")))
  const own = await Effect.runPromise(Effect.console)
  const code = process.exitCode
  process.exitCode = undefined
  const exit = await main(["node", "longhaul", ...args], "0.0.0").pipe(
    Console.withConsole({ ...own, log, error: log }),
    Effect.provide(Layer.merge(NodeContext.layer, Logger.remove(Logger.defaultLogger))),
    Effect.timeout("30 seconds"),
    Effect.runPromiseExit
  )
  const ended = process.exitCode
  process.exitCode = code
  return { exit, code: ended, said: said.join("\n") }
}

const codes = new Set<unknown>([undefined, ...Object.values(ExitCode).filter((code) => typeof code === "number")])
codes.delete(ExitCode.INTERNAL)

const command = fc.constantFrom("run", "resume", "status", "checkpoints", "failures", "export", "help", "", "Run")
const flag = fc.constantFrom(
  "--db",
  "--budget",
  "-b",
  "--no-cap",
  "--concurrency",
  "-c",
  "--llm",
  "--model",
  "--out",
  "-o",
  "--rpm",
  "--tpm",
  "--profile",
  "--timeout",
  "--source",
  "--query",
  "--chunk-size",
  "--run-id",
  "--scope",
  "--retry",
  "--keep",
  "--rerun",
  "--fixed",
  "--grace",
  "--json",
  "--raw",
  "--partial",
  "--max-calls",
  "--help",
  "--version",
  "--",
  "--log-level",
  "--nonsense"
)
const value = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.constantFrom(
      "simulated",
      "openai",
      "a.db",
      "bad.db",
      "rows.csv",
      "bad.csv",
      "sqlite:a.db#run",
      "sqlite:a.db",
      "out.csv",
      "out.txt",
      "no/such/out.csv",
      ".",
      job
    )
  },
  {
    weight: 4,
    arbitrary: fc.constantFrom(
      "0",
      "1",
      "-1",
      "8",
      "1e3",
      "1e308",
      "NaN",
      "Infinity",
      "0.5",
      "9007199254740993",
      "",
      " ",
      "true"
    )
  },
  {
    weight: 2,
    arbitrary: fc.constantFrom(
      "throws.mjs",
      "empty.mjs",
      "first",
      "../x",
      "__proto__",
      "'; drop table run",
      "é😀",
      "\u0000",
      "\u001b[2J",
      "select 1",
      "transient",
      "compatible",
      "ollama"
    )
  },
  { weight: 1, arbitrary: fc.string({ unit: "binary", maxLength: 6 }) }
)
const args = fc.oneof(
  fc.tuple(command, fc.array(fc.oneof(flag, value), { maxLength: 7 })).map(([name, rest]) => [name, ...rest]),
  fc
    .tuple(
      fc.constantFrom(job, "throws.mjs", "empty.mjs", "none.ts"),
      fc.array(
        fc.tuple(flag, value).map((pair) => pair),
        { maxLength: 3 }
      )
    )
    .map(([module, pairs]) => ["run", module, "--llm", "simulated", "--db", "a.db", "--budget", "1", ...pairs.flat()]),
  fc.array(fc.string({ unit: "binary", maxLength: 6 }), { maxLength: 4 })
)

describe("What an operator types", () => {
  it("any arguments end in a code and in words, without a trace", () =>
    fc.assert(
      fc.asyncProperty(args, async (given) => {
        const { code, exit, said } = await typed(given)
        if (Exit.isFailure(exit)) return assert.fail(Cause.pretty(exit.cause))
        assert.isTrue(codes.has(code), `code ${code}: ${said}`)
        assert.notMatch(said, /internal error|\[object Object\]/)
        // What the test runner's own loader says of a file that is no module has a trace in it; node's has none.
        if (!said.includes("cannot be loaded")) assert.notMatch(said, /\n\s+at .*:\d+/)
      }),
      { ...runs(400), interruptAfterTimeLimit: 45_000 }
    ))
})
