/**
 * Plants each bug of bugs.ts in a copy of the sources and runs the test that is to catch it. A bug that no test sees is a hole; a text that is no longer found
 * means that the table must follow the code.
 *
 *   npm run teeth [-- I27 I10]
 */
import { spawnSync } from "node:child_process"
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { type Bug, bugs } from "./bugs.ts"

const root = fileURLToPath(new URL("../..", import.meta.url))
const wanted = new Set(process.argv.slice(2))
const chosen = bugs.filter((bug) => wanted.size === 0 || wanted.has(bug.id))

const copy = mkdtempSync(join(tmpdir(), "longhaul-teeth-"))
for (const part of ["src", "test", "docs", "examples", "package.json", "tsconfig.json"]) {
  cpSync(join(root, part), join(copy, part), { recursive: true })
}
symlinkSync(join(root, "node_modules"), join(copy, "node_modules"))
// Without the build: no test here runs the packed command.
const config = readFileSync(join(root, "vitest.config.ts"), "utf8").replace(/^\s*globalSetup.*$/m, "")
writeFileSync(join(copy, "vitest.config.ts"), config)

/** Whether the test of this title, in this file, is green. Running no test counts as red, so a wrong title is found out unplanted. */
const green = (file: string, title: string): boolean => {
  const vitest = join(root, "node_modules", "vitest", "vitest.mjs")
  const args = [vitest, "run", file, "-t", escape(title), "--reporter=json"]
  const { stdout } = spawnSync(process.execPath, args, { cwd: copy, encoding: "utf8", timeout: 300_000 })
  const report = /\{"numTotalTestSuites".*\}/s.exec(stdout)?.[0]
  if (report === undefined) return false
  const { numFailedTests, numFailedTestSuites, numPassedTests } = JSON.parse(report)
  return numPassedTests > 0 && numFailedTests === 0 && numFailedTestSuites === 0
}

const escape = (title: string) => title.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")

const plant = ({ file, find, replace }: Bug): (() => void) => {
  const path = join(copy, file)
  const source = readFileSync(path, "utf8")
  if (source.split(find).length !== 2) throw new Error(`${file} does not hold this text exactly once: ${find}`)
  writeFileSync(
    path,
    source.replace(find, () => replace)
  )
  return () => writeFileSync(path, source)
}

let caught = 0
const healthy = new Map<string, boolean>()
for (const bug of chosen) {
  const test = `${bug.test} "${bug.title}"`
  if (!healthy.has(test)) healthy.set(test, green(bug.test, bug.title))
  let said = "the test is not green without the bug"
  if (healthy.get(test) === true) {
    try {
      const heal = plant(bug)
      const missed = green(bug.test, bug.title)
      heal()
      if (!missed) caught++
      said = missed ? "NOT SEEN" : "red, as it should be"
    } catch (error) {
      said = error instanceof Error ? error.message : String(error)
    }
  }
  console.log(`${bug.id.padEnd(4)} ${bug.bug}: ${said}`)
}
rmSync(copy, { recursive: true, force: true })
console.log(`${caught} of ${chosen.length}`)
process.exitCode = caught === chosen.length && chosen.length > 0 ? 0 : 1
