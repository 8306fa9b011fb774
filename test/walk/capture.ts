/**
 * Makes docs/walk.md anew: an operator's walk through the real command on real terminals, over a simulated provider. Needs tmux; takes about a minute.
 *
 *   npm run docs:capture              # the walk
 *   npm run docs:capture -- --check   # only whether each picture named in steps.ts is there and shows what it must
 */
import { execFileSync } from "node:child_process"
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync
} from "node:fs"
import { hostname, tmpdir, userInfo } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { Effect, Stream } from "effect"
import { vendors } from "../../examples/vendors/generate.ts"
import * as Export from "../../src/layers/Export.ts"
import { type Step, steps, variants } from "./steps.ts"
import { type Terminals, terminals } from "./terminal.ts"

const root = fileURLToPath(new URL("../../", import.meta.url))
const page = join(root, "docs", "walk.md")
const pictureOf = (name: string) => join(root, "docs", "walk", `${name}.png`)

/** A place as an operator has it: the job, its rows, the packages, and the command on the path. */
const place = async (now: Date): Promise<string> => {
  const cwd = mkdtempSync(join(tmpdir(), "longhaul-walk-"))
  mkdirSync(join(cwd, "node_modules"))
  mkdirSync(join(cwd, "bin"))
  symlinkSync(root, join(cwd, "node_modules", "longhaul"))
  symlinkSync(join(root, "node_modules", "effect"), join(cwd, "node_modules", "effect"))
  writeFileSync(join(cwd, "package.json"), '{ "type": "module" }\n')
  const example = "../../examples/vendors/job.ts"
  const job = readFileSync(join(root, "test", "walk", "job.ts"), "utf8")
  writeFileSync(join(cwd, "job.ts"), job.replace(example, "./vendors.ts"))
  copyFileSync(join(root, "test", "walk", example), join(cwd, "vendors.ts"))
  const main = join(root, "dist", "programs", "main.js")
  writeFileSync(join(cwd, "bin", "longhaul"), `#!/bin/sh\nexec "${process.execPath}" "${main}" "$@"\n`, { mode: 0o755 })
  const rows = Stream.fromIterable(vendors({ rows: 2_000, seed: 1, now }))
  await Effect.runPromise(Export.writeCsv(join(cwd, "vendors.csv"), ["id", "name", "description", "updatedAt"], rows))
  return cwd
}

/** The line that is drawn in place. */
const lastOf = (screen: string): string => screen.split("\n").at(-1) ?? ""

/** What the terminals showed, by name. */
const walked = async ({ open }: Terminals): Promise<ReadonlyMap<string, string>> => {
  const seen = new Map<string, string>()
  const first = open("first")
  const second = open("second")
  const typed = async (name: string, line: string) => {
    await second.clear()
    second.type(line)
    seen.set(name, await second.ends())
  }

  await typed("plan", "longhaul plan job.ts --source vendors.csv --budget 0.02 --llm simulated")

  await first.clear()
  first.type("longhaul run job.ts --source vendors.csv --budget 0.02 --llm simulated --canary 100 --run-id vendors-w27")
  seen.set("canary", await first.shows("the run waits"))
  await typed("approve", "longhaul approve vendors-w27")
  seen.set("live", lastOf(await first.shows(/8 workers active · est\. .* in all/)))

  await typed("pause", 'longhaul pause vendors-w27 -m "the tone of row 12"')
  seen.set("paused", lastOf(await first.shows(/the tone of row 12.* 0 (?:workers )?active/)))
  const worker = /process (\d+) on/.exec(seen.get("pause") ?? "")?.[1]
  if (worker === undefined) throw new Error("pause did not say which process works on the run")

  await second.clear()
  second.type("longhaul unpause vendors-w27")
  await second.ends()
  second.type("longhaul watch vendors-w27")
  seen.set("watch", await second.shows(/[1-8] workers? active · est\. \d.* in all/))
  second.key("C-c")
  await second.shows(/\$$/)

  await second.clear()
  second.type(`kill -9 ${worker}`)
  await first.shows("Killed")
  second.type("longhaul status vendors-w27")
  await second.shows("last checkpoint")
  seen.set("kill", await second.ends())

  await first.clear()
  first.type('longhaul resume; echo "exit code $?"')
  seen.set("resume", await first.shows(/workers? active .* uncertain/))
  await first.shows("exit code")
  seen.set("cap", await first.ends())

  await typed("raise", "longhaul set vendors-w27 --budget 0.10")
  await first.clear()
  first.type('longhaul resume vendors-w27; echo "exit code $?"')
  await first.shows("exit code")
  seen.set("done", await first.ends())

  await typed("receipt", "longhaul receipt vendors-w27")
  await typed("failures", "longhaul failures vendors-w27")
  await second.clear()
  second.type("longhaul export vendors-w27 --out rated.parquet")
  await second.ends()
  second.type("longhaul export vendors-w27 --out rated.csv && head -3 rated.csv")
  await second.shows("longhaul_status")
  seen.set("export", await second.ends())
  return seen
}

