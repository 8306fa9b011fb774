/**
 * Runs the cases: public failures of other tools, each with the right behaviour, as tests whose titles begin with the case's id. Every case of a covered kind
 * must have one. A case passes if all its tests do; where ours differs from what the case calls right, its line says why.
 *
 *   npm run cases
 */
import { spawnSync } from "node:child_process"
import { readFileSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { Schema } from "effect"
import { differences } from "./differences.ts"

const covered: ReadonlySet<string> = new Set([
  "budget-admission",
  "cost-calculation",
  "usage-missing",
  "unaccounted-spend",
  "retry-classification",
  "retry-amplification",
  "rate-limit",
  "circuit-breaker",
  "transport-hang",
  "model-output",
  "secrets-logs",
  "checkpoint-resume",
  "source-mutation",
  "cache-poisoning",
  "cache-key",
  "row-integrity",
  "exclusive-run",
  "concurrency-runtime",
  "storage",
  "memory-eventloop",
  "time",
  "unicode-text",
  "csv-input",
  "jsonl-input",
  "ids-numbers",
  "empty-input",
  "process-signals",
  "injection",
  "cli-output",
  "http-api"
])

const Index = Schema.Array(Schema.Struct({ id: Schema.String, slug: Schema.String, kind: Schema.String }))
const Report = Schema.Struct({
  testResults: Schema.Array(
    Schema.Struct({
      name: Schema.String,
      status: Schema.String,
      assertionResults: Schema.Array(
        Schema.Struct({ title: Schema.String, status: Schema.String, failureMessages: Schema.Array(Schema.String) })
      )
    })
  )
})

const root = fileURLToPath(new URL("../..", import.meta.url))
const index = Schema.decodeUnknownSync(Schema.parseJson(Index))(
  readFileSync(join(root, "test", "cases", "index.json"), "utf8")
)

const vitest = join(root, "node_modules", "vitest", "vitest.mjs")
const { stdout, stderr } = spawnSync(process.execPath, [vitest, "run", "test/cases", "--reporter=json"], {
  cwd: root,
  encoding: "utf8",
  maxBuffer: 256 * 1024 * 1024
})
const json = /\{"numTotalTestSuites".*\}/s.exec(stdout)?.[0]
if (json === undefined) throw new Error(`the tests did not run: ${stderr}${stdout}`)
const { testResults } = Schema.decodeUnknownSync(Schema.parseJson(Report))(json)
const tests = testResults.flatMap(({ assertionResults }) => assertionResults)

const idIn = (title: string): string => /^B\d+\b/.exec(title)?.[0] ?? ""
const wrong: Array<string> = []

const outcomeOf = (id: string): string => {
  const own = tests.filter(({ title }) => idIn(title) === id)
  if (own.length === 0) return "no test"
  // A test that was skipped proves nothing.
  const bad = own.filter(({ status }) => status !== "passed")
  for (const { failureMessages, status, title } of bad) {
    wrong.push(`${title}: ${failureMessages[0]?.split("\n")[0]?.slice(0, 200) ?? status}`)
  }
  if (bad.length > 0) return "failed"
  return id in differences ? "passed, differs" : "passed"
}

const cases = index.filter(({ kind }) => covered.has(kind))
let passed = 0
for (const { id, slug } of cases) {
  const outcome = outcomeOf(id)
  if (outcome.startsWith("passed")) passed++
  if (outcome === "no test") wrong.push(`${id} ${slug}: a covered case has no test`)
  const why = outcome === "passed, differs" ? differences[id] : ""
  console.log(`${id.padEnd(5)} ${slug.padEnd(22)} ${outcome.padEnd(16)} ${why}`.trimEnd())
}

const known = new Set(index.map(({ id }) => id))
for (const { title } of tests) if (!known.has(idIn(title))) wrong.push(`${title}: its title begins with no case's id`)
for (const id of Object.keys(differences)) if (!known.has(id)) wrong.push(`${id}: a difference from no known case`)
for (const { assertionResults, name, status } of testResults) {
  if (status !== "passed" && assertionResults.length === 0) wrong.push(`${name}: the file could not be run`)
}

for (const line of wrong) console.log(`\n${line}`)
console.log(`\n${passed} of ${cases.length} cases`)
process.exitCode = wrong.length === 0 ? 0 : 1
