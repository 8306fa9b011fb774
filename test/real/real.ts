/**
 * Runs the real command over real CSV files and compares each export with its input, cell by cell; then over a copy whose second row has the first one's id.
 *
 *   npm run real -- ../shared/data/*.csv
 */
import { spawnSync } from "node:child_process"
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { basename, join, resolve } from "node:path"
import { fileURLToPath } from "node:url"
import { parse } from "csv-parse/sync"

const main = fileURLToPath(new URL("../../dist/programs/main.js", import.meta.url))
const job = fileURLToPath(new URL("./job.ts", import.meta.url))
const cwd = mkdtempSync(join(tmpdir(), "longhaul-real-"))
const read = (file: string): ReadonlyArray<ReadonlyArray<string>> => parse(readFileSync(file))

const run = (source: string, [id = "", text = ""]: ReadonlyArray<string>, out: string) =>
  spawnSync(
    process.execPath,
    [main, "run", job, "--llm", "simulated", "--budget", "5", "--source", source, "--out", out, "--run-id", out],
    { cwd, encoding: "utf8", env: { ...process.env, ID_COLUMN: id, TEXT_COLUMN: text } }
  )

/** The export makes a text that a spreadsheet would run safe, with a leading `'`; everything else is byte for byte. */
const isSame = (input: string | undefined, output: string | undefined) =>
  input === output || (input !== undefined && /^\s*[-+=@]/.test(input) && `'${input}` === output)

let failed = 0
const check = (file: string, what: string, held: boolean) => {
  if (!held) failed++
  console.log(`${held ? "ok    " : "BROKEN"} ${file}: ${what}`)
}

for (const path of process.argv.slice(2)) {
  const file = basename(path)
  const [header = [], ...rows] = read(path)
  const { status, stderr } = run(resolve(path), header, `${file}.out.csv`)
  if (status !== 0) console.log(stderr)
  const [, ...exported] = status === 0 ? read(join(cwd, `${file}.out.csv`)) : []
  check(file, `${exported.length} exported rows = ${rows.length} input rows`, exported.length === rows.length)
  const same = rows.every((row, i) => row.every((cell, j) => isSame(cell, exported[i]?.[j])))
  check(file, "every cell of every row, in order", same && exported.length > 0)
  const odd = rows.flatMap(([id = ""]) => (/^(NA|NAN|TRUE|FALSE|NULL|\d+)$/i.test(id) ? [id] : []))
  const kept = odd.every((id) => exported.some((row) => row[0] === id))
  check(file, `ids that look like something else, byte-equal: ${odd.join(" ") || "none"}`, kept)

  const [first = "", second = "", third = ""] = readFileSync(path, "utf8").split("\n")
  const twice = join(cwd, `twice-${file}`)
  writeFileSync(twice, [first, second, third, second].join("\n"))
  const refused = run(twice, header, `twice-${file}.out.csv`)
  const lines = /stands on line 2 and again on line 4/.test(refused.stderr)
  check(file, "a duplicate id is refused with both lines, exit 2", refused.status === 2 && lines)
}
rmSync(cwd, { recursive: true, force: true })
process.exitCode = failed === 0 && process.argv.length > 2 ? 0 : 1