/** What differs from machine to machine and is not the point has a fixed form; all is moved to a morning of its own, in whole seconds. */
const scrubbed = (seen: ReadonlyMap<string, string>, cwd: string, now: Date): ReadonlyMap<string, string> => {
  const time = /\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z/g
  const moved = (at: string) => Date.parse("2026-07-03T09:00:00.000Z") + Date.parse(at) - now.getTime()
  const own = [
    [`${userInfo().username}@${hostname()}`, "ada@desk"],
    [` on ${hostname()} `, " on desk "],
    [`${cwd}/`, ""],
    [cwd, "."]
  ] as const
  const clean = (text: string) =>
    own
      .reduce((rest, [from, to]) => rest.replaceAll(from, to), text)
      .replaceAll(/(process |kill -9 )\d+/g, "$14242")
      .replaceAll(time, (at) => new Date(Math.floor(moved(at) / 1000) * 1000).toISOString())
  return new Map([...seen].map(([name, text]) => [name, clean(text)]))
}

const head = `# An operator's walk

One run from its plan to its export, as two terminals show it. The provider is simulated, so that it costs nothing and takes a minute; all else is the real
command. \`npm run docs:capture\` makes this page anew: names of machines, process ids and dates have a fixed form in it, the figures are those of that run.
`

const marked = (name: string) => `<!-- ${name} -->`

const pictured = ({ name, title }: Step, size: string, width: number): string =>
  `<picture><source media="(prefers-color-scheme: dark)" srcset="walk/${name}-${size}-dark.png"><img alt="${title}" src="walk/${name}-${size}-light.png" width="${width}"></picture>`

const render = (seen: ReadonlyMap<string, string>): string =>
  `${[
    head,
    ...steps.map((step) => {
      const picture =
        step.kind === "screenshot"
          ? `${pictured(step, "desktop", 760)}\n${pictured(step, "phone", 260)}`
          : `\`\`\`console\n${seen.get(step.name) ?? ""}\n\`\`\``
      return `## ${step.title}\n\n${step.prose}\n\n${marked(step.name)}\n${picture}\n`
    })
  ].join("\n")}`

/** What is wrong with a picture of the page, if anything. */
const problemOf = (step: Step, text: string): ReadonlyArray<string> => {
  if (step.kind === "screenshot") {
    return variants
      .filter((variant) => {
        const path = pictureOf(`${step.name}-${variant}`)
        const isPng = existsSync(path) && readFileSync(path).subarray(1, 4).toString("latin1") === "PNG"
        return !isPng || !text.includes(`walk/${step.name}-${variant}.png`)
      })
      .map((variant) => `${step.name}-${variant}: there is no such screenshot`)
  }
  const from = text.indexOf(`${marked(step.name)}\n\`\`\`console\n`)
  if (from === -1) return [`${step.name}: there is no such capture`]
  const begin = text.indexOf("console\n", from) + "console\n".length
  const shown = text.slice(begin, text.indexOf("\n```", begin - 1))
  if (shown.trim() === "") return [`${step.name}: the capture is empty`]
  return step.shows
    .filter((words) => !shown.includes(words))
    .map((words) => `${step.name}: it does not show "${words}"`)
}

const check = (): void => {
  const text = existsSync(page) ? readFileSync(page, "utf8") : ""
  const problems = steps.flatMap((step) => problemOf(step, text))
  for (const problem of problems) console.error(problem)
  console.log(`docs/walk.md: ${steps.length} pictures, ${problems.length} problems`)
  process.exitCode = problems.length === 0 ? 0 : 1
}

const make = async (): Promise<void> => {
  execFileSync("npm", ["run", "--silent", "build"], { cwd: root, stdio: "inherit" })
  const now = new Date()
  const cwd = await place(now)
  const env = {
    PATH: `${join(cwd, "bin")}:${process.env.PATH ?? ""}`,
    HOME: cwd,
    HISTFILE: "/dev/null",
    LANG: "C.UTF-8"
  }
  const screens = terminals(cwd, { columns: 140, rows: 45, env })
  try {
    writeFileSync(page, render(scrubbed(await walked(screens), cwd, now)))
  } finally {
    await screens.close()
    rmSync(cwd, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 })
  }
  execFileSync("npx", ["tsx", "test/page/capture.ts"], { cwd: root, stdio: "inherit" })
}

if (!process.argv.includes("--check")) await make()
check()
