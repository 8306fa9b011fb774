/**
 * What the library costs a row, beside loops written by hand.
 *
 *   npm run bench -- [--rows 10000] [--c 8,64] [--reps 3] [--tail-rows 3000] [--json]
 *
 * Every figure is taken in a fresh process, from a bundle, on the disk of this directory. The repetitions go round robin, so that all loops see the same noise: a
 * ratio is the median of the ratios within each round. CPU counts all threads, so it can be above the wall time. The provider answers on the next turn of the event loop; the load of the manifest is not counted. Goals are
 * shown, never asserted.
 */
import { execFile } from "node:child_process"
import { mkdirSync, mkdtempSync, rmSync } from "node:fs"
import { loadavg } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { parseArgs, promisify } from "node:util"
import { build } from "esbuild"
import type { Measure } from "./child.ts"
import { type Took, tail } from "./work.ts"

const text = { type: "string" } as const
const { values: flags } = parseArgs({
  options: { rows: text, c: text, reps: text, "tail-rows": text, json: { type: "boolean" } }
})
const rows = Number(flags.rows ?? 10_000)
const concurrencies = (flags.c ?? "8,64").split(",").map(Number)
const reps = Number(flags.reps ?? 3)
const tailRows = Number(flags["tail-rows"] ?? 3_000)
const latency = { p50: 20, p99: 400 }

const run = promisify(execFile)
// Beside the packages, which the bundle imports, and on the same disk as the project: /tmp may be memory.
const parent = fileURLToPath(new URL("../node_modules/.cache", import.meta.url))
mkdirSync(parent, { recursive: true })
const directory = mkdtempSync(join(parent, "longhaul-bench-"))
const bundle = join(directory, "child.mjs")

/** One measurement. */
const take = async (measure: Measure): Promise<Took> => {
  const own = mkdtempSync(join(directory, "run-"))
  try {
    const { stdout } = await run(process.execPath, [bundle, JSON.stringify(measure), own])
    const took: Took = JSON.parse(stdout)
    return took
  } finally {
    rmSync(own, { recursive: true })
  }
}

const median = (values: ReadonlyArray<number>): number => {
  const sorted = [...values].sort((a, b) => a - b)
  return ((sorted[Math.floor((sorted.length - 1) / 2)] ?? 0) + (sorted[Math.ceil((sorted.length - 1) / 2)] ?? 0)) / 2
}

interface Series {
  readonly name: string
  readonly measure: Measure
  /** Microseconds a row, one for each round. */
  readonly us: Array<number>
  /** The same on the processors. */
  readonly cpuUs: Array<number>
}

const series = (name: string, measure: Partial<Measure> & Pick<Measure, "loop">): Series => ({
  name,
  measure: { rows, concurrency: 1, synchronous: "FULL", ...measure },
  us: [],
  cpuUs: []
})

interface Goal {
  readonly name: string
  readonly value: number
  readonly goal?: number | undefined
}

/** All loops at one concurrency, and what is compared. */
const at = (concurrency: number) => {
  const of = (name: string, measure: Partial<Measure> & Pick<Measure, "loop">) =>
    series(`${name}, C = ${concurrency}`, { concurrency, ...measure })
  const memory = of("ours, memory", { loop: "memory" })
  const sqlite = of("ours, SQLite FULL", { loop: "sqlite" })
  const more = of(`ours, SQLite FULL, ${4 * rows} rows`, { loop: "sqlite", rows: 4 * rows })
  const naiveNormal = of("by hand, no holds, NORMAL", { loop: "naive", synchronous: "NORMAL" })
  const naive = of("by hand, no holds, FULL", { loop: "naive" })
  const protocolNormal = of("by hand, our protocol, NORMAL", { loop: "protocol", synchronous: "NORMAL" })
  const protocol = of("by hand, our protocol, FULL", { loop: "protocol" })
  return {
    all: [memory, sqlite, more, naiveNormal, naive, protocolNormal, protocol],
    goals: (): ReadonlyArray<Goal> => [
      { name: `ours / our protocol by hand, both FULL, C = ${concurrency}`, value: ratio(sqlite, protocol), goal: 2.5 },
      { name: `the same in CPU time, C = ${concurrency}`, value: ratios(sqlite.cpuUs, protocol.cpuUs) },
      { name: `ours / no holds by hand, both FULL, C = ${concurrency}`, value: ratio(sqlite, naive), goal: 1 },
      { name: `ours FULL / no holds by hand NORMAL, C = ${concurrency}`, value: ratio(sqlite, naiveNormal) },
      { name: `µs a row at ${4 * rows} rows / at ${rows}, C = ${concurrency}`, value: ratio(more, sqlite), goal: 1.2 }
    ]
  }
}

