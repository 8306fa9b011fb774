/**
 * Changes the modules on which money depends in each small way that Stryker knows, and runs the tests that answer for the module: a change that no test sees is a hole
 * in the tests, or makes no difference. docs/mutation.md has the scores and names the survivors.
 *
 *   npm run mutation [-- --mutate src/services/Ledger.ts]   one module, or several with commas; without it all, for an hour or more
 */
import { spawn } from "node:child_process"
import { mkdtempSync, readFileSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { parseArgs } from "node:util"

const root = fileURLToPath(new URL("../..", import.meta.url))
const LEAST = 90

/**
 * A module and the tests that answer for it. Only the fast ones that are about it: a survivor runs them all. What more tests would see besides, does not count, so a score is a
 * lower bound.
 */
const modules: Readonly<Record<string, ReadonlyArray<string>>> = {
  "src/services/Ledger.ts": ["test/services/Ledger.test.ts", "test/services/Orders.test.ts"],
  "src/services/Book.ts": [
    "test/services/Book.test.ts",
    "test/services/Ledger.test.ts",
    "test/services/Orders.test.ts"
  ],
  "src/services/Group.ts": ["test/services/Book.test.ts", "test/services/Ledger.test.ts"],
  "src/services/Orders.ts": ["test/services/Orders.test.ts", "test/services/Book.test.ts"],
  "src/services/Admission.ts": ["test/services/AdmissionSteps.test.ts"],
  "src/services/Identity.ts": ["test/services/Identity.test.ts"],
  "src/services/Retry.ts": ["test/services/Retry.test.ts"],
  "src/programs/Tries.ts": ["test/programs/Tries.test.ts"],
  "src/services/Checkpointer.ts": ["test/services/Checkpointer.test.ts"],
  "src/services/Journal.ts": ["test/services/Journal.test.ts"],
  "src/services/CircuitBreaker.ts": [
    "test/services/CircuitBreaker.test.ts",
    "test/services/CircuitBreakerEdges.test.ts"
  ],
  "src/services/Classify.ts": ["test/services/Classify.test.ts", "test/services/ClassifyEdges.test.ts"],
  "src/services/Budget.ts": ["test/services/Budget.test.ts"],
  "src/services/Meter.ts": ["test/services/Meter.test.ts"]
}

interface Mutant {
  readonly status: string
  readonly static?: boolean
  readonly testsCompleted?: number
}

interface Report {
  readonly files: Readonly<Record<string, { readonly mutants: ReadonlyArray<Mutant> }>>
}

/** Stryker's word for it; but where a module no longer loads, it sees no test fail, as there is none, and says that the change survived. */
const statusOf = ({ static: isStatic, status, testsCompleted }: Mutant): string =>
  status === "Survived" && isStatic === true && testsCompleted === 0 ? "Killed" : status

/** Runs Stryker on one module, below the repository's root, which it copies; gives its report and how long it took. */
const mutate = async (module: string, tests: ReadonlyArray<string>, report: string) => {
  const begun = Date.now()
  const stryker = join(root, "node_modules", "@stryker-mutator", "core", "bin", "stryker.js")
  const args = [stryker, "run", "test/mutation/stryker.config.mjs", "--mutate", module]
  const env = { ...process.env, LONGHAUL_MUTATION_TESTS: tests.join(","), LONGHAUL_MUTATION_REPORT: report }
  const child = spawn(process.execPath, args, { cwd: root, env, stdio: ["ignore", "inherit", "inherit"] })
  const code = await new Promise((resolve) => child.on("close", resolve))
  if (code !== 0) throw new Error(`Stryker ended with ${code} on ${module}`)
  const read: Report = JSON.parse(readFileSync(report, "utf8"))
  return { mutants: read.files[module]?.mutants ?? [], minutes: (Date.now() - begun) / 60_000 }
}

const { values } = parseArgs({ options: { mutate: { type: "string" } } })
const chosen = values.mutate?.split(",") ?? Object.keys(modules)
const reports = mkdtempSync(join(tmpdir(), "longhaul-mutation-"))

const lines = ["| module | mutants | killed | timed out | survived | no coverage | score | minutes |"]
lines.push("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
let failed = chosen.length === 0
for (const module of chosen) {
  const tests = modules[module]
  if (tests === undefined) throw new Error(`no tests are named for ${module}: add it to test/mutation/mutation.ts`)
  const { minutes, mutants } = await mutate(module, tests, join(reports, "report.json"))
  const count = (status: string) => mutants.filter((mutant) => statusOf(mutant) === status).length
  const [killed, timeout, survived, uncovered] = ["Killed", "Timeout", "Survived", "NoCoverage"].map(count)
  const found = (killed ?? 0) + (timeout ?? 0)
  const all = found + (survived ?? 0) + (uncovered ?? 0)
  const score = (100 * found) / all
  // Also where there is none at all.
  if (!(score >= LEAST)) failed = true
  const cells = [module, all, killed, timeout, survived, uncovered, `${score.toFixed(1)} %`, minutes.toFixed(1)]
  lines.push(`| ${cells.join(" | ")} |`)
}
rmSync(reports, { recursive: true, force: true })
console.log(lines.join("\n"))
if (failed) console.log(`below ${LEAST} %`)
process.exitCode = failed ? 1 : 0
