/**
 * The simulator on jobs of a few shapes, seed after seed.
 *
 *   npm run sim -- [--seeds 2000] [--first 1] [--rows 50] [--shape plain] [--exhaustive] [--plant 1|2|3]
 *
 * `--plant`: with a bug that loses money: 1 the cap is compared with what is spent only, 2 a dead worker's calls are forgotten, 3 each answer costs a nano-dollar too
 * little. Exit 0 only if nothing was found and seed 1 lives the same life twice.
 */
import { parseArgs } from "node:util"
import { Effect } from "effect"
import { Verify } from "../../src/programs/Testing.ts"
import { plants } from "./plants.ts"
import { shapes } from "./shapes.ts"

const text = { type: "string" } as const
const { values: flags } = parseArgs({
  options: { seeds: text, first: text, rows: text, shape: text, plant: text, exhaustive: { type: "boolean" } }
})
const number = (given: string | undefined, otherwise: number) => (given === undefined ? otherwise : Number(given))
const plant = plants.get(flags.plant ?? "")
if (flags.plant !== undefined && plant === undefined) throw new Error(`there is no plant ${flags.plant}`)

const all = Object.entries(shapes).filter(([name]) => flags.shape === undefined || flags.shape === name)
if (all.length === 0) throw new Error(`there is no shape ${flags.shape}`)
const seeds = Math.max(1, Math.ceil(number(flags.seeds, 2000) / all.length))
const firstSeed = number(flags.first, 1)
const common = { rows: number(flags.rows, 50), ...(plant === undefined ? {} : { wrap: plant }) }

let found = 0
const begun = { at: Date.now(), cpu: process.cpuUsage() }
const total = { lives: 0, rows: 0, crashes: 0, commits: 0, steps: 0 }
for (const [name, job] of all) {
  const report = await Effect.runPromise(
    Verify.job(job, { ...common, seeds, firstSeed, exhaustive: flags.exhaustive === true })
  )
  total.lives += report.lives
  total.rows += report.rows
  total.crashes += report.crashes
  total.commits += report.commits
  total.steps += report.stepsTotal
  found += report.violations.length
  console.log(`${name.padEnd(9)} ${report.lives} lives, ${report.crashes} crashes, trace hash ${report.traceHash}`)
  for (const { crash, seed, what } of report.violations.slice(0, 5)) {
    const around = crash === undefined ? "" : `, killed ${crash.before ? "before" : "after"} commit ${crash.commit}`
    console.log(`VIOLATION shape ${name}, seed ${seed}${around}: ${what}`)
  }
  const one = () => Effect.runPromise(Verify.replay(job, 1, common))
  const [first, again] = [await one(), await one()]
  if (first.traceHash !== again.traceHash) {
    found++
    console.log(`VIOLATION shape ${name}, seed 1: another trace the second time`)
  }
}

const seconds = (Date.now() - begun.at) / 1000
const { system, user } = process.cpuUsage(begun.cpu)
const n = (value: number) => value.toLocaleString("en-US")
console.log(`seeds       ${n(seeds * all.length)} from ${firstSeed} on, over ${all.length} shapes`)
console.log(
  `lives       ${n(total.lives)}: ${n(total.rows)} rows, ${n(total.commits)} commits, ${n(total.steps)} steps`
)
console.log(`crashes     ${n(total.crashes)}`)
console.log(
  `a second    ${(total.lives / seconds).toFixed(1)} lives, ${((total.lives * 1e6) / (user + system)).toFixed(1)} of CPU time`
)
console.log(`violations  ${n(found)}`)
process.exitCode = found === 0 ? 0 : 1
