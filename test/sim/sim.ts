/**
 * The simulator on jobs of a few shapes, seed after seed.
 *
 *   npm run sim -- [--seeds 2000] [--first 1] [--rows 50] [--shape plain] [--exhaustive] [--plant 1|2|3]
 *
 * `--plant`: with a bug that loses money: 1 the cap is compared with what is spent only, 2 a dead worker's calls are forgotten, 3 each answer costs a nano-dollar too
 * little. Exit 0 only if nothing was found and seed 1 lives the same life twice.
 */
import { execFile } from "node:child_process"
import { fileURLToPath } from "node:url"
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

const n = (value: number) => value.toLocaleString("en-US")

/** The lives of one shape; gives the number of violations. */
const live = async (name: string, job: (typeof shapes)[keyof typeof shapes]): Promise<number> => {
  const report = await Effect.runPromise(
    Verify.job(job, { ...common, seeds, firstSeed, exhaustive: flags.exhaustive === true })
  )
  const cpu = process.cpuUsage()
  const rate = (report.lives * 1e6) / (cpu.user + cpu.system)
  const parts = [
    `${n(report.lives)} lives`,
    `${n(report.rows)} rows`,
    `${n(report.commits)} commits`,
    `${n(report.crashes)} crashes`,
    `${n(report.violations.length)} violations`,
    `${rate.toFixed(1)} lives a second of CPU time`,
    `trace ${report.traceHash}`
  ]
  console.log(`${name.padEnd(9)} ${parts.join(", ")}`)
  for (const { crash, seed, what } of report.violations.slice(0, 5)) {
    const around = crash === undefined ? "" : `, killed ${crash.before ? "before" : "after"} commit ${crash.commit}`
    console.log(`VIOLATION shape ${name}, seed ${seed}${around}: ${what}`)
  }
  const one = () => Effect.runPromise(Verify.replay(job, 1, common))
  const [first, again] = [await one(), await one()]
  if (first.traceHash === again.traceHash) return report.violations.length
  console.log(`VIOLATION shape ${name}, seed 1: another trace the second time`)
  return report.violations.length + 1
}

/** Each shape in a process of its own, two at a time; gives the number of shapes with violations. */
const spread = async (): Promise<number> => {
  const left = Object.keys(shapes)
  let broken = 0
  const worker = async (): Promise<void> => {
    for (let name = left.shift(); name !== undefined; name = left.shift()) {
      const args = ["--import", "tsx", fileURLToPath(import.meta.url), ...process.argv.slice(2), "--shape", name]
      const share = ["--seeds", String(seeds)]
      const ended = await new Promise<{ readonly ok: boolean; readonly out: string }>((resolve) =>
        execFile(process.execPath, [...args, ...share], { maxBuffer: 1 << 26 }, (error, stdout, stderr) =>
          resolve({ ok: error === null, out: stdout + stderr })
        )
      )
      process.stdout.write(ended.out)
      if (!ended.ok) broken++
    }
  }
  await Promise.all([worker(), worker()])
  return broken
}

const [only] = all
const violations = flags.shape !== undefined && only !== undefined ? await live(only[0], only[1]) : await spread()
if (flags.shape === undefined) {
  const seconds = Math.round(performance.now() / 1000)
  console.log(
    `${n(seeds * all.length)} seeds from ${firstSeed} on, over ${all.length} shapes, in ${seconds} s: ${violations === 0 ? "no violation" : "VIOLATIONS"}`
  )
}
process.exitCode = violations === 0 ? 0 : 1
