/**
 * Proves the examples: runs each `*.example.ts` below this directory in a process of its own, and type-checks each `@example` of the doc comments in src/ with the
 * project's settings.
 *
 *   npm run examples
 */
import { spawnSync } from "node:child_process"
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { dirname, join, relative } from "node:path"
import { fileURLToPath } from "node:url"

const root = fileURLToPath(new URL("../", import.meta.url))
const scratch = join(root, ".examples")

const filesBelow = (directory: string, ending: string): ReadonlyArray<string> =>
  readdirSync(join(root, directory), { recursive: true, encoding: "utf8" })
    .filter((file) => file.endsWith(ending))
    .map((file) => join(directory, file))
    .sort()

/** Output is shown only where it says why an example failed. */
const succeeds = (name: string, command: string, args: ReadonlyArray<string>): boolean => {
  const { error, status, stderr, stdout } = spawnSync(command, args, {
    cwd: root,
    encoding: "utf8",
    stdio: ["ignore", "pipe", "pipe"],
    timeout: 120_000
  })
  const ok = status === 0
  console.log(`${ok ? "ok  " : "FAIL"} ${name}`)
  // The compiler names the extracted copy; its lines and columns are the source's.
  if (!ok) console.log(`${error?.message ?? ""}${stdout}${stderr}`.replaceAll(/^\.examples\//gm, "src/").trimEnd())
  return ok
}

const ran = filesBelow("examples", ".example.ts").map((file) =>
  succeeds(file, process.execPath, ["--import", "tsx", file])
)

/** The file with all but its nth example blanked out, so that an error's line and column are those of the doc comment. */
const examplesOf = (text: string): ReadonlyArray<string> => {
  const found: Array<string> = []
  for (const comment of text.matchAll(/\/\*\*[\s\S]*?\*\//g)) {
    const before = text.slice(0, comment.index).split("\n").length - 1
    const lines = comment[0].split("\n")
    lines.forEach((line, at) => {
      if (!/^\s*\* @example/.test(line)) return
      const rest = lines.slice(at + 1)
      const end = rest.findIndex((next) => /^\s*\* @|\*\/$/.test(next))
      const body = rest.slice(0, end).map((next) => next.replace(/^(\s*)\*/, "$1 ").trimEnd())
      found.push("\n".repeat(before + at + 1) + body.join("\n"))
    })
  }
  return found
}

rmSync(scratch, { recursive: true, force: true })
const extracted: Array<string> = []
for (const file of filesBelow("src", ".ts")) {
  const examples = examplesOf(readFileSync(join(root, file), "utf8"))
  examples.forEach((example, at) => {
    const path = join(scratch, relative("src", file).replace(/\.ts$/, at === 0 ? ".ts" : `_${at + 1}.ts`))
    mkdirSync(dirname(path), { recursive: true })
    writeFileSync(path, `${example}\nexport {}\n`)
    extracted.push(relative(scratch, path))
  })
}
// An example names values only to show them.
const settings = {
  extends: "../tsconfig.json",
  compilerOptions: { noUnusedLocals: false },
  include: [],
  files: extracted
}
writeFileSync(join(scratch, "tsconfig.json"), JSON.stringify(settings))
const checked = succeeds(
  `${extracted.length} @example blocks of src/ type-check`,
  join(root, "node_modules/.bin/tsc"),
  ["--project", ".examples", "--pretty", "false"]
)
rmSync(scratch, { recursive: true, force: true })

const failed = [...ran, checked].filter((ok) => !ok).length
console.log(`examples: ${ran.length + 1 - failed} passed, ${failed} failed`)
process.exitCode = failed > 0 ? 1 : 0