const ratios = (a: ReadonlyArray<number>, b: ReadonlyArray<number>): number =>
  median(a.map((us, round) => us / (b[round] ?? Number.NaN)))
const ratio = (a: Series, b: Series): number => ratios(a.us, b.us)

/** Wall time over the ideal, with a long tail of latencies. */
const tailGoal = async (concurrency: number): Promise<Goal> => {
  const latencies = tail(tailRows, latency.p50, latency.p99)
  const sum = latencies.reduce((total, ms) => total + ms, 0)
  const ideal = Math.max(sum / concurrency, ...latencies)
  const { ms } = await take({ loop: "sqlite", rows: tailRows, concurrency, synchronous: "FULL", latency })
  return {
    name: `wall / ideal, ${tailRows} rows of 20 ms (p99 400 ms), C = ${concurrency}`,
    value: ms / ideal,
    goal: concurrency === 8 ? 1.15 : undefined
  }
}

const table = (head: ReadonlyArray<string>, lines: ReadonlyArray<ReadonlyArray<string>>): string =>
  [head, head.map((_, i) => (i === 0 ? "---" : "---:")), ...lines].map((cells) => `| ${cells.join(" | ")} |`).join("\n")

const measure = async () => {
  await build({
    entryPoints: [fileURLToPath(new URL("./child.ts", import.meta.url))],
    outfile: bundle,
    bundle: true,
    platform: "node",
    format: "esm",
    packages: "external",
    alias: { longhaul: source("index.ts"), "longhaul/sqlite": source("layers/Sqlite.ts") }
  })
  const load = loadavg().map((average) => Number(average.toFixed(2)))
  const floor = series("one-row commits FULL (the fsync floor), a commit", { loop: "floor", rows: 2_000 })
  const levels = concurrencies.map(at)
  const all = [floor, ...levels.flatMap((level) => level.all)]
  for (let round = 0; round < reps; round++) {
    for (const one of all) {
      const { cpuMs, ms } = await take(one.measure)
      one.us.push((ms * 1000) / one.measure.rows)
      one.cpuUs.push((cpuMs * 1000) / one.measure.rows)
      process.stderr.write(".")
    }
  }
  const goals = levels.flatMap((level) => level.goals())
  for (const concurrency of concurrencies) goals.push(await tailGoal(concurrency))
  process.stderr.write("\n")
  return {
    node: process.version,
    load,
    rows,
    reps,
    figures: all.map(({ cpuUs, name, us }) => ({
      name,
      median: median(us),
      min: Math.min(...us),
      cpu: median(cpuUs),
      us,
      cpuUs
    })),
    goals: goals.map((one) => ({ ...one, met: one.goal === undefined ? undefined : one.value <= one.goal }))
  }
}

const source = (file: string) => fileURLToPath(new URL(`../src/${file}`, import.meta.url))

const markdown = ({ figures, goals, load, node }: Awaited<ReturnType<typeof measure>>): string =>
  [
    `${rows} rows, ${reps} rounds, node ${node}, load ${load.join(" ")}`,
    table(
      ["µs a row", "median", "min", "CPU"],
      figures.map((one) => [one.name, one.median.toFixed(0), one.min.toFixed(0), one.cpu.toFixed(0)])
    ),
    table(
      ["", "value", "goal", "met"],
      goals.map(({ goal, met, name, value }) => [
        name,
        value.toFixed(2),
        goal === undefined ? "" : `<= ${goal}`,
        met === undefined ? "" : met ? "yes" : "no"
      ])
    )
  ].join("\n\n")

try {
  const measured = await measure()
  process.stdout.write(`${flags.json === true ? JSON.stringify(measured, null, 2) : markdown(measured)}\n`)
} finally {
  rmSync(directory, { recursive: true })
}
