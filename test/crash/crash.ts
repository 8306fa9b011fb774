/**
 * Kills runs with SIGKILL while a provider in another process keeps its own bill, resumes them, and checks the book against the bill after every kill and at the end.
 * Every second run is killed at random instants (every tenth run is the real command, from `dist/`), the others kill themselves at a labelled point. Half of the runs
 * have a cap that binds before the rows are done, half have room for all that the kills cost.
 *
 *   npm run crash -- --kills 1000 [--rows 300] [--concurrency 8] [--budget 50] [--seed 1] [--clean] [--plant check-then-charge] [--export]
 *
 * `--rows`: in each run. `--budget`: for every run, in dollars. `--clean`: a provider without faults. `--plant`: the same against a design without holds, which must be
 * found out. `--export`: every run has the same rows and room for all of them, and their exported files must be one, whatever the kills; then as many kills of `longhaul export` itself, to
 * each kind of target in turns. Exit 0 only if every check held.
 */
import { mkdtempSync, rmSync } from "node:fs"
import { availableParallelism, tmpdir } from "node:os"
import { join } from "node:path"
import { parseArgs } from "node:util"
import { Effect, Random } from "effect"
import { startFakeProvider } from "../support/startFakeProvider.ts"
import { killExports } from "./exports.ts"
import { isPlant } from "./order.ts"
import { points } from "./points.ts"
import { bundleChild } from "./process.ts"
import { type Kind, type Lane, type Plan, type Report, sweepOne } from "./sweep.ts"

const number = (text: string | undefined, otherwise: number) => (text === undefined ? otherwise : Number(text))
const text = { type: "string" } as const
const { values: flags } = parseArgs({
  options: {
    kills: text,
    rows: text,
    concurrency: text,
    budget: text,
    seed: text,
    plant: text,
    clean: { type: "boolean" },
    export: { type: "boolean" }
  }
})
const kills = number(flags.kills, 200)
const rows = number(flags.rows, 300)
const concurrency = number(flags.concurrency, 8)
const seed = number(flags.seed, 1)
if (flags.plant !== undefined && !isPlant(flags.plant)) throw new Error(`there is no plant ${flags.plant}`)
const plant = flags.plant
const alike = flags.export === true

/** The command takes three seconds of a core to start: it gets fewer. */
const killsOf = (kind: Kind): number => (kind === "command" ? 3 : 6)
const faults = flags.clean === true ? {} : { rate429: 0.03, billed500: 0.02, billedReset: 0.01, billedHang: 0.003 }
const labels = Object.keys(points)
const isKind = (label: string | undefined): label is Kind =>
  label === "random" || label === "command" || (label !== undefined && label in points)

/** The planned bug is in the light child only: the command stands for itself. */
const kindOf = (index: number): Kind => {
  const label = index % 10 === 0 && plant === undefined ? "command" : "random"
  const point = labels[((index - 1) / 2) % labels.length]
  return index % 2 === 1 && isKind(point) ? point : label
}

const planOf = (index: number, whole: number, killsLeft: number): Plan => {
  const roomy = alike || index % 4 >= 2
  const budget = flags.budget === undefined ? (whole * (roomy ? 2 : 0.9)) / 1e9 : Number(flags.budget)
  const kind = kindOf(index)
  const kills = Math.min(killsOf(kind), killsLeft)
  return { index, kind, rows, concurrency, budget, roomy, kills, plant, alike }
}

const laneOf = async (directory: string, bundle: string, n: number): Promise<Lane> => ({
  directory,
  bundle,
  provider: await startFakeProvider({ latency: 25, seed: seed + n, ...faults }),
  random: randomOf(seed + n)
})

const randomOf = (seed: number) => {
  const random = Random.make(seed)
  return () => Effect.runSync(random.next)
}

/** What the rows cost if nothing goes wrong. */
const costOf = async (lane: Lane): Promise<number> => {
  const clean = await startFakeProvider({ latency: 1 })
  const plan: Plan = { ...planOf(99, 1, 0), kind: "random", budget: 1_000, roomy: true, plant: undefined }
  const { broken } = await sweepOne({ ...lane, provider: clean }, plan)
  if (broken.length > 0) throw new Error(`a run without a kill is broken: ${broken.join("\n")}`)
  const { billedNano } = await clean.bill()
  await clean.stop()
  return billedNano
}

