/**
 * Plants each bug of bugs.ts in a copy of the sources and runs the test that is to catch it. A bug that no test sees is a hole; a text that is no longer found
 * means that the table must follow the code.
 *
 *   npm run teeth [-- I27 I10 | 2/3]   bugs by their ids, or the second third of them all
 */
import { execFile } from "node:child_process"
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { promisify } from "node:util"
import { type Bug, bugs } from "./bugs.ts"

const root = fileURLToPath(new URL("../..", import.meta.url))
const args = process.argv.slice(2)
const [, share, shares] = /^(\d+)\/(\d+)$/.exec(args[0] ?? "") ?? []
const isChosen = ({ id }: Bug, index: number): boolean =>
  shares === undefined ? args.length === 0 || args.includes(id) : index % Number(shares) === Number(share) - 1
const chosen = bugs.filter(isChosen)

/** A copy of the sources to plant bugs in. */
const makeCopy = (): string => {
  const copy = mkdtempSync(join(tmpdir(), "longhaul-teeth-"))
  for (const part of ["src", "test", "docs", "examples", "package.json", "tsconfig.json"]) {
    cpSync(join(root, part), join(copy, part), { recursive: true })
  }
  symlinkSync(join(root, "node_modules"), join(copy, "node_modules"))
  // Without the build: no test here runs the packed command.
  const config = readFileSync(join(root, "vitest.config.ts"), "utf8").replace(/^\s*globalSetup.*$/m, "")
  writeFileSync(join(copy, "vitest.config.ts"), config)
  return copy
}

const vitest = join(root, "node_modules", "vitest", "vitest.mjs")
const run = promisify(execFile)

/** Whether the test of this title, in this file, is green. Running no test counts as red, so a wrong title is found out unplanted. */
const green = async (copy: string, file: string, title: string): Promise<boolean> => {
  const args = [vitest, "run", file, "-t", escape(title), "--reporter=json"]
  const options = { cwd: copy, timeout: 300_000, maxBuffer: 2 ** 28 }
  const { stdout } = await run(process.execPath, args, options).catch((error: { readonly stdout: string }) => error)
  const report = /\{"numTotalTestSuites".*\}/s.exec(stdout)?.[0]
  if (report === undefined) return false
  const { numFailedTests, numFailedTestSuites, numPassedTests } = JSON.parse(report)
  return numPassedTests > 0 && numFailedTests === 0 && numFailedTestSuites === 0
}

const escape = (title: string) => title.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")

const plant = (copy: string, { file, find, replace }: Bug): (() => void) => {
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
const healthy = new Map<string, Promise<boolean>>()

/** What the test says of a bug, planted in a copy. */
const judge = async (copy: string, bug: Bug): Promise<string> => {
  const test = `${bug.test} "${bug.title}"`
  const unplanted = healthy.get(test) ?? green(copy, bug.test, bug.title)
  healthy.set(test, unplanted)
  if (!(await unplanted)) return "the test is not green without the bug"
  const heal = plant(copy, bug)
  const missed = await green(copy, bug.test, bug.title)
  heal()
  if (!missed) caught++
  return missed ? "NOT SEEN" : "red, as it should be"
}

// One of two cores each.
const left = [...chosen]
const worker = async (): Promise<void> => {
  const copy = makeCopy()
  for (let bug = left.shift(); bug !== undefined; bug = left.shift()) {
    const said = await judge(copy, bug).catch((error: unknown) => String(error))
    console.log(`${bug.id.padEnd(4)} ${bug.bug}: ${said}`)
  }
  rmSync(copy, { recursive: true, force: true })
}
await Promise.all([worker(), worker()])
console.log(`${caught} of ${chosen.length}`)
process.exitCode = caught === chosen.length && chosen.length > 0 ? 0 : 1