const reports: Array<Report> = []
let next = 0
let wanted = kills
let exports: Awaited<ReturnType<typeof killExports>> = new Map()
/** Takes runs until the kills are done. A run that ended before its last kill gives back what it did not use. */
const drive = async (lane: Lane, whole: number): Promise<void> => {
  while (wanted > 0) {
    const plan = planOf(next++, whole, wanted)
    wanted -= plan.kills
    const report = await sweepOne(lane, plan)
    wanted += plan.kills - report.kills
    reports.push(report)
  }
}

const directory = mkdtempSync(join(tmpdir(), "longhaul-crash-"))
const bundle = bundleChild()
const lanes = await Promise.all(
  Array.from({ length: Math.min(2, availableParallelism()) }, (_, n) => laneOf(directory, bundle, n))
)
const began = performance.now()
try {
  const whole = await costOf(lanes[0] ?? (await laneOf(directory, bundle, 0)))
  await Promise.all(lanes.map((lane) => drive(lane, whole)))
  if (alike) {
    const randoms = lanes.map(({ random }) => random)
    exports = await killExports(join(directory, "exports"), kills, randoms)
  }
} finally {
  await Promise.all(lanes.map(({ provider }) => provider.stop()))
  rmSync(bundle, { force: true })
  rmSync(directory, { recursive: true, force: true })
}

const cells = (parts: ReadonlyArray<string | number>) =>
  `| ${parts.map((part, i) => (i === 0 ? String(part).padEnd(46) : String(part).padStart(6))).join(" | ")} |`
const rowFor = (name: string, of: ReadonlyArray<Report>, seconds: number) => {
  const sum = (pick: (report: Report) => number) => of.reduce((total, report) => total + pick(report), 0)
  const most = Math.max(0, ...of.map((report) => report.mostUncertain))
  return cells([
    name,
    of.length,
    sum((report) => report.kills),
    sum((report) => report.overshoots),
    sum((report) => report.short),
    sum((report) => report.lost),
    most,
    seconds.toFixed(0)
  ])
}
const kinds: ReadonlyArray<readonly [Kind, string]> = [
  ["random", "at a random instant"],
  ["command", "at a random instant, the command"],
  ...Object.entries(points).flatMap(([kind, what]) => (isKind(kind) ? [[kind, `${kind}: ${what}`] as const] : []))
]

console.log(cells(["point", "runs", "kills", "over", "short", "lost", "most", "s"]))
console.log(cells(["---", ...Array.from({ length: 7 }, () => "---:")]))
for (const [kind, what] of kinds) {
  const of = reports.filter((report) => report.kind === kind)
  const seconds = of.reduce((total, report) => total + report.seconds, 0)
  if (of.length > 0) console.log(rowFor(what, of, seconds))
}
console.log(rowFor("all", reports, (performance.now() - began) / 1000))
console.log(
  "over: times the bill or the book passed the cap; short: times the book counted less than the bill; lost: rows without their own answer, where the cap has room for all; most: most calls that one kill made uncertain"
)
const complete = reports.flatMap(({ sha256 }) => sha256 ?? [])
const hashes = new Set(complete)
if (alike) console.log(`\nexports of ${complete.length} complete runs: ${hashes.size} sha256`)
for (const [target, { hashes, hits, kills }] of exports) {
  console.log(`export to ${target}: ${kills} kills, ${hits} of them in mid-export; ${hashes.size} sha256 after them`)
}
const broken = [
  ...(alike && hashes.size !== 1 ? [`the runs' exports have ${hashes.size} sha256: ${[...hashes].join(", ")}`] : []),
  ...reports.flatMap((report) => report.broken),
  ...[...exports.values()].flatMap((report) => report.broken)
]
for (const line of broken.slice(0, 40)) console.log(`BROKEN ${line}`)
if (broken.length > 40) console.log(`BROKEN and ${broken.length - 40} more`)
process.exitCode = broken.length === 0 ? 0 : 1
